"""A broker between a client that polls and a slow service that the broker polls."""

from __future__ import annotations

import asyncio
from typing import Any

from waiting import until

import holdfast
from holdfast.broker.config import ForwarderConfig
from holdfast.core.policy import ForwardingPolicy, PollingPolicy, SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy

ECHO = "urn:test:echo"
STEADY = SourcePolicy(
    retransmission=RetransmissionPolicy(initial=600.0, floor=600.0, cap=600.0),
    polling=PollingPolicy(first=0.02, cap=0.2),
)
"""No request is repeated while a test runs, so its reply can only come by a poll."""


def slow_service() -> tuple[holdfast.Destination, asyncio.Event, list[str]]:
    app, may_reply, handled = holdfast.Destination(":memory:"), asyncio.Event(), []

    @app.on(ECHO)
    async def echo(message: holdfast.Message) -> str:
        handled.append(message.body.text)
        await may_reply.wait()
        return f"<echoed>{message.body.text}</echoed>"

    return app, may_reply, handled


async def test_late_replies_pass_through_a_broker_that_polls_to_a_client_that_polls(
    run_broker: Any, run_service: Any
) -> None:
    app, may_reply, handled = slow_service()
    service = await run_service(app)
    forwarder = ForwarderConfig("next", "inbox", service.url, poll=True, policy=ForwardingPolicy(sending=STEADY))
    broker = await run_broker(forwarders=(forwarder,))
    polled = app.running.engine.protocol.outbound.context.mailboxes
    async with holdfast.Source(
        broker.service.url, ":memory:", http=holdfast.SourceHTTP(poll=True), policy=STEADY
    ) as source:
        asking = [asyncio.ensure_future(source.request(f"<say>{n}</say>", action=ECHO)) for n in range(3)]
        await until(lambda: handled and any(box.polled_at is not None for box in polled))
        may_reply.set()
        replies = await asyncio.gather(*asking)
        assert sorted(reply.body.text for reply in replies) == ["0", "1", "2"]
    assert len(list(polled)) == 1, "the Sequences of a forwarder share an address"
    assert sorted(handled) == ["0", "1", "2"]
