"""Outboxes: what becomes of the requests that an operator discards."""

from __future__ import annotations

import pytest

from holdfast.core.steering import Steering
from holdfast.endpoint.admin.stopped import StoppedStore
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.envelopes.fault_replies import set_aside
from holdfast.endpoint.sending.outboxes import Outboxes
from tests.support.chain import SERVICE, WAYS, Chain


def asked(way: str) -> Chain:
    """A chain in which two requests and a one-way message wait for a service that is away."""
    chain = Chain(**WAYS[way])
    chain.service.is_up = False
    chain.ask("one")
    chain.ask("two", wants_reply=False)
    chain.ask("three")
    chain.go(5.0)
    assert [record.body for record in chain.broker.kept] == [b"one", b"two", b"three"]
    return chain


class Stopped(Clock):
    """A clock that stands still."""

    def __init__(self, now: float) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now


def discard(chain: Chain, *offsets: int, is_running: bool = True) -> None:
    broker = chain.broker
    if is_running:
        protocol = broker.protocol
    else:
        broker.kill()  # it starts when time passes
        protocol = StoppedStore(broker.store, Stopped(chain.now)).engine.protocol
    outboxes = Outboxes(protocol.outbound, broker.store.read, lambda: protocol.replies)
    for offset in offsets:
        name = f"forward/x/0/{offset}"
        outboxes.discard(name, outboxes.read(name), chain.now)
    if not is_running:
        broker.store.commit(protocol.take_batch())
    else:
        broker.settle()


def told(chain: Chain) -> list[str | None]:
    """Which requests were answered with the fault that says that they are set aside."""
    assert all("it has been set aside" in said for _, said in chain.replies), chain.replies
    return sorted(str(message_id) for message_id, _ in chain.replies)


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_the_requester_of_a_discarded_request_gets_a_fault(way: str, is_running: bool) -> None:
    chain = asked(way)
    discard(chain, 0, 1, 2, is_running=is_running)
    chain.go(200.0)
    assert told(chain) == ["urn:m:one", "urn:m:three"]
    assert chain.outbox.records.is_empty and chain.forwarder.records.is_empty
    assert not any(one.replies.awaiting for one in chain.broker.protocol.inbound.destinations.values())


@pytest.mark.parametrize("way", WAYS)
def test_a_discarded_request_is_answered_once_whenever_the_broker_is_killed(way: str) -> None:
    step = 0
    while True:
        step += 1
        chain = asked(way)
        chain.broker.die_at = chain.broker.events + step
        discard(chain, 0)
        chain.go(10.0)
        if chain.broker.run > 1 and not chain.forwarder.records.is_acknowledged(0):
            discard(chain, 0)  # it was killed before that was durable
        chain.go(30.0)  # the other request has not expired yet
        assert told(chain) == ["urn:m:one"], step
        if chain.broker.run == 1 or step == 8:
            break


@pytest.mark.parametrize("way", WAYS)
def test_the_requesters_of_a_deleted_forwarder_get_a_fault(way: str) -> None:
    chain = asked(way)
    steering, broker = Steering(chain.broker.protocol), chain.broker
    steering.suspend(chain.forwarder, "moving")
    found = broker.store.read("inbox", 0, 0, 3)
    steering.tell_requesters(chain.forwarder, found, set_aside, chain.now)
    assert steering.delete(chain.forwarder, chain.now) == 3
    broker.settle()
    chain.go(200.0)
    assert told(chain) == ["urn:m:one", "urn:m:three"]
    assert chain.outbox.records.is_empty


@pytest.mark.parametrize("is_running", [True, False])
def test_a_discarded_request_stays_with_another_forwarder_that_has_it_to_send(is_running: bool) -> None:
    chain = Chain()
    start = chain.broker.on_start

    def forward_twice() -> None:
        start()
        outbound = chain.broker.protocol.outbound
        chain.other = outbound.forward("forward/y/0", SERVICE, [*chain.forwarder_choices], chain.broker.queue, 0)

    chain.broker.on_start = forward_twice
    forward_twice()
    chain.service.is_up = False
    chain.ask("one")
    chain.go(5.0)
    discard(chain, 0, is_running=is_running)
    chain.go(5.0)
    assert chain.replies == []
    chain.service.start()
    chain.go(200.0)
    assert chain.replies == [("urn:m:one", "re one")]


def test_a_message_of_an_application_that_is_discarded_answers_nobody() -> None:
    chain = Chain()
    chain.broker.is_up = False
    chain.ask("one")
    protocol = chain.requester.protocol
    outboxes = Outboxes(protocol.outbound, chain.requester.store.read, lambda: protocol.replies)
    chain.requester.settle()
    chain.settle()
    outboxes.discard("out/0", outboxes.read("out/0"), chain.now)
    chain.go(5.0)
    assert chain.outbox.records.is_empty
    assert [one.name for one in chain.requester.incidents if one.name == "reply.dropped"] == []
