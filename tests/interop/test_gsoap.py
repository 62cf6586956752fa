"""Holdfast against gSOAP, both ways round and through a bad network; and gSOAP against itself, to trust the peer.

The peers are built from the system's gSOAP packages when they are there; otherwise all of this is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import gsoap_peer
import pytest
from gsoap_peer import ClientResult, GsoapServer, Mode, Rm, Soap, run_client
from lxml import etree

import holdfast
from holdfast.testing.proxy import Exchange, Faults, LossyProxy

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(gsoap_peer.available() is not None, reason=gsoap_peer.available() or ""),
]
needs_endpoints = pytest.mark.skipif(not hasattr(holdfast, "Destination"), reason="Holdfast's endpoints are not here")

COUNT = 12
BAD = Faults(lose_request=0.15, lose_response=0.15, double=0.1, delay=0.2, max_delay=0.01)
RMS: list[Rm] = ["1.0", "1.1"]
MODES: list[Mode] = ["oneway", "twoway"]
NAMESPACE = gsoap_peer.NAMESPACE


@pytest.fixture(scope="session")
def peers(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return gsoap_peer.build(pytestconfig.cache.mkdir("gsoap"))


def assert_all_went_well(result: ClientResult, mode: Mode) -> None:
    assert result.exit_code == 0, (result.events[-5:], result.stderr)
    assert (result.sent, result.acked) == (COUNT, COUNT)
    if mode == "twoway":
        assert [reply["number"] for reply in result.replies] == list(range(1, COUNT + 1))
        assert all(reply["correct"] for reply in result.replies)


# --- gSOAP against itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rm", RMS)
async def test_gsoap_talks_to_itself(peers: Path, tmp_path: Path, rm: Rm, mode: Mode, soap: Soap) -> None:
    with GsoapServer(peers, rm, tmp_path / "log") as server:
        result = await run_client(peers, server.url, rm=rm, mode=mode, count=COUNT, soap=soap)
    assert_all_went_well(result, mode)
    assert result.count("failed") == (1 if rm == "1.0" else 0)  # RM 1.0: it misreads its own answer to Terminate
    assert [message.number for message in server.delivered()] == list(range(1, COUNT + 1))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rm", RMS)
async def test_gsoap_talks_to_itself_through_a_bad_network(
    peers: Path, tmp_path: Path, rm: Rm, mode: Mode, seed: int
) -> None:
    with GsoapServer(peers, rm, tmp_path / "log") as server:
        async with LossyProxy(server.url, BAD, seed=seed) as proxy:
            result = await run_client(peers, proxy.url, rm=rm, mode=mode, count=COUNT)
    assert_all_went_well(result, mode)
    assert proxy.counts.lost > 0
    assert [message.number for message in server.delivered()] == list(range(1, COUNT + 1))


@pytest.mark.parametrize("rm", RMS)
async def test_a_gsoap_service_as_documented_acknowledges_no_one_way_message(
    peers: Path, tmp_path: Path, rm: Rm
) -> None:
    seen: list[Exchange] = []
    with GsoapServer(peers, rm, tmp_path / "log", stock=True) as server:
        async with LossyProxy(server.url, on_exchange=seen.append) as proxy:
            result = await run_client(peers, proxy.url, rm=rm, mode="oneway", count=2, rounds=2)
    assert (result.exit_code, result.acked) == (1, 0)
    assert [message.number for message in server.delivered()] == [1, 2]
    after_create = [exchange.response or b"" for exchange in seen[1:]]
    assert all(response.startswith(b"HTTP/1.1 202 ") for response in after_create)


async def test_a_gsoap_client_gives_up_where_nobody_answers(peers: Path) -> None:
    async with LossyProxy("http://127.0.0.1:9/", Faults(lose_request=1)) as proxy:
        result = await run_client(peers, proxy.url, rm="1.1", mode="oneway", count=1, rounds=3, pause_ms=1)
    assert (result.exit_code, result.acked) == (1, 0)
    assert proxy.counts.requests_lost == 3


# --- Holdfast's Destination, gSOAP's source ---------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def listening(process: asyncio.subprocess.Process, port: int) -> None:
    """Wait until the port accepts connections; fail when the process ends instead."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RuntimeError(f"holdfast serve ended with {process.returncode}")


