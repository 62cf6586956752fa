"""Sources that poll a real destination: late replies, loss, kills of either side, and destinations without polls."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast import (
    ConfigurationError,
    DeliveryError,
    Destination,
    MessageContext,
    Processor,
    RetransmissionPolicy,
    Source,
    SourceHTTP,
    SourcePolicy,
    Versions,
)
from holdfast.core.messages import CreateSequence, CreateSequenceResponse, Envelope, Fault, MakeConnection, is_polled
from holdfast.core.origin import with_secret
from holdfast.core.policy import PollingPolicy
from holdfast.core.versions import ALL_VERSIONS
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.wire import content_type, decode, encode

ACTION = "urn:test:price"
POLLING = SourceHTTP(poll=True)
QUICK = SourcePolicy(
    retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.3), polling=PollingPolicy(first=0.02, cap=0.2)
)
EVERY_VERSION = pytest.mark.parametrize(
    "versions", [v for v in ALL_VERSIONS if v.rm.can.negotiates], ids=lambda v: f"{v.rm}-{v.addressing}-{v.soap}"
)


class Seen(Processor):
    """Counts polls, and their answers with content; notes the addresses in polls and requests."""

    def __init__(self) -> None:
        self.polls = 0
        self.brought = 0
        self.addresses: set[str] = set()

    def outbound(self, context: MessageContext) -> None:
        control, reply_to = context.envelope.control, context.envelope.reply_to
        if reply_to is not None:
            self.addresses.add(reply_to.address)
        if isinstance(control, MakeConnection):
            self.polls += 1
            self.addresses.add(control.address)
            context.notes["poll"] = True

    def inbound(self, context: MessageContext) -> None:
        self.brought += "poll" in context.notes


def slow_shop(store: Any = ":memory:") -> tuple[Destination, asyncio.Event, list[str]]:
    """A service that replies once the event is set."""
    app, may_reply, handled = Destination(store), asyncio.Event(), []

    @app.on(ACTION)
    async def price(message: Any) -> str:
        handled.append(message.body.text)
        await may_reply.wait()
        return f"<price>{message.body.text}</price>"

    return app, may_reply, handled


EACH_OFFER = pytest.mark.parametrize("offer", [None, False], ids=["offer", "no offer"])
"""Without an Offer, the destination creates the Sequence of the replies, and the source gets that request by a poll."""


@EACH_OFFER
@EVERY_VERSION
async def test_replies_that_come_late_arrive_by_polls(serve: Any, versions: Versions, offer: bool | None) -> None:
    app, may_reply, handled = slow_shop()
    seen = Seen()
    url = (await serve(app)).url
    # No request is repeated while this test runs, so its reply can only come by a poll.
    policy = SourcePolicy(
        retransmission=RetransmissionPolicy(initial=600.0, floor=600.0, cap=600.0), polling=QUICK.polling
    )
    options: dict[str, Any] = {"http": POLLING, "policy": policy, "processors": [seen], "offer": offer}
    async with Source(url, ":memory:", versions=versions, **options) as source:
        asking = [asyncio.ensure_future(source.request(f"<n>{i}</n>", action=ACTION)) for i in range(3)]
        await until(lambda: handled and seen.polls > 2)
        may_reply.set()
        replies = await asyncio.gather(*asking)
        assert [reply.body.text for reply in replies] == ["0", "1", "2"]
        assert seen.brought >= 3 and len(seen.addresses) == 1 and is_polled(*seen.addresses)


@EACH_OFFER
async def test_every_reply_arrives_once_through_a_network_that_loses_messages(
    serve: Any, tmp_path: Path, offer: bool | None
) -> None:
    app, may_reply, handled = slow_shop(tmp_path / "inbox")
    may_reply.set()
    url = (await serve(app)).url
    faults = Faults(lose_request=0.2, lose_response=0.2, double=0.1)
    async with (
        LossyProxy(url, faults, seed=5) as proxy,
        Source(proxy.url, tmp_path / "outbox", http=POLLING, policy=QUICK, offer=offer) as source,
    ):
        replies = await asyncio.gather(*(source.request(f"<n>{i}</n>", action=ACTION) for i in range(12)))
        assert [reply.body.text for reply in replies] == [str(i) for i in range(12)]
        await source.flush(60)
    assert sorted(handled, key=int) == [str(i) for i in range(12)]


async def test_polled_replies_are_acknowledged_only_at_the_service_that_it_sends_to(serve: Any) -> None:
    url = (await serve(Destination(":memory:"))).url
    async with Source(url, ":memory:", http=POLLING) as source:
        allows = source._running._is_the_service
        assert allows(with_secret(url, "s")) and allows(with_secret(url, "t"))
        for other in (url, f"{url}other?holdfast=s", f"{url}?holdfast=s&a=b", "http://other.test/?holdfast=s", ""):
            assert not allows(other), other


async def test_an_idle_source_without_an_offer_polls_nothing(serve: Any) -> None:
    app, seen = Destination(":memory:"), Seen()

    @app.on("urn:test:submit")
    async def submit(_message: Any) -> None:
        pass

    url = (await serve(app)).url
    # The first poll is due long after the acknowledgement, also on a busy machine.
    policy = replace(QUICK, polling=PollingPolicy(first=60.0, cap=60.0))
    async with Source(url, ":memory:", offer=False, http=POLLING, policy=policy, processors=[seen]) as source:
        await (await source.send("<n>1</n>", action="urn:test:submit")).acknowledged(60)
        await until(lambda: source._opened.engine.protocol.outbound.context.pollers.deadline() is None)
    assert seen.polls == 0


# --- kills ------------------------------------------------------------------------------------------------------------

CLIENT = """
import asyncio, sys
import holdfast

