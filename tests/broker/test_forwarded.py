"""What a broker does for requesters, and about what a service refuses: over real sockets, with a real store."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from waiting import until

import holdfast
from holdfast import Destination, SourcePolicy
from holdfast.broker.config import ForwarderConfig, RouteConfig
from holdfast.core.messages import ANONYMOUS, Expects
from holdfast.core.policy import Assurance, ForwardingPolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.endpoint.admin.metrics import DestinationCollector
from holdfast.testing.ports import free_ports

ECHO, ORDER = "urn:test:echo", "urn:test:order"
QUICK = RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.2)
HASTY = ForwardingPolicy(
    sending=SourcePolicy(retransmission=QUICK, assurance=Assurance.parse("exactly-once")), refusals=2, patience=0.1
)


def echoing() -> Destination:
    app = Destination(":memory:", assurance="exactly-once")

    @app.on(ECHO)
    async def echo(message: holdfast.Message) -> str:
        return f"<echoed>{message.body.text}</echoed>"

    return app


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
async def test_the_reply_of_a_service_comes_back_through_a_broker(run_broker, run_service, soap):
    service = await run_service(echoing())
    forwarder = ForwarderConfig("next", "inbox", service.url, soap=soap, policy=HASTY)
    broker = await run_broker(forwarders=(forwarder,))
    async with holdfast.Source(broker.service.url, ":memory:", policy=SourcePolicy(retransmission=QUICK)) as source:
        for text in ("one", "two"):
            reply = await source.request(f"<say>{text}</say>", action=ECHO, timeout=240)
            assert reply.body.text == text
            reply.done()


@pytest.mark.parametrize("rm", ["2003/03", "2004/03", "1.0", "1.1"])
@pytest.mark.parametrize("offer", [None, False])
async def test_a_reply_without_a_sequence_comes_back_like_any_other(run_broker, run_service, rm, offer):
    service = await run_service(echoing())
    forwarder = ForwarderConfig("next", "inbox", service.url, rm=rm, offer=offer, policy=HASTY)
    broker = await run_broker(forwarders=(forwarder,))
    policy = SourcePolicy(retransmission=QUICK)
    async with holdfast.Source(broker.service.url, ":memory:", policy=policy, offer=True) as source:
        reply = await source.request("<say>one</say>", action=ECHO, timeout=240)
        assert reply.body.text == "one"


def plain_request(url: str, content: str, header: str = "") -> httpx.Response:
    """POST an envelope, as a client does that knows nothing of a ReplyTo."""
    envelope = (
        '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
        f'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"><s:Header><a:To>{url}</a:To>'
        f"{header}</s:Header><s:Body>{content}</s:Body></s:Envelope>"
    )
    headers = {"content-type": "application/soap+xml; charset=utf-8"}
    return httpx.post(url, content=envelope, headers=headers, timeout=240)


def create_sequence(url: str) -> str:
    """Return the Identifier of a Sequence that such a client creates, without an Offer."""
    created = plain_request(
        url,
        f"<r:CreateSequence><r:AcksTo><a:Address>{ANONYMOUS}</a:Address></r:AcksTo></r:CreateSequence>",
        "<a:Action>http://docs.oasis-open.org/ws-rx/wsrm/200702/CreateSequence</a:Action>"
        "<a:MessageID>urn:c</a:MessageID>",
    )
    return re.search(r"Identifier>([^<]+)<", created.text)[1]


async def test_a_sender_without_an_offer_is_acknowledged_while_the_destination_is_away(run_broker):
    (away,) = free_ports(1)
    forwarder = ForwarderConfig("next", "inbox", f"http://127.0.0.1:{away}/", rm="1.1", offer=False, policy=HASTY)
    url = (await run_broker(forwarders=(forwarder,))).service.url
    identifier = await asyncio.to_thread(create_sequence, url)
    header = (
        f"<a:Action>{ECHO}</a:Action><a:MessageID>urn:m:1</a:MessageID><a:ReplyTo><a:Address>{ANONYMOUS}</a:Address>"
        f"</a:ReplyTo><r:Sequence><r:Identifier>{identifier}</r:Identifier><r:MessageNumber>1</r:MessageNumber>"
        "</r:Sequence>"
    )
    answer = await asyncio.to_thread(plain_request, url, "<say>on</say>", header)
    assert answer.status_code == 200 and 'Upper="1"' in answer.text


@pytest.mark.parametrize("expects", [None, Expects.REQUEST, Expects.ONE_WAY])
async def test_a_request_without_a_reply_to_gets_its_reply_as_its_route_says(run_broker, run_service, expects):
    service = await run_service(echoing())
    forwarder = ForwarderConfig("next", "inbox", service.url, policy=HASTY)
    broker = await run_broker(forwarders=(forwarder,), routes=(RouteConfig(("inbox",), expects=expects),))
    url = broker.service.url
    identifier = await asyncio.to_thread(create_sequence, url)
    header = (
        f"<a:Action>{ECHO}</a:Action><a:MessageID>urn:m:1</a:MessageID><r:Sequence><r:Identifier>{identifier}"
        "</r:Identifier><r:MessageNumber>1</r:MessageNumber></r:Sequence>"
    )

    async def ask() -> bool:
        """Ask once; whether the answer is the reply. It acknowledges the request in any case."""
        answer = await asyncio.to_thread(plain_request, url, "<say>on</say>", header)
        assert answer.status_code == 200 and 'Upper="1"' in answer.text
        return "<echoed>on</echoed>" in answer.text

    assert await ask() is (expects is Expects.REQUEST)
    (outbox,) = [
        one
        for one in broker.destination.running.engine.protocol.outbound.outboxes.values()
        if one.forwarding is not None and one.records.queue.records.ends[one.records.partition]
    ]
    await until(lambda: outbox.records.is_empty)
    assert await ask() is (expects is not Expects.ONE_WAY)


async def test_a_message_that_the_service_refuses_is_a_dead_letter_to_be_retried(run_broker, run_service):
    app, got = echoing(), []
    service = await run_service(app)
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", service.url, policy=HASTY),))
    destination = broker.destination
    async with holdfast.Source(broker.service.url, ":memory:", policy=SourcePolicy(retransmission=QUICK)) as source:
        await source.send("<order/>", action=ORDER)
        with pytest.raises(holdfast.PeerFault, match="No handler here takes the action"):
            (await source.request("<order/>", action=ORDER, timeout=240)).raise_for_fault()
        assert (await source.request("<say>on</say>", action=ECHO, timeout=240)).body.text == "on"
    await until(lambda: destination.running.dead_letters.count == 1)  # the request has its fault
    counted = [
        one for one in DestinationCollector(destination.running).collect() if one.name == "holdfast_dead_letters"
    ]
    assert [sample.value for one in counted for sample in one.samples if sample.name.endswith("_total")] == [1]

    @app.on(ORDER)
    async def order(message: holdfast.Message) -> None:
        got.append(message.body_bytes)

    assert destination.running.giving_up.requeue() == 1
    destination.running.engine.touch()
    await until(lambda: len(got) == 1)
    await until(lambda: destination.running.dead_letters.count == 0)
