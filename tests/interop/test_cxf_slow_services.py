"""Requests that take longer than the retransmission timeout, with CXF: secured, and with a listener.

A CXF client with WSS4J fails if it repeats a request whose first exchange is still open: it cannot invoke
``Exchange.getDestination()``. So no test has a slow handler for such a client.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interop_cells import cell
from java_contract import (
    BAD,
    LIVE,
    PATIENCE,
    Shop,
    connected,
    exchange,
    served,
    source_to,
)
from java_peer import JavaPeer
from java_signers import CXF, OURS, encrypted_words, signed_words
from java_stacks import cxf as words
from process_security import SECURED, Security
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="CXF", pattern="request/reply", service="slow")]

SLOW = 1500
SOME = 5
VERSIONS = [("1.0", "2004/08", "1.1"), ("1.0", "2005/08", "1.1"), ("1.1", "2005/08", "1.1"), ("1.1", "2005/08", "1.2")]
every_version = pytest.mark.parametrize(
    "versions", [holdfast.Versions(*one) for one in VERSIONS], ids=["-".join(one).replace("/", "") for one in VERSIONS]
)
every_security = pytest.mark.parametrize("secured", SECURED)


def their_side(directory: Path, versions: holdfast.Versions, secured: str) -> dict[str, Any]:
    """Settings of a CXF bus that secures all messages, and demands it."""
    if "encryption" in secured:
        return encrypted_words(directory, versions, suite="Basic256Sha256")
    if secured == "certificates":
        return signed_words(directory, versions, suite="Basic256Sha256")
    return words(versions, security="digest" if "digest" in secured else "text")


def our_side(directory: Path, secured: str) -> Security:
    own, trusted = OURS.files(directory), CXF.files(directory).certificate
    return Security(secured, "source", str(own.certificate), str(own.key), str(trusted), timestamp=True)


@every_security
@every_version
@cell(role="source")
async def test_a_slow_cxf_service_answers_every_secured_request(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str
) -> None:
    theirs = {**their_side(tmp_path, versions, secured), "sleep": SLOW, "ordered": False}
    service = await served(cxf, tmp_path / "log", **theirs)
    processors = our_side(tmp_path, secured).processors()
    async with source_to(service.url, tmp_path / "outbox", versions, processors=processors) as source:
        await exchange(source, "echo", range(1, SOME + 1), at_once=True)
    assert sorted(service.delivered("echo")) == list(range(1, SOME + 1))


@every_version
@cell(role="destination", setup="listener")
async def test_a_slow_handler_answers_every_request_of_a_cxf_client_with_a_listener(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    shop = Shop(tmp_path / "inbox", SLOW / 1000)
    async with running_destination(shop.app) as url:
        caller = await connected(cxf, url, "echo", decoupled=True, **words(versions))
        await caller.call(1, SOME, is_the_end=True)
    assert shop.numbers == list(range(1, SOME + 1))


@every_version
@cell(role="source", setup="listener", network=BAD)
async def test_a_source_with_a_listener_gets_every_reply_of_a_slow_cxf_service(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    service = await served(cxf, tmp_path / "log", **words(versions, sleep=SLOW, ordered=False))
    async with (
        LossyProxy(service.url, BAD, seed=5) as proxy,
        LossyProxy("http://127.0.0.1:9/", BAD, seed=8) as back,
        source_to(proxy.url, tmp_path / "outbox", versions, back) as source,
    ):
        await exchange(source, "echo", range(1, SOME + 1), at_once=True)
        await source.flush(PATIENCE)
    assert sorted(service.delivered("echo")) == list(range(1, SOME + 1))
