"""Microsoft's WCF client before a cluster of three brokers, one of which is killed or paused; also with a user name.

``WCF_CLIENT`` names the program; without it all of this is skipped.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from balancer import ROUNDS, Balancer
from broker_cluster import NAMES, Brokers, store_on
from interop_cells import cell
from waiting import until
from wcf.grids import each_version
from wcf.https import context_in, tls_before
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.network import changing_network
from wcf.outage import Outage
from wcf.wire import Profile

from holdfast.testing.proxy import Faults

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.crash,
    pytest.mark.timeout(600),
    needs_the_client,
    cell(peer="WCF", role="destination", broker="broker"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


LIGHT = Faults(lose_request=0.05, lose_response=0.05)
"""Each loss may cost a client seconds: see ``wcf.network``. Six clients have enough of them."""


@pytest.mark.nightly
@each_version
@cell(pattern="mixed", setup="a cluster, six clients", fault="one of three brokers killed or paused")
@pytest.mark.parametrize("trouble", ["killed", "paused"])
async def test_wcf_clients_of_a_cluster_do_not_notice_a_broker_that_is_killed_or_paused(
    profile: Profile, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    outage, store = Outage(tmp_path, monkeypatch), store_on("postgresql", request)
    await call_through(profile, trouble, outage, tmp_path, store)


@pytest.mark.nightly
@each_version
@cell(pattern="mixed", setup="a cluster on Kafka, six clients", fault="one of three brokers killed or paused")
@pytest.mark.parametrize("trouble", ["killed", "paused"])
async def test_wcf_clients_of_a_cluster_on_kafka_do_not_notice_it_either(
    profile: Profile,
    trouble: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    outage, store = Outage(tmp_path, monkeypatch), store_on("kafka", request, kafkas=3)
    await call_through(profile, trouble, outage, tmp_path, store)


@pytest.mark.nightly
@each_version
@cell(pattern="mixed", setup="a cluster, six clients", fault="one of three brokers killed", network=LIGHT)
async def test_wcf_clients_of_a_lossy_cluster_do_not_notice_that_a_broker_is_killed(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    outage, store = Outage(tmp_path, monkeypatch), store_on("postgresql", request)
    await call_through(profile, "killed", outage, tmp_path, store, LIGHT)


@pytest.mark.nightly
@each_version
@cell(
    pattern=("one-way", "request/reply", "mixed"),
    setup="a cluster on Kafka, a load balancer that repeats nothing",
    fault="one of three brokers paused; 503 during the takeover",
)
async def test_wcf_clients_of_a_cluster_that_are_answered_503_during_a_takeover_send_again(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    outage, store = Outage(tmp_path, monkeypatch), store_on("kafka", request, kafkas=3)
    balancer = await call_through(profile, "paused", outage, tmp_path, store, contracts=tuple(SCRIPTS), repeats=False)
    assert balancer.statuses[503]


SCRIPTS = {
    "both": "open; echo 1..20; notify 21..30; close",
    "notify": "open; notify 1..30; close",
    "echo": "open; echo 1..30; close",
}
"""What the clients of each contract do."""


async def call_through(
    profile: Profile,
    trouble: str,
    outage: Outage,
    directory: Path,
    store: str,
    faults: Faults = Faults(),  # noqa: B008 # a value, and never changed
    *,
    contracts: Sequence[str] = ("both",),
    repeats: bool = True,
) -> Balancer:
    """Let clients call through a cluster while one of its brokers is killed or paused.

    Returns:
        The load balancer, which repeats what was answered with 503 or which does not.
    """
    brokers = Brokers(directory, store, outage.service.url)
    async with outage.running(outage.service):
        try:
            await brokers.start(*NAMES)
            async with (
                Balancer(list(brokers.urls.values()), repeats=repeats, rounds=ROUNDS) as balancer,
                changing_network(balancer.url, [faults] * 100, seed=7) as network,
            ):
                chosen = [contracts[n % len(contracts)] for n in range(6)]
                clients = [
                    LiveWCFClient(network.url, key=f"k{n}", contract=contract, **versions_of(profile))
                    for n, contract in enumerate(chosen)
                ]
                scripts = [SCRIPTS[contract] for contract in chosen]
                calls = [asyncio.create_task(one.run(script)) for one, script in zip(clients, scripts, strict=True)]
                await until(lambda: len(outage.handled()) >= 6 * 4)
                node, lost = brokers.nodes["a"], brokers.served("a")
                node.signal(signal.SIGKILL if trouble == "killed" else signal.SIGSTOP)
                await until(lambda: lost <= brokers.served("b") | brokers.served("c"))
                if trouble == "paused":
                    node.signal(signal.SIGCONT)
                await asyncio.gather(*calls)
                await until(lambda: len(outage.handled()) >= 6 * 30)
        finally:
            brokers.clean()
    assert [one.failed for one in clients] == [[]] * 6
    assert outage.ledger.numbers == {f"k{n}": list(range(1, 31)) for n in range(6)}
    return balancer


SECURITY = '[security]\nusers = "users"\n'


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(pattern="mixed", setup="a cluster", fault="one of three brokers killed", security="secure conversation")
async def test_wcf_clients_with_a_user_name_keep_their_sessions_if_a_broker_is_killed(
    binding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    outage, store = Outage(tmp_path, monkeypatch), store_on("postgresql", request)
    await call_with_a_user_name(binding, outage, tmp_path, store)


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(pattern="mixed", setup="a cluster on Kafka", fault="one of three brokers killed", security="secure conversation")
async def test_wcf_clients_with_a_user_name_keep_their_sessions_on_kafka_too(
    binding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    outage, store = Outage(tmp_path, monkeypatch), store_on("kafka", request, kafkas=3)
    await call_with_a_user_name(binding, outage, tmp_path, store)


async def call_with_a_user_name(binding: str, outage: Outage, directory: Path, store: str) -> None:
    """Each request goes to another broker than the one before, also those for tokens and under tokens."""
    (directory / "users").write_text("alice:secret\n")
    (directory / "users").chmod(0o600)
    brokers = Brokers(directory, store, outage.service.url, SECURITY)
    async with outage.running(outage.service):
        try:
            await brokers.start(*NAMES)
            async with (
                Balancer(list(brokers.urls.values()), repeats=True, rounds=ROUNDS) as balancer,
                tls_before(balancer.url, context_in(directory)) as url,
            ):
                given = {"username": "alice:secret", "trust_any": "", "binding": binding}
                clients = [LiveWCFClient(url, key=f"k{n}", **given) for n in range(3)]
                calls = [asyncio.create_task(one.run("open; echo 1..20; notify 21..30; close")) for one in clients]
                await until(lambda: len(outage.handled()) >= 3 * 4)
                brokers.nodes["a"].signal(signal.SIGKILL)
                await asyncio.gather(*calls)
                wrong = LiveWCFClient(url, key="wrong", **(given | {"username": "alice:wrong"}))
                await wrong.run("open; close")
                await until(lambda: len(outage.handled()) >= 3 * 30)
        finally:
            brokers.clean()
    assert [one.failed for one in clients] == [[]] * 3
    assert [line["exception"] for line in wrong.failed][:1] == ["MessageSecurityException"]
    assert outage.ledger.numbers == {f"k{n}": list(range(1, 31)) for n in range(3)}
