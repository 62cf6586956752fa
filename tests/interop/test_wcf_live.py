"""Microsoft's own WCF client in front of our destination, one at a time.

By default in one combination for each version of WS-ReliableMessaging: ``test_wcf_live_grid`` has the clean sessions,
the requests served twice, the orders and the broker in every combination, most of them nightly. Nothing else has a
broker whose service speaks other versions than the client; its other combinations are nightly.

``WCF_CLIENT`` names the program; without it all of this is skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from interop_cells import cell
from waiting import until
from wcf.destination import contract_app, key_of, running_destination, text_of
from wcf.grids import each_version
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.network import LOSS, changing_network
from wcf.wire import Profile

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.timeout(900),
    needs_the_client,
    cell(peer="WCF", role="destination"),
]

ORDERS = "http://tempuri.org/IOrders"
PROBLEM = "http://schemas.example.org/orders"


class Orders:
    """The service behind the contract ``orders``, and what its operations were called with."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.app = app = holdfast.Destination(":memory:")

        @app.on(f"{ORDERS}/Submit")
        async def submit(message: holdfast.Message) -> None:
            self._note("submit", message)

        @app.on(f"{ORDERS}/Price")
        async def price(message: holdfast.Message) -> str:
            self._note("price", message)
            return '<PriceResponse xmlns="http://tempuri.org/"><PriceResult>12.50</PriceResult></PriceResponse>'

        @app.on(f"{ORDERS}/Cancel")
        def cancel(message: holdfast.Message) -> None:
            self._note("cancel", message)
            if message.body.findtext("{*}id") == "13":
                detail = f'<Problem xmlns="{PROBLEM}"><Id>13</Id><Reason>it has left</Reason></Problem>'
                raise holdfast.ApplicationFault("too late", subcode=f"{{{PROBLEM}}}TooLate", detail=detail)

    def _note(self, name: str, message: holdfast.Message) -> None:
        self.called.append(f"{name} {message.message_number}")


def assert_typed(line: dict[str, Any], profile: Profile) -> None:
    """The client got the fault of ``cancel 13`` as its contract declares it, with the service's own code."""
    assert (line["failed"], line["exception"], line["typed"]) == ("cancel 13", "FaultException", True)
    assert line["said"] == "too late" and "it has left" in line["detail"]
    codes = ("Sender", "TooLate") if profile.soap == "1.2" else ("TooLate", None)
    assert (line["code"], line["subcode"]) == codes


@each_version
@cell(pattern="mixed")
async def test_one_way_messages_and_calls_of_one_session_arrive_once_and_in_order(profile: Profile) -> None:
    handled: list[tuple[int, str]] = []
    app = contract_app(":memory:", lambda message: handled.append((message.message_number, text_of(message)[:10])))
    async with running_destination(app) as url:
        client = LiveWCFClient(url, contract="both", **versions_of(profile))
        said = await client.run("open; notify 1..3; echo 4..6; notify 7; echo 8; close")
    assert client.failed == []
    assert [line["answer"] for line in said if str(line["ok"]).startswith("echo")] == [4, 5, 6, 8]
    assert [number for number, _ in handled] == list(range(1, 9))
    assert [one.is_kept_alive for one in app.running.engine.protocol.inbound.destinations.values()] == [True]


@each_version
@cell(pattern="mixed", setup="orders: a void operation, a typed fault")
async def test_an_operation_that_returns_nothing_and_a_typed_fault_reach_the_client(profile: Profile) -> None:
    orders = Orders()
    async with running_destination(orders.app) as url:
        client = LiveWCFClient(url, contract="orders", **versions_of(profile))
        said = await client.run("open; submit 1; cancel 7; cancel 13; price apple; close")
    (refused,) = client.failed
    assert_typed(refused, profile)
    assert [line["ok"] for line in said if "ok" in line] == ["open", "submit 1", "cancel 7", "price apple", "close"]
    assert orders.called == ["submit 1", "cancel 2", "cancel 3", "price 4"], "nobody called again"


@each_version
@cell(pattern="mixed", setup="orders: a one-way operation whose handler returns a text")
async def test_a_handler_that_returns_a_text_makes_no_request_of_a_one_way_operation(profile: Profile) -> None:
    orders = Orders()
    del orders.app.settings.table.handlers[f"{ORDERS}/Submit"]

    @orders.app.on(f"{ORDERS}/Submit")
    async def submit(message: holdfast.Message) -> str:
        orders._note("submit", message)
        return "<SubmitResponse xmlns='http://tempuri.org/'/>"

    async with running_destination(orders.app) as url:
        client = LiveWCFClient(url, contract="orders", **versions_of(profile))
        await client.run("open; submit 1; price apple; submit 2; close")
    assert client.failed == []
    assert orders.called == ["submit 1", "price 2", "submit 3"]


