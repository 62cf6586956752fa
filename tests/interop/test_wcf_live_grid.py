"""Microsoft's WCF client in all its versions and with each kind of contract, under each condition.

Many clients run at once: three by default, with contracts of one-way operations, of calls, and of both, and with each
version of each specification; in the nightly suite all eighteen combinations. A process of the client costs a second of
processor time. Conditions that the network or the handlers bring about therefore share the clients: each condition is a
session of its own, and a test of its own.

``WCF_CLIENT`` names the program; without it all of this is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from interop_cells import SIX, cell
from processes import Process
from waiting import until
from wcf import network
from wcf.destination import contract_app, key_of, running_destination
from wcf.live_client import Cell, Ledger, Line, cells, grid, needs_the_client, three_cells
from wcf.orders import Orders
from wcf.outage import Outage, restart

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig
from holdfast.core.policy import ForwardingPolicy, OnRefused
from holdfast.endpoint.admin.inspected import Inspected
from holdfast.testing.proxy import Faults

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.timeout(900),
    needs_the_client,
    cell(peer="WCF", role="destination", pattern=("one-way", "request/reply", "mixed"), versions=SIX),
]

CLIENTS = [pytest.param(three_cells(), id="three"), pytest.param(grid(), id="all", marks=pytest.mark.nightly)]
Clients = Sequence[Cell]

# --- the conditions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """A session of each client, under one condition. Its messages have the numbers from ``first`` on."""

    first: int
    scripts: dict[str, str]
    numbers: dict[str, list[int]]
    """The numbers that the service's handlers receive, by contract."""
    faults: Faults = field(default_factory=Faults)

    def expected(self, clients: Clients) -> dict[str, list[int]]:
        """The numbers that the service's handlers receive, by the client's key."""
        return {cell.key: self.numbers[cell.contract] for cell in clients}

    def received(self, ledger: Ledger) -> dict[str, list[int]]:
        """The numbers that they did receive."""
        return ledger.between(self.first, self.first + 100)


def condition(first: int, count: int, faults: Faults | None = None, pause: int = 0) -> Condition:
    """A session of ``count`` messages: the contract ``both`` mixes them. All pause after the first message."""
    one, half, last = first + 1, first + count // 2, first + count
    rest = f"sleep {pause}; " if pause else ""
    scripts = {
        "notify": f"open; notify {one}; {rest}notify {one + 1}..{last}; close",
        "echo": f"open; echo {one}; {rest}echo {one + 1}..{last}; close",
        "both": f"open; echo {one}; {rest}notify {one + 1}..{half}; echo {half + 1}..{last - 1}; notify {last}; close",
    }
    return Condition(first, scripts, {name: list(range(one, last + 1)) for name in scripts}, faults or Faults())


CLEAN = condition(100, 10)
TWICE = condition(200, 10, Faults(double=1.0))
SLOW = condition(300, 5)
SECONDS = {302: 1.0, 303: 8.0, 304: 25.0}
"""How long the handler of a message takes."""
ABORT = Condition(
    400,
    {
        "notify": "open; notify 401; abort",
        "echo": "open; echo 401; abort",
        "both": "open; notify 401; echo 402; abort",
    },
    {"notify": [401], "echo": [401], "both": [401, 402]},
)
LOSS = condition(500, 8, network.LOSS)
"""The last session of a client: no ``open`` follows, which would fail in such a network."""


def scripts_of(conditions: list[Condition]) -> dict[str, str]:
    """The sessions one after the other, by contract."""
    return {contract: "; ".join(one.scripts[contract] for one in conditions) for contract in conditions[0].scripts}