@asynccontextmanager
async def holdfast_service(directory: Path) -> AsyncIterator[str]:
    """``holdfast serve`` in a process of its own; gives the address."""
    port, here = free_port(), Path(__file__).parent
    path = os.pathsep.join([str(here), *sys.path])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from holdfast.cli.main import main; main()"),
        *("serve", "holdfast_service:app", "--port", str(port)),
        env={
            **os.environ,
            "PYTHONPATH": path,
            "INTEROP_STORE": str(directory / "inbox"),
            "INTEROP_LOG": str(directory / "log"),
        },
    )
    try:
        await asyncio.wait_for(listening(process, port), 30)
        yield f"http://127.0.0.1:{port}/"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@needs_endpoints
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rm", RMS)
async def test_gsoap_sends_to_holdfast_through_a_bad_network(
    peers: Path, tmp_path: Path, rm: Rm, mode: Mode, soap: Soap
) -> None:
    async with holdfast_service(tmp_path) as url, LossyProxy(url, BAD, seed=4) as proxy:
        result = await run_client(peers, proxy.url, rm=rm, mode=mode, count=COUNT, soap=soap)
    assert_all_went_well(result, mode)
    assert proxy.counts.lost > 0
    delivered = [json.loads(line)["number"] for line in (tmp_path / "log").read_text().splitlines()]
    assert delivered == list(range(1, COUNT + 1))


# --- Holdfast's Source, gSOAP's service -------------------------------------------------------------------------


def body(operation: str, number: int) -> str:
    return (
        f"<t:{operation} xmlns:t='{NAMESPACE}'><t:key>k</t:key><t:number>{number}</t:number>"
        f'<t:body>&lt;{number}&gt; &amp; "quoted"</t:body></t:{operation}>'
    )


def values(element: etree._Element) -> tuple[str | None, ...]:
    return tuple(element.findtext(f"{{{NAMESPACE}}}{name}") for name in ("key", "number", "body"))


@needs_endpoints
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("rm", RMS)
async def test_holdfast_sends_one_way_to_gsoap_through_a_bad_network(
    peers: Path, tmp_path: Path, rm: Rm, soap: Soap
) -> None:
    versions = holdfast.Versions(rm=rm, addressing="2005/08", soap=soap)
    with GsoapServer(peers, rm, tmp_path / "log") as server:
        async with LossyProxy(server.url, BAD, seed=4) as proxy:
            async with holdfast.Source(proxy.url, store=str(tmp_path / "outbox"), versions=versions) as source:
                sent = [
                    await source.send(body("notify", number), action=f"{NAMESPACE}/notify")
                    for number in range(1, COUNT + 1)
                ]
                for message in sent:
                    await message.acknowledged(timeout=60)
            assert proxy.counts.lost > 0
    assert [message.number for message in server.delivered()] == list(range(1, COUNT + 1))


@needs_endpoints
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("rm", RMS)
async def test_holdfast_asks_gsoap_and_gets_every_reply_through_a_bad_network(
    peers: Path, tmp_path: Path, rm: Rm, soap: Soap
) -> None:
    versions = holdfast.Versions(rm=rm, addressing="2005/08", soap=soap)
    with GsoapServer(peers, rm, tmp_path / "log") as server:
        async with LossyProxy(server.url, BAD, seed=4) as proxy:
            async with holdfast.Source(proxy.url, store=str(tmp_path / "outbox"), versions=versions) as source:
                for number in range(1, COUNT + 1):
                    reply = await source.request(body("echo", number), action=f"{NAMESPACE}/echo")
                    assert values(reply.body) == ("k", str(number), f'<{number}> & "quoted"')
            assert proxy.counts.lost > 0
    assert [message.number for message in server.delivered()] == list(range(1, COUNT + 1))
