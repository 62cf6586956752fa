"""Holdfast against gSOAP, both ways round and through a bad network; and gSOAP against itself, to trust the peer.

The peers are built from the system's gSOAP packages when they are there; otherwise all of this is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import gsoap_peer
import pytest
from gsoap_peer import ClientResult, GsoapServer, Mode, Rm, Soap, run_client
from interop_cells import cell
from java_contract import LOSS
from lxml import etree
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig, RouteConfig
from holdfast.core.messages import Expects
from holdfast.core.policy import ForwardingPolicy
from holdfast.testing.proxy import Faults, LossyProxy, Relayed

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(gsoap_peer.available() is not None, reason=gsoap_peer.available() or ""),
    cell(peer="gSOAP", addressing="2005/08"),
]
needs_endpoints = pytest.mark.skipif(not hasattr(holdfast, "Destination"), reason="Holdfast's endpoints are not here")

COUNT = 12
BAD = Faults(lose_request=0.15, lose_response=0.15, double=0.1, delay=0.2, max_delay=0.01)
WORSE = replace(BAD, lose_request=0.2, lose_response=0.2)
RMS: list[Rm] = ["1.0", "1.1"]
MODES: list[Mode] = ["oneway", "twoway"]
NAMESPACE = gsoap_peer.NAMESPACE
every_network = pytest.mark.parametrize(
    ("faults", "seed"), [(BAD, 3), *(pytest.param(WORSE, seed, marks=pytest.mark.nightly) for seed in (4, 5))]
)
SLOW = 1500
"""Milliseconds that a slow service takes, longer than our retransmission timeout."""
SOME = 4
HURRIED = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.5))


@pytest.fixture(scope="session")
def peers(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return gsoap_peer.build(pytestconfig.cache.mkdir("gsoap"))


def assert_all_went_well(result: ClientResult, mode: Mode, count: int = COUNT) -> None:
    assert result.exit_code == 0, (result.events[-5:], result.stderr)
    assert (result.sent, result.acked) == (count, count)
    if mode == "twoway":
        assert [reply["number"] for reply in result.replies] == list(range(1, count + 1))
        assert all(reply["correct"] for reply in result.replies)


# --- gSOAP against itself ---------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rm", RMS)
@cell(role="none")
async def test_gsoap_talks_to_itself(peers: Path, tmp_path: Path, rm: Rm, mode: Mode, soap: Soap) -> None:
    with GsoapServer(peers, rm, tmp_path / "log") as server:
        result = await run_client(peers, server.url, rm=rm, mode=mode, count=COUNT, soap=soap)
    assert_all_went_well(result, mode)
    assert result.count("failed") == (1 if rm == "1.0" else 0)  # RM 1.0: it misreads its own answer to Terminate
    assert [message.number for message in server.delivered()] == list(range(1, COUNT + 1))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rm", RMS)
@cell(role="none")
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
@cell(role="none")
async def test_a_gsoap_service_as_documented_acknowledges_no_one_way_message(
    peers: Path, tmp_path: Path, rm: Rm
) -> None:
    seen: list[Relayed] = []
    with GsoapServer(peers, rm, tmp_path / "log", stock=True) as server:
        async with LossyProxy(server.url, on_relayed=seen.append) as proxy:
            result = await run_client(peers, proxy.url, rm=rm, mode="oneway", count=2, rounds=2)
    assert (result.exit_code, result.acked) == (1, 0)
    assert [message.number for message in server.delivered()] == [1, 2]
    after_create = [relayed.response or b"" for relayed in seen[1:]]
    assert all(response.startswith(b"HTTP/1.1 202 ") for response in after_create)


@cell(role="none")
async def test_a_gsoap_client_gives_up_where_nobody_answers(peers: Path) -> None:
    async with LossyProxy("http://127.0.0.1:9/", Faults(lose_request=1)) as proxy:
        result = await run_client(peers, proxy.url, rm="1.1", mode="oneway", count=1, rounds=3, pause_ms=1)
    assert (result.exit_code, result.acked) == (1, 0)
    assert proxy.counts.requests_lost == 3


# --- Holdfast's Destination, gSOAP's source ---------------------------------------------------------------------


@dataclass(frozen=True)
class HoldfastService:
    """``holdfast serve`` in a process of its own, one for all tests: each has a key of its own."""

    url: str
    log: Path

    def delivered(self, key: str) -> list[int]:
        """The numbers of the messages with this key that a handler has got so far, in that order."""
        messages = [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]
        return [message["number"] for message in messages if message["key"] == key]

    async def all_delivered(self, key: str) -> list[int]:
        """The same, once they are as many as were sent: an acknowledgement says stored, not handled."""
        async with asyncio.timeout(240):
            while len(delivered := self.delivered(key)) < COUNT:
                await asyncio.sleep(0.02)
        return delivered


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HoldfastService]:
    directory = tmp_path_factory.mktemp("holdfast")
    program = "from holdfast.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "holdfast_service:app", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "INTEROP_STORE": str(directory / "inbox"),
            "INTEROP_LOG": str(directory / "log"),
        },
    )
    try:
        assert process.stdout is not None
        word, _, url = process.stdout.readline().strip().rpartition(" ")
        assert word == "listening on", f"holdfast serve ended with {process.poll()}"
        yield HoldfastService(url, directory / "log")
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.every(3)
@needs_endpoints
@every_network
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rm", RMS)
@cell(role="destination")
async def test_gsoap_sends_to_holdfast_through_a_bad_network(
    peers: Path, service: HoldfastService, rm: Rm, mode: Mode, soap: Soap, faults: Faults, seed: int
) -> None:
    key = f"{rm} {mode} {soap} {seed}"
    async with LossyProxy(service.url, faults, seed=seed) as proxy:
        result = await run_client(peers, proxy.url, rm=rm, mode=mode, count=COUNT, soap=soap, key=key)
    assert_all_went_well(result, mode)
    assert proxy.counts.lost > 0
    assert await service.all_delivered(key) == list(range(1, COUNT + 1))


@needs_endpoints
@pytest.mark.parametrize("rm", RMS)
@cell(role="destination", setup="requests without ReplyTo", pattern="request/reply", network=BAD, soap="1.2")
async def test_gsoap_gets_replies_to_requests_that_say_nothing_of_a_reply(
    peers: Path, service: HoldfastService, rm: Rm
) -> None:
    key = f"{rm} without MessageID"
    async with LossyProxy(service.url, BAD, seed=6) as proxy:
        result = await run_client(peers, proxy.url, rm=rm, mode="twoway", count=COUNT, key=key, ids=False)
    assert_all_went_well(result, "twoway")
    assert proxy.counts.lost > 0
    assert await service.all_delivered(key) == list(range(1, COUNT + 1))


@pytest.mark.nightly
@pytest.mark.parametrize("faults", [Faults(), LOSS], ids=["clean", "loss"])
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("rm", RMS)
@cell(role="destination", pattern="request/reply", service="slow")
async def test_gsoap_gets_every_reply_of_a_slow_handler(
    peers: Path, tmp_path: Path, rm: Rm, soap: Soap, faults: Faults
) -> None:
    app = holdfast.Destination(tmp_path / "inbox", assurance="exactly-once in-order")
    handled: list[int] = []

    @app.on(f"{NAMESPACE}/echo")
    async def echo(message: holdfast.Message) -> bytes:
        handled.append(int(message.body.findtext(f"{{{NAMESPACE}}}number", "")))
        await asyncio.sleep(SLOW / 1000)
        return message.body_bytes.replace(b"echo", b"echoResponse")

    async with running_destination(app) as url, LossyProxy(url, faults, seed=3) as proxy:
        result = await run_client(peers, proxy.url, rm=rm, mode="twoway", count=SOME, soap=soap)
    assert_all_went_well(result, "twoway", SOME)
    assert handled == list(range(1, SOME + 1))
    assert (proxy.counts.lost > 0) == (faults is LOSS)


# --- Holdfast's Source, gSOAP's service -------------------------------------------------------------------------


def body(operation: str, number: int) -> str:
    return (
        f"<t:{operation} xmlns:t='{NAMESPACE}'><t:key>k</t:key><t:number>{number}</t:number>"
        f'<t:body>&lt;{number}&gt; &amp; "quoted"</t:body></t:{operation}>'
    )


def values(element: etree._Element) -> tuple[str | None, ...]:
    return tuple(element.findtext(f"{{{NAMESPACE}}}{name}") for name in ("key", "number", "body"))


def hurried_source(url: str, directory: Path, versions: holdfast.Versions) -> holdfast.Source:
    return holdfast.Source(url, store=str(directory / "outbox"), versions=versions, policy=HURRIED)


@needs_endpoints
@every_network
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("rm", RMS)
@cell(role="source", pattern="one-way")
async def test_holdfast_sends_one_way_to_gsoap_through_a_bad_network(
    peers: Path, tmp_path: Path, rm: Rm, soap: Soap, faults: Faults, seed: int
) -> None:
    versions = holdfast.Versions(rm=rm, addressing="2005/08", soap=soap)
    with GsoapServer(peers, rm, tmp_path / "log") as server:
        async with LossyProxy(server.url, faults, seed=seed) as proxy:
            async with hurried_source(proxy.url, tmp_path, versions) as source:
                sent = [
                    await source.send(body("notify", number), action=f"{NAMESPACE}/notify")
                    for number in range(1, COUNT + 1)
                ]
                for message in sent:
                    await message.acknowledged(timeout=240)
            assert proxy.counts.lost > 0
    assert [message.number for message in server.delivered()] == list(range(1, COUNT + 1))


@needs_endpoints
@every_network
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("rm", RMS)
@cell(role="source", pattern="request/reply")
async def test_holdfast_asks_gsoap_and_gets_every_reply_through_a_bad_network(
    peers: Path, tmp_path: Path, rm: Rm, soap: Soap, faults: Faults, seed: int
) -> None:
    versions = holdfast.Versions(rm=rm, addressing="2005/08", soap=soap)
    with GsoapServer(peers, rm, tmp_path / "log") as server:
        async with LossyProxy(server.url, faults, seed=seed) as proxy:
            async with hurried_source(proxy.url, tmp_path, versions) as source:
                for number in range(1, COUNT + 1):
                    reply = await source.request(body("echo", number), action=f"{NAMESPACE}/echo")
                    assert values(reply.body) == ("k", str(number), f'<{number}> & "quoted"')
            assert proxy.counts.lost > 0
    assert [message.number for message in server.delivered()] == list(range(1, COUNT + 1))


@pytest.mark.nightly
@pytest.mark.parametrize("faults", [Faults(), LOSS], ids=["clean", "loss"])
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("rm", RMS)
@cell(role="source", pattern="request/reply", service="slow")
async def test_holdfast_gets_every_reply_of_a_slow_gsoap_service(
    peers: Path, tmp_path: Path, rm: Rm, soap: Soap, faults: Faults
) -> None:
    versions = holdfast.Versions(rm=rm, addressing="2005/08", soap=soap)
    with GsoapServer(peers, rm, tmp_path / "log", sleep=SLOW) as server:
        async with (
            LossyProxy(server.url, faults, seed=3) as proxy,
            hurried_source(proxy.url, tmp_path, versions) as source,
        ):
            asked = [source.request(body("echo", n), action=f"{NAMESPACE}/echo") for n in range(1, SOME + 1)]
            replies = await asyncio.gather(*asked)
            assert [values(one.body) for one in replies] == [
                ("k", str(n), f'<{n}> & "quoted"') for n in range(1, SOME + 1)
            ]
        assert (proxy.counts.lost > 0) == (faults is LOSS)
    assert sorted(message.number for message in server.delivered()) == list(range(1, SOME + 1))


# --- gSOAP's client, a broker, gSOAP's service ------------------------------------------------------------------------

# Without `expects` a request is acknowledged at once, and this client does not repeat what is acknowledged.
WHAT_IS_EXPECTED: list[tuple[Mode, Expects | None]] = [
    ("oneway", None),
    ("oneway", Expects.ONE_WAY),
    ("twoway", Expects.REQUEST),
]


@asynccontextmanager
async def broker_before(url: str, store: Path, expects: Expects | None) -> AsyncIterator[str]:
    """The address of a broker that forwards to a gSOAP service."""
    config = BrokerConfig(
        str(store),
        listen=ListenConfig(port=0),
        admin=AdminConfig(port=0),
        routes=(RouteConfig(("inbox",), expects=expects),),
        forwarders=(ForwarderConfig("next", "inbox", url, policy=ForwardingPolicy(sending=HURRIED)),),
    )
    broker = Broker(config)
    await broker.service.start()
    try:
        yield broker.service.url
    finally:
        await broker.service.close(0.5)


@pytest.mark.every(5)
@pytest.mark.parametrize(
    "faults", [Faults(), BAD, pytest.param(WORSE, marks=pytest.mark.nightly)], ids=["clean", "bad", "worse"]
)
@pytest.mark.parametrize(("mode", "expects"), WHAT_IS_EXPECTED)
@pytest.mark.parametrize("rm", RMS)
@cell(role="both", broker="broker", soap="1.2")
async def test_gsoap_asks_through_a_broker_though_its_requests_name_no_reply_to(
    peers: Path, tmp_path: Path, rm: Rm, mode: Mode, expects: Expects | None, faults: Faults
) -> None:
    with GsoapServer(peers, rm, tmp_path / "log") as server:
        async with (
            broker_before(server.url, tmp_path / "broker", expects) as url,
            LossyProxy(url, faults, seed=1) as proxy,
        ):
            result = await run_client(peers, proxy.url, rm=rm, mode=mode, count=COUNT)
            assert_all_went_well(result, mode)
            await until(lambda: sorted(one.number for one in server.delivered()) == list(range(1, COUNT + 1)))


@pytest.mark.nightly
@pytest.mark.parametrize("faults", [Faults(), LOSS], ids=["clean", "loss"])
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("rm", RMS)
@cell(role="both", broker="broker", pattern="request/reply", service="slow")
async def test_gsoap_gets_every_reply_of_a_slow_service_through_a_broker(
    peers: Path, tmp_path: Path, rm: Rm, soap: Soap, faults: Faults
) -> None:
    with GsoapServer(peers, rm, tmp_path / "log", sleep=SLOW) as server:
        async with (
            broker_before(server.url, tmp_path / "broker", Expects.REQUEST) as url,
            LossyProxy(url, faults, seed=3) as proxy,
        ):
            result = await run_client(peers, proxy.url, rm=rm, mode="twoway", count=SOME, soap=soap)
        assert_all_went_well(result, "twoway", SOME)
        assert (proxy.counts.lost > 0) == (faults is LOSS)
    assert [message.number for message in server.delivered()] == list(range(1, SOME + 1))