@dataclass(slots=True)
class Run:
    """What a run of the clients came to."""

    clients: Clients
    ledger: Ledger = field(default_factory=Ledger)
    said: dict[str, list[list[Line]]] = field(default_factory=dict)
    aborted: dict[str, str] = field(default_factory=dict)
    """The Sequences of messages before an abort, and whose they were."""
    left_open: list[str] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    kills: int = 0

    def note(self, message: holdfast.Message) -> int:
        """Enter a message into the ledger, and return its number."""
        self.ledger.note(key_of(message))
        key, number = key_of(message).split()
        if ABORT.first < int(number) < ABORT.first + 100:
            self.aborted[message.sequence] = key
        return int(number)

    def check(self, place: int, condition: Condition) -> None:
        """Assert that the session at this place met its condition."""
        assert {key: sessions[place] for key, sessions in self.said.items() if failures_in(sessions[place])} == {}
        assert len(self.said) == len(self.clients)
        assert condition.received(self.ledger) == condition.expected(self.clients)


def failures_in(lines: list[Line]) -> list[Line]:
    """The commands that failed. The client itself compares each reply with its call."""
    return [line for line in lines if "failed" in line]


async def all_handled(ledger: Callable[[], Ledger], conditions: list[Condition], clients: Clients) -> None:
    """Wait until the handlers have received every message. A message that is missing is for the tests to report."""
    with contextlib.suppress(TimeoutError):
        await until(lambda: all(one.received(ledger()) == one.expected(clients) for one in conditions))


def open_sequences(app: Inspected) -> list[str]:
    """The Sequences with messages that have not ended, or whose offered Sequence has not."""
    protocol = app.engine.protocol
    return [
        name
        for name, one in protocol.inbound.destinations.items()
        if one.accepted.count and (not one.is_over or one.offered in protocol.outbound.outboxes)
    ]


async def all_ended(left: Callable[[], list[str]]) -> list[str]:
    """Wait a minute at most until no Sequence is left open, and return those that are."""
    with contextlib.suppress(TimeoutError):
        await until(lambda: not left())
    return left()


# --- direct --------------------------------------------------------------------------------------------------------

DIRECT = [CLEAN, TWICE, SLOW, ABORT, LOSS]


async def run_direct(clients: Clients) -> Run:
    run = Run(clients)

    async def handled(message: holdfast.Message) -> None:
        await asyncio.sleep(SECONDS.get(run.note(message), 0.0))

    app = contract_app(":memory:", handled, handling=holdfast.HandlingPolicy(concurrency=64))
    async with running_destination(app) as url:
        # In such a network, eight repeats of one message may all get lost.
        run.said = await cells(url, scripts_of(DIRECT), [one.faults for one in DIRECT], clients, retries="50")
        await all_handled(lambda: run.ledger, DIRECT, clients)
        run.left_open = await all_ended(lambda: [name for name in open_sequences(app.running) if name in run.aborted])
        run.incidents = list(app.incidents)
    return run


@pytest.fixture(scope="module", params=CLIENTS)
def direct(request: pytest.FixtureRequest) -> Run:
    """The clients before one service, in a session under each of the conditions."""
    return asyncio.run(run_direct(request.param))


def test_every_message_of_every_client_arrives_once_and_in_order(direct: Run) -> None:
    direct.check(0, CLEAN)


@cell(network=Faults(double=1))
def test_every_request_that_is_served_twice_is_handled_once(direct: Run) -> None:
    direct.check(1, TWICE)


@cell(service="slow")
def test_operations_of_1_and_8_and_25_s_are_called_once_and_answered(direct: Run) -> None:
    direct.check(2, SLOW)


@cell(fault="the session aborted")
def test_clients_that_abort_leave_no_open_sequence(direct: Run) -> None:
    direct.check(3, ABORT)
    assert direct.left_open == [] and "sequence.lost" not in direct.incidents


@pytest.mark.nightly
@cell(network=LOSS.faults)
def test_with_a_fifth_of_requests_and_of_answers_lost_no_message_is_lost(direct: Run) -> None:
    direct.check(4, LOSS)


# --- processes that are killed -------------------------------------------------------------------------------------

