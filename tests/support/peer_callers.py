"""Apache CXF and WCF as callers of a cluster: clients that send and clients that call, all at once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import maven_build
import pytest
from cluster_clients import Call, Callers
from interop_cells import cell
from java_contract import Caller, Operation
from java_peer import JavaPeer
from java_stacks import cxf as words
from waiting import until
from wcf.live_client import PROGRAM, LiveWCFClient, versions_of
from wcf.wire import Profile

import holdfast

VERSIONS = (("1.0", "2004/08", "1.1"), ("1.1", "2005/08", "1.1"))
"""WS-ReliableMessaging, WS-Addressing and SOAP. CXF has no SOAP 1.2 in RM 1.0."""
HAS_CXF, HAS_WCF = maven_build.available() is None, os.access(PROGRAM, os.X_OK)
PEER_MARKS = [
    pytest.mark.nightly,
    pytest.mark.interop,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not HAS_CXF and not HAS_WCF, reason="neither Maven nor the WCF client is here"),
    cell(
        peer=tuple(name for name, is_here in (("CXF", HAS_CXF), ("WCF", HAS_WCF)) if is_here),
        role="destination",
        broker="broker",
        pattern=("one-way", "request/reply"),
        versions=VERSIONS,
    ),
]
"""Of a test whose callers are those peers that are here."""
_MANY = 1_000_000


def peer_callers(cxf: JavaPeer | None, got: dict[str, list[int]]) -> Callers:
    """A client of each peer for each version and pattern.

    Args:
        cxf: The process of CXF, if it is here.
        got: What the service gets.
    """

    def clients(url: str) -> dict[str, AbstractAsyncContextManager[Call]]:
        made: dict[str, AbstractAsyncContextManager[Call]] = {}
        for versions in VERSIONS:
            for kind, operation in (("submit", "notify"), ("ask", "echo")):
                if cxf is not None:
                    key = f"CXF-{kind}-{versions[0]}"
                    made[key] = _cxf_client(cxf, url, key, operation, versions, got)
                if HAS_WCF:
                    key = f"WCF-{kind}-{versions[0]}"
                    made[key] = _wcf_client(url, key, operation, versions, got)
        return made

    return Callers(clients, repeats=True)


@asynccontextmanager
async def _cxf_client(
    cxf: JavaPeer, url: str, key: str, operation: Operation, versions: tuple[str, str, str], got: dict[str, list[int]]
) -> AsyncIterator[Call]:
    # CXF shares the state of an exchange between the thread of a call and its timer (docs/internals/cxf.md). So it must
    # not repeat a message before the load balancer has tried two paused nodes.
    setup = words(holdfast.Versions(*versions), interval=80_000)
    ticket = await cxf.ask("connect", url=url, key=key, decoupled=False, **setup)
    caller = Caller(cxf, ticket, operation)

    async def call(number: int) -> None:
        await caller.call(number, number)

    yield call
    await caller.settle()


@asynccontextmanager
async def _wcf_client(
    url: str, key: str, operation: Operation, versions: tuple[str, str, str], got: dict[str, list[int]]
) -> AsyncIterator[Call]:
    """The program cannot be asked to end, nor to rest, so it runs until it is killed."""
    client = LiveWCFClient(url, key=key, contract=operation, **versions_of(Profile(*versions)))
    reported = 0
    async with client.running(f"open; {operation} 0..{_MANY}") as report:
        opened = await report()
        assert opened.get("ok") == "open", (key, opened)

        async def call(number: int) -> None:
            nonlocal reported
            line = await report()
            assert line.get("ok") == f"{operation} {number}", (key, line)
            reported += 1

        yield call
        # It reports a one-way message that its session has accepted, and sends it again until it is acknowledged.
        await until(lambda: len(got.get(key, ())) >= reported)