async def main():
    async with holdfast.Source(sys.argv[1], store=sys.argv[2], http=holdfast.SourceHTTP(poll=True)) as source:
        await source.request("<n>7</n>", action="urn:test:price", message_id="urn:asked", timeout=None)

asyncio.run(main())
"""

SERVICE = """
import asyncio, pathlib, sys
import holdfast
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service

place = pathlib.Path(sys.argv[1])
app = holdfast.Destination(place / "inbox")

@app.on("urn:test:price")
async def price(message):
    (place / "handled").touch()
    while not (place / "may reply").exists():
        await asyncio.sleep(0.01)
    return f"<price>{message.body.text}</price>"

async def main():
    await Service(app, Listeners(port=int(sys.argv[2]))).start()
    print("listening", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def start(program: str, *arguments: str) -> asyncio.subprocess.Process:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, env=environment, stdout=asyncio.subprocess.PIPE
    )


@pytest.mark.crash
async def test_a_client_killed_before_its_reply_gets_it_in_its_next_run(serve: Any, tmp_path: Path) -> None:
    app, may_reply, handled = slow_shop(tmp_path / "inbox")
    url = (await serve(app)).url
    client = await start(CLIENT, url, str(tmp_path / "outbox"))
    mailboxes = app.running.engine.protocol.outbound.context.mailboxes
    await until(lambda: handled and any(box.polled_at is not None for box in mailboxes))
    (address,) = [box.address for box in mailboxes]
    client.send_signal(signal.SIGKILL)
    await client.wait()
    may_reply.set()
    seen = Seen()
    policy = SourcePolicy(
        retransmission=RetransmissionPolicy(initial=600.0, floor=600.0, cap=600.0), polling=QUICK.polling
    )
    async with Source(url, tmp_path / "outbox", http=POLLING, policy=policy, processors=[seen]) as source:
        reply = await source.reply("urn:asked", timeout=60)
        assert reply.body.text == "7"
        reply.done()
    assert seen.addresses == {address} and handled == ["7"]


@pytest.mark.crash
async def test_a_service_killed_before_its_reply_gives_it_at_a_poll_after_its_restart(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    service = await start(SERVICE, str(tmp_path), str(port))
    try:
        assert service.stdout is not None
        await service.stdout.readline()
        async with Source(url, tmp_path / "outbox", http=POLLING, policy=QUICK) as source:
            asking = asyncio.ensure_future(source.request("<n>7</n>", action=ACTION))
            await until(lambda: (tmp_path / "handled").exists())
            service.send_signal(signal.SIGKILL)
            await service.wait()
            (tmp_path / "may reply").touch()
            service = await start(SERVICE, str(tmp_path), str(port))
            assert (await asking).body.text == "7"
    finally:
        service.kill()
        await service.wait()


# --- destinations without polls, and settings -------------------------------------------------------------------------


async def test_a_destination_that_does_not_know_makeconnection_is_a_clear_error() -> None:
    def handle(exchange: Exchange) -> None:
        envelope = decode(exchange.request.body)
        answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, relates_to=envelope.message_id)
        if isinstance(envelope.control, CreateSequence):
            answer.control = CreateSequenceResponse("urn:s:1")
        elif isinstance(envelope.control, MakeConnection):
            answer.fault = Fault("ActionNotSupported", "The action cannot be processed.", is_addressing=True)
        else:
            exchange.respond(202, b"", b"")
            return
        exchange.respond(500 if answer.fault else 200, encode(answer), content_type(envelope.soap).encode())

    server = HTTPServer()
    await server.start(handle, "127.0.0.1", 0)
    try:
        source = Source(f"http://127.0.0.1:{server.port}/", ":memory:", offer=False, http=POLLING, policy=QUICK)
        await source.open()
        with pytest.raises(DeliveryError) as raised:
            await source.request("<n>1</n>", action=ACTION)
        await source.close(0.0)
    finally:
        await server.close()
    assert "does not answer polls (WS-MakeConnection): ActionNotSupported" in raised.value.message
    assert "Enable MakeConnection there" in raised.value.remedy and "omit poll" in raised.value.remedy


def test_a_source_cannot_both_listen_and_poll() -> None:
    with pytest.raises(ConfigurationError, match="listen and poll are both set"):
        SourceHTTP(listen=("127.0.0.1", 0), poll=True)
    with pytest.raises(ConfigurationError, match="poll"):
        SourceHTTP(poll="yes")  # type: ignore[arg-type]
