"""What a broker does for requesters, and about what a service refuses: over real sockets, with a real store."""

from __future__ import annotations

import pytest
from waiting import until

import holdfast
from holdfast import Destination, SourcePolicy
from holdfast.broker.config import ForwarderConfig
from holdfast.core.policy import Assurance, ForwardingPolicy
from holdfast.core.retransmission import RetransmissionPolicy

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
            reply = await source.request(f"<say>{text}</say>", action=ECHO, timeout=60)
            assert reply.body.text == text
            reply.done()


async def test_what_a_service_refuses_is_a_letter_and_goes_to_it_again_when_somebody_says_so(run_broker, run_service):
    app, got = echoing(), []
    service = await run_service(app)
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", service.url, policy=HASTY),))
    destination = broker.destination
    async with holdfast.Source(broker.service.url, ":memory:", policy=SourcePolicy(retransmission=QUICK)) as source:
        await source.send("<order/>", action=ORDER)
        with pytest.raises(holdfast.PeerFault, match="No handler here takes the action"):
            (await source.request("<order/>", action=ORDER, timeout=60)).raise_for_fault()
        assert (await source.request("<say>on</say>", action=ECHO, timeout=60)).body.text == "on"
    await until(lambda: destination.dead_letters.count == 2)

    @app.on(ORDER)
    async def order(message: holdfast.Message) -> None:
        got.append(message.body_bytes)

    assert destination.forwarding.giving_up.requeue() == 2
    destination.engine.touch()
    await until(lambda: len(got) == 2)
    await until(lambda: destination.dead_letters.count == 0)