@pytest.mark.parametrize("binding", [pytest.param("ws", marks=pytest.mark.nightly), "ws2007"])
@cell(pattern="mixed", setup="the bindings of the guide")
async def test_the_bindings_of_the_guide_do_what_it_says(binding: str) -> None:
    orders = Orders()
    async with running_destination(orders.app) as url:
        client = LiveWCFClient(url, contract="orders", binding=binding)
        await client.run("open; submit 1; price bread; cancel 13; close")
    (refused,) = client.failed
    assert (refused["failed"], refused["typed"]) == ("cancel 13", True)
    assert orders.called == ["submit 1", "price 2", "cancel 3"]


@each_version
@cell(pattern="mixed", setup="orders: unknown actions")
async def test_an_operation_that_nobody_handles_is_refused_and_the_session_continues(profile: Profile) -> None:
    orders = Orders()
    del orders.app.settings.table.handlers[f"{ORDERS}/Submit"], orders.app.settings.table.handlers[f"{ORDERS}/Price"]
    async with running_destination(orders.app) as url:
        client = LiveWCFClient(url, contract="orders", **versions_of(profile))
        said = await client.run("open; submit 1; cancel 7; price apple; cancel 8; submit 2; cancel 9; close")
    assert [line["failed"] for line in client.failed] == ["submit 1", "price apple", "submit 2"]
    exceptions = {line["failed"].split()[0]: line["exception"] for line in client.failed}
    assert exceptions == {"submit": "ProtocolException", "price": "ActionNotSupportedException"}
    assert all("No handler here takes the action" in line["said"] for line in client.failed)
    assert [line["ok"] for line in said if "ok" in line] == ["open", "cancel 7", "cancel 8", "cancel 9", "close"]
    assert orders.called == ["cancel 2", "cancel 4", "cancel 6"]


@contextlib.asynccontextmanager
async def broker_before(url: str, store: Path, **told: Any) -> AsyncIterator[str]:
    """A broker that forwards to a service; gives its URL."""
    forwarder = ForwarderConfig("service", "inbox", url, **told)
    listen, admin = ListenConfig(port=0), AdminConfig(port=0)
    broker = Broker(BrokerConfig(store=str(store), listen=listen, admin=admin, forwarders=(forwarder,)))
    await broker.service.start()
    try:
        yield broker.service.url
    finally:
        await broker.service.close(0.5)


@each_version
@pytest.mark.parametrize(
    "service",
    [
        pytest.param({}, id="any", marks=pytest.mark.nightly),
        pytest.param({"rm": "1.0", "addressing": "2004/08", "soap": "1.1"}, id="old"),
    ],
)
@cell(broker="broker", pattern="mixed", setup="orders")
async def test_orders_through_a_broker_are_answered_as_without_one(
    profile: Profile, service: dict[str, str], tmp_path: Path
) -> None:
    orders = Orders()
    del orders.app.settings.table.handlers[f"{ORDERS}/Price"]
    async with running_destination(orders.app) as url, broker_before(url, tmp_path / "broker", **service) as broker:
        client = LiveWCFClient(broker, contract="orders", **versions_of(profile))
        said = await client.run("open; submit 1; cancel 7; cancel 13; price apple; cancel 8; close")
    problem, unknown = client.failed
    assert_typed(problem, profile)
    assert (unknown["failed"], unknown["exception"]) == ("price apple", "ActionNotSupportedException")
    assert "No handler here takes the action" in unknown["said"]
    assert [line["ok"] for line in said if "ok" in line] == ["open", "submit 1", "cancel 7", "cancel 8", "close"]
    assert [called.split()[0] for called in orders.called] == ["submit", "cancel", "cancel", "cancel"]


@each_version
@pytest.mark.parametrize(
    "script", [pytest.param("notify 1; abort", marks=pytest.mark.nightly), "notify 1; echo 2; abort"]
)
@cell(fault="the session aborted")
async def test_a_client_that_aborts_leaves_no_open_sequence(profile: Profile, script: str) -> None:
    app = contract_app(":memory:", lambda message: None)
    async with running_destination(app) as url:
        contract = "both" if "echo" in script else "notify"
        client = LiveWCFClient(url, contract=contract, **versions_of(profile))
        await client.run(f"open; {script}")
        protocol = app.running.engine.protocol
        await until(lambda: [one.is_over for one in protocol.inbound.destinations.values()] == [True])
        assert protocol.outbound.outboxes == {}
        assert app.incidents == {"sequence.created": 1, "sequence.terminated": 1}, "one line tells of it"
    assert client.failed == []