KILL = condition(600, 40, pause=5)
"""Every client has its session when the first kill comes, and most are in the middle of their messages."""
AWAY = condition(700, 8, pause=15)
"""The calls behind the pause find the service away: the forty seconds begin when all have had their first answer."""
BROKER_KILL = condition(800, 40, pause=5)
"""The last session of a client: no ``open`` follows, which would fail while the broker is away."""

Victims = list[tuple[Condition, Process | None]]
"""The sessions of each client one after the other, and who is killed in each."""


@contextlib.contextmanager
def outages(directory: Path) -> Iterator[Outage]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        # A request waits for longer than the outage lasts, however long the processes take to start.
        yield Outage(directory, monkeypatch, "policy.expires = 240")


async def every_client_has_sent(outage: Outage, condition: Condition, clients: Clients, share: float) -> None:
    """Wait until the service has received the first message of every client, and this share of all messages."""
    total = share * sum(map(len, condition.expected(clients).values()))

    def is_reached() -> bool:
        received = condition.received(outage.ledger)
        return len(list(filter(None, received.values()))) == len(clients) and sum(map(len, received.values())) >= total

    await until(is_reached, 240)


async def run_with_outages(outage: Outage, first: Process, clients: Clients, victims: Victims) -> Run:
    """The clients before the ``first`` process while others are killed: twice in a session, when a quarter and when a
    half of its messages have arrived, or once for forty seconds."""
    run, conditions = Run(clients), [condition for condition, _ in victims]

    async def interfere() -> None:
        for condition, victim in victims:
            if victim is None:
                continue
            for share, seconds in [(0.0, 40.0)] if condition is AWAY else [(0.25, 1.0), (0.5, 1.0)]:
                await every_client_has_sent(outage, condition, clients, share)
                run.kills += 1
                await restart(victim, seconds)

    processes = [outage.service] if first is outage.service else [outage.service, outage.broker]
    async with outage.running(*processes):
        interfering = asyncio.create_task(interfere())
        run.said = await cells(first.url, scripts_of(conditions), clients=clients)
        with contextlib.suppress(TimeoutError):  # where a message is missing, which the tests report
            await asyncio.wait_for(interfering, 240)
        await all_handled(lambda: outage.ledger, conditions, clients)
        if first is outage.broker:
            run.left_open = await all_ended(lambda: left_open(outage))
    run.ledger = outage.ledger
    return run


def left_open(outage: Outage) -> list[str]:
    """The Sequences that are open at the broker, and those at the service that clients have aborted."""
    aborted = outage.sequences(ABORT.first, ABORT.first + 100)
    # The messages of clients without calls share Sequences, which the broker does not end.
    dedicated = {name for name, key in aborted.items() if not key.endswith("notify")}
    with outage.state("inbox") as service, outage.state("broker") as broker:
        return [name for name in open_sequences(service) if name in dedicated] + open_sequences(broker)


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.parametrize("clients", CLIENTS)
@cell(fault="Holdfast killed")
async def test_no_client_notices_that_the_service_is_killed(tmp_path: Path, clients: Clients) -> None:
    with outages(tmp_path) as outage:
        run = await run_with_outages(outage, outage.service, clients, [(KILL, outage.service)])
    run.check(0, KILL)
    assert run.kills == 2


