"""What the interop tests share: the JVMs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from java_contract import class_path
from java_peer import JavaPeer


@pytest.fixture(scope="session")
def cxf_class_path(pytestconfig: pytest.Config) -> str:
    return class_path(pytestconfig, "cxf")


@pytest.fixture(scope="session")
def cxf(cxf_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(cxf_class_path, tmp_path_factory.mktemp("cxf") / "errors") as peer:
        yield peer


@pytest.fixture(scope="module")
def cxf_with_saml(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    errors = tmp_path_factory.mktemp("cxf-saml") / "errors"
    with JavaPeer(class_path(pytestconfig, "cxf-saml"), errors) as peer:
        yield peer
    # CXF drops a reply that it cannot sign, and its caller waits for minutes.
    assert "Error signing a SAML assertion" not in errors.read_text()


@pytest.fixture(scope="module")
def metro(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(class_path(pytestconfig, "metro"), tmp_path_factory.mktemp("metro") / "errors") as peer:
        yield peer


@pytest.fixture
def sandesha(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[JavaPeer]:
    """A process for each test: what a caller of Sandesha2's still sends is not for the next one's port."""
    with JavaPeer(class_path(pytestconfig, "sandesha"), tmp_path / "errors") as peer:
        yield peer
