"""A broker between peers of WS-RM 2003/03, 2004/03 and later, over real sockets that lose messages."""

from __future__ import annotations

import pytest
from waiting import until

import holdfast
from holdfast import Destination, SourcePolicy, Versions
from holdfast.broker.config import ForwarderConfig
from holdfast.core.policy import Assurance, ForwardingPolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import ALL_VERSIONS
from holdfast.testing.proxy import Faults, LossyProxy

QUICK = RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.2)
HASTY = ForwardingPolicy(sending=SourcePolicy(retransmission=QUICK, assurance=Assurance.parse("exactly-once in-order")))
LOSSY = Faults(lose_request=0.1, lose_response=0.1, double=0.1)


async def bridge(run_broker, run_service, requester: Versions, service: Versions) -> None:
    """Send one-way messages and requests through a broker to a service, and check that each arrives once."""
    got: list[str] = []
    app = Destination(":memory:", assurance="exactly-once in-order")

    @app.on("urn:test:order")
    async def order(message: holdfast.Message) -> None:
        got.append(message.body.text)

    @app.on("urn:test:echo")
    async def echo(message: holdfast.Message) -> str:
        got.append(message.body.text)
        return f"<echoed>{message.body.text}</echoed>"

    target = await run_service(app)
    async with LossyProxy(target.url, LOSSY, seed=1) as behind:
        spoken = {"rm": service.rm.value, "addressing": service.addressing.value, "soap": service.soap.value}
        forwarder = ForwarderConfig("next", "inbox", behind.url, policy=HASTY, **spoken)
        broker = await run_broker(forwarders=(forwarder,), partitions=1)
        async with LossyProxy(broker.service.url, LOSSY, seed=2) as before:
            policy = SourcePolicy(retransmission=QUICK)
            async with holdfast.Source(before.url, ":memory:", versions=requester, policy=policy) as source:
                for number in range(5):
                    await source.send(f"<order>{number}</order>", action="urn:test:order")
                for text in ("one", "two"):
                    reply = await source.request(f"<say>{text}</say>", action="urn:test:echo", timeout=240)
                    assert reply.body.text == text
                    reply.done()
            await until(lambda: len(got) >= 7)
    assert sorted(got) == sorted([*map(str, range(5)), "one", "two"])
    assert {one.versions for one in app.running.engine.protocol.inbound.destinations.values()} == {service}


@pytest.mark.parametrize(
    ("requester", "service"),
    [
        (Versions("2003/03", soap="1.1"), Versions("1.1")),
        (Versions("1.1"), Versions("2003/03", soap="1.1")),
        (Versions("2004/03", "2004/03"), Versions("2003/03")),
        (Versions("1.0", "2004/08"), Versions("2004/03")),
    ],
    ids=lambda one: one.in_words,
)
async def test_a_broker_passes_messages_and_replies_between_early_and_later_versions(
    run_broker, run_service, requester: Versions, service: Versions
) -> None:
    await bridge(run_broker, run_service, requester, service)


@pytest.mark.nightly
@pytest.mark.parametrize("service", ALL_VERSIONS, ids=lambda one: one.in_words)
@pytest.mark.parametrize("requester", ALL_VERSIONS, ids=lambda one: one.in_words)
async def test_a_broker_passes_messages_and_replies_between_any_two_versions(
    run_broker, run_service, requester: Versions, service: Versions
) -> None:
    await bridge(run_broker, run_service, requester, service)