@pytest.fixture(scope="module", params=CLIENTS)
def behind_the_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The clients before a broker: in the last session it is killed, in two before this the service behind it."""
    with outages(tmp_path_factory.mktemp("outages")) as outage:
        victims: Victims = [(CLEAN, None), (ABORT, None), (KILL, outage.service), (AWAY, outage.service)]
        victims.append((BROKER_KILL, outage.broker))
        return asyncio.run(run_with_outages(outage, outage.broker, request.param, victims))


@pytest.mark.nightly
@cell(broker="broker")
def test_through_a_broker_every_message_arrives_once_and_in_order(behind_the_broker: Run) -> None:
    behind_the_broker.check(0, CLEAN)


@pytest.mark.nightly
@cell(broker="broker", fault="the session aborted")
def test_through_a_broker_clients_that_abort_leave_no_open_sequence(behind_the_broker: Run) -> None:
    behind_the_broker.check(1, ABORT)
    assert behind_the_broker.left_open == []


@pytest.mark.nightly
@pytest.mark.crash
@cell(broker="broker", fault="the service killed, then away for 40 s")
def test_no_client_notices_a_service_behind_the_broker_killed_or_away_40_s(behind_the_broker: Run) -> None:
    behind_the_broker.check(2, KILL)
    behind_the_broker.check(3, AWAY)
    assert behind_the_broker.kills == 5


@pytest.mark.nightly
@pytest.mark.crash
@cell(broker="broker", fault="Holdfast killed")
def test_no_client_notices_that_the_broker_is_killed(behind_the_broker: Run) -> None:
    behind_the_broker.check(4, BROKER_KILL)
    assert behind_the_broker.kills == 5


# --- a contract of data contracts ----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def broker_before(url: str, directory: Path, policy: ForwardingPolicy | None = None) -> AsyncIterator[Broker]:
    """A broker that forwards to the service."""
    forwarder = ForwarderConfig("service", "inbox", url, policy=policy or ForwardingPolicy())
    listen, admin = ListenConfig(port=0), AdminConfig(port=0)
    broker = Broker(BrokerConfig(store=str(directory / "broker"), listen=listen, admin=admin, forwarders=(forwarder,)))
    await broker.service.start()
    try:
        yield broker
    finally:
        await broker.service.close(0.5)


ORDER_SCRIPT = (
    "open; submit 1; cancel 7; cancel 13; price apple; cancel 99; "
    "submit 2; price pear; cancel 8; submit 3; cancel 9; close"
)
HANDLED = ["submit 1", "cancel 2", "cancel 3", "price 4", "cancel 5", "cancel 8", "cancel 10"]


def check_orders(orders: Orders, said: dict[str, list[list[Line]]], unknown_actions: dict[str, str]) -> None:
    """Assert that each client had its answers: to void operations, for a typed fault and for the unknown actions."""
    failures = {key: failures_in(lines) for key, (lines,) in said.items()}
    expected = {"cancel 13": "FaultException"} | unknown_actions
    assert {
        key: {line["failed"]: line["exception"] for line in failed} for key, failed in failures.items()
    } == dict.fromkeys(said, expected)
    for typed, *unknown in failures.values():
        assert typed["typed"] and typed["said"] == "too late" and "it has left" in typed["detail"], typed
        assert all("No handler here takes the action" in line["said"] for line in unknown), unknown
    assert list(orders.called.values()) == [HANDLED] * len(said), "each operation once, each client in its order"


@pytest.mark.nightly
@cell(pattern="mixed", setup="orders")
async def test_void_operations_and_typed_faults_and_unknown_actions_reach_every_client() -> None:
    orders = Orders(clients=len(grid(["orders"])))
    async with running_destination(orders.app) as url:
        said = await cells(url, {"orders": ORDER_SCRIPT})
    exceptions = {
        "submit 2": "ProtocolException",
        "price pear": "ActionNotSupportedException",
        "submit 3": "ProtocolException",
    }
    check_orders(orders, said, exceptions)


@pytest.mark.nightly
@cell(broker="broker", pattern="mixed", setup="orders")
async def test_the_same_answers_reach_every_client_through_a_broker(tmp_path: Path) -> None:
    orders = Orders(clients=len(grid(["orders"])))
    policy = ForwardingPolicy(on_refused=OnRefused.DEAD_LETTER)
    async with running_destination(orders.app) as url, broker_before(url, tmp_path, policy) as broker:
        said = await cells(broker.service.url, {"orders": ORDER_SCRIPT})
    # The broker acknowledges a one-way message before the service refuses it, and makes it a dead letter.
    check_orders(orders, said, {"price pear": "ActionNotSupportedException"})
