"""CXF, secured or with a listener: a fifth of all messages lost, and requests that take longer than the timeout.

A CXF client with WSS4J fails if it repeats a request whose first exchange is still open: it cannot invoke
``Exchange.getDestination()``. So no test has a slow handler for such a client.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from interop_cells import cell
from java_contract import (
    COUNT,
    LIVE,
    LOSS,
    PATIENCE,
    Operation,
    PeerService,
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
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="CXF", pattern="request/reply")]

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


def our_side(directory: Path, secured: str, role: Literal["source", "destination"] = "source") -> Security:
    own, trusted = OURS.files(directory), CXF.files(directory).certificate
    return Security(secured, role, str(own.certificate), str(own.key), str(trusted), timestamp=True)


@contextlib.asynccontextmanager
async def lossy_source(
    cxf: JavaPeer, directory: Path, versions: holdfast.Versions, secured: str, back: LossyProxy | None = None
) -> AsyncIterator[tuple[PeerService, LossyProxy, holdfast.Source]]:
    """A source that secures its messages, with a listener behind ``back`` if that is given, and the service of CXF."""
    service = await served(cxf, directory / "log", **their_side(directory, versions, secured))
    processors = our_side(directory, secured).processors()
    async with (
        LossyProxy(service.url, LOSS, seed=5) as proxy,
        source_to(proxy.url, directory / "outbox", versions, back, processors=processors) as source,
    ):
        yield service, proxy, source


@every_security
@every_version
@cell(role="source", service="slow")
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
@cell(role="destination", setup="listener", service="slow")
async def test_a_slow_handler_answers_every_request_of_a_cxf_client_with_a_listener(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    shop = Shop(tmp_path / "inbox", SLOW / 1000)
    async with running_destination(shop.app) as url:
        caller = await connected(cxf, url, "echo", decoupled=True, **words(versions))
        await caller.call(1, SOME, is_the_end=True)
    assert shop.numbers == list(range(1, SOME + 1))


@every_version
@cell(role="source", setup="listener", service="slow", network=LOSS)
async def test_a_source_with_a_listener_gets_every_reply_of_a_slow_cxf_service(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    service = await served(cxf, tmp_path / "log", **words(versions, sleep=SLOW, ordered=False))
    async with (
        LossyProxy(service.url, LOSS, seed=5) as proxy,
        LossyProxy("http://127.0.0.1:9/", LOSS, seed=8) as back,
        source_to(proxy.url, tmp_path / "outbox", versions, back) as source,
    ):
        await exchange(source, "echo", range(1, SOME + 1), at_once=True)
        await source.flush(PATIENCE)
    assert sorted(service.delivered("echo")) == list(range(1, SOME + 1))


@every_security
@every_version
@cell(role="source", pattern="one-way", network=LOSS)
async def test_cxf_gets_every_secured_message_with_a_fifth_of_all_lost(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str
) -> None:
    async with lossy_source(cxf, tmp_path, versions, secured) as (service, proxy, source):
        await exchange(source, "notify", range(1, COUNT + 1))
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        await source.end(timeout=PATIENCE)
        assert proxy.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))


@every_security
@every_version
@cell(role="source", setup="listener", network=LOSS)
async def test_cxf_answers_every_secured_request_with_a_fifth_of_all_lost(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str
) -> None:
    back = LossyProxy("http://127.0.0.1:9/", LOSS, seed=8)
    async with back, lossy_source(cxf, tmp_path, versions, secured, back) as (service, proxy, source):
        await exchange(source, "echo", range(1, COUNT + 1))
        assert proxy.counts.lost > 0
    assert service.delivered("echo") == list(range(1, COUNT + 1))


@every_security
@every_version
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(role="destination", network=LOSS)
async def test_holdfast_gets_every_secured_message_of_cxf_with_a_fifth_of_all_lost(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str, operation: Operation
) -> None:
    shop = Shop(tmp_path / "inbox", processors=our_side(tmp_path, secured, "destination").processors())
    async with running_destination(shop.app) as url, LossyProxy(url, LOSS, seed=3) as proxy:
        # A request that is repeated while its exchange is open fails there.
        theirs = {**their_side(tmp_path, versions, secured), "interval": 300 if operation == "notify" else 5000}
        caller = await connected(cxf, proxy.url, operation, decoupled=False, **theirs)
        await caller.call_through(proxy)
        await until(lambda: shop.ends() == ["terminated"], PATIENCE)
        assert proxy.counts.lost > 0
    assert shop.numbers == list(range(1, COUNT + 1))
