"""What the interop tests share: the scripted peers beside them (``from wcf.scripted_client import ...``), the JVMs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import maven_build
import pytest

_HERE = str(Path(__file__).resolve().parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)

import java_peer  # noqa: E402
from java_peer import JavaPeer  # noqa: E402


def _class_path(config: pytest.Config, stack: str) -> str:
    assert config.cache is not None
    try:
        return maven_build.build(config.cache.mkdir(stack), *java_peer.folders(stack))
    except maven_build.Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cxf_class_path(pytestconfig: pytest.Config) -> str:
    return _class_path(pytestconfig, "cxf")


@pytest.fixture(scope="session")
def cxf(cxf_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(cxf_class_path, tmp_path_factory.mktemp("cxf") / "errors") as peer:
        yield peer


@pytest.fixture(scope="module")
def cxf_with_saml(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    errors = tmp_path_factory.mktemp("cxf-saml") / "errors"
    with JavaPeer(_class_path(pytestconfig, "cxf-saml"), errors) as peer:
        yield peer
    # CXF drops a reply that it cannot sign, and its caller waits for minutes.
    assert "Error signing a SAML assertion" not in errors.read_text()


@pytest.fixture(scope="module")
def metro(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(_class_path(pytestconfig, "metro"), tmp_path_factory.mktemp("metro") / "errors") as peer:
        yield peer


@pytest.fixture
def sandesha(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[JavaPeer]:
    """A process for each test: what a caller of Sandesha2's still sends is not for the next one's port."""
    with JavaPeer(_class_path(pytestconfig, "sandesha"), tmp_path / "errors") as peer:
        yield peer