@each_version
@cell(pattern="mixed", fault="the client killed")
async def test_a_two_way_client_that_was_killed_leaves_no_open_sequence(profile: Profile) -> None:
    app = contract_app(":memory:", lambda message: None, policy=holdfast.DestinationPolicy(keep_alive_timeout=1.0))
    async with running_destination(app) as url:
        await killed(LiveWCFClient(url, contract="both", **versions_of(profile)), "open; notify 1; echo 2; die")
        protocol = app.running.engine.protocol
        await until(lambda: [one.is_over for one in protocol.inbound.destinations.values()] == [True])
        assert protocol.inbound.sequences.shares.open_count == 0


async def killed(client: LiveWCFClient, script: str) -> None:
    """Run a script whose last command kills the client."""
    with contextlib.suppress(AssertionError):
        await client.run(script)


@each_version
@pytest.mark.nightly
@cell(pattern="request/reply", fault="the client waits longer than its keep-alive time")
async def test_a_two_way_client_that_only_waits_keeps_its_session(profile: Profile) -> None:
    app = contract_app(":memory:", lambda message: None, policy=holdfast.DestinationPolicy(keep_alive_timeout=6.0))
    async with running_destination(app) as url:
        client = LiveWCFClient(url, contract="both", inactivity="6", **versions_of(profile))
        await client.run("open; echo 1; sleep 15; echo 2; close")
    assert client.failed == []


async def run_over_a_bad_network(profile: Profile, faults: Faults, script: str, contract: str = "both") -> Any:
    """The client's run through a proxy that loses and doubles once the session is open, and the numbers that were
    handled. The client itself gives up an ``open`` whose connection is cut."""
    handled: list[int] = []
    app = contract_app(":memory:", lambda message: handled.append(message.message_number))
    (port,) = free_ports(1)

    async with running_destination(app, port) as url, changing_network(url, [faults], seed=7) as proxy:
        client = LiveWCFClient(proxy.url, contract=contract, **versions_of(profile))
        await client.run(script)
    return client, handled


@each_version
@pytest.mark.nightly
@cell(pattern="mixed", network=LOSS)
async def test_with_a_fifth_of_requests_and_of_answers_lost_nothing_is_lost_or_doubled(profile: Profile) -> None:
    client, handled = await run_over_a_bad_network(profile, LOSS, "open; notify 1..10; echo 11..20; close")
    assert client.failed == []
    assert handled == list(range(1, 21))


@each_version
@pytest.mark.nightly
@cell(broker="broker", pattern="mixed", network=LOSS)
async def test_through_a_broker_nothing_is_lost_with_a_fifth_lost_on_each_leg(profile: Profile, tmp_path: Path) -> None:
    """The proxy before the broker loses a message three times in a row at most, see ``wcf.network``."""
    handled: list[str] = []
    app = contract_app(":memory:", lambda message: handled.append(key_of(message)))
    async with (
        running_destination(app) as url,
        LossyProxy(url, LOSS, seed=11) as behind,
        broker_before(behind.url, tmp_path / "broker") as broker,
        changing_network(broker, [LOSS], seed=7) as before,
    ):
        client = LiveWCFClient(before.url, contract="both", retries="50", **versions_of(profile))
        await client.run("open; notify 1..10; echo 11..20; close")
        await until(lambda: len(handled) >= 20)
        lost = before.counts.lost, behind.counts.lost
    assert client.failed == []
    assert min(lost) > 0
    assert handled == [f"wcf {number}" for number in range(1, 21)]


@each_version
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("contract", "script"),
    [
        ("notify", "open; notify 1..10; close"),
        ("echo", "open; echo 1..10; close"),
        ("both", "open; notify 1..5; echo 6..10; close"),
        ("both", "open; echo 1..5; notify 6..10; close"),
    ],
    ids=["one-way", "two-way", "one-way first", "two-way first"],
)
@cell(network=Faults(double=1))
async def test_every_request_served_twice_is_handled_once(profile: Profile, contract: str, script: str) -> None:
    client, handled = await run_over_a_bad_network(profile, Faults(double=1.0), script, contract)
    assert client.failed == []
    assert handled == list(range(1, 11))
