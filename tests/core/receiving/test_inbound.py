"""Where inbound messages go: to the usual queue, where they are routed to, or nowhere; held ones after a crash too.

Covers core/receiving/inbound_sequences.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reads import take_effects

from examples import examples
from holdfast.core.events import Delivered, Incident, Respond
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    CreateSequence,
    EndpointReference,
    Envelope,
    Expects,
    Offer,
    Routed,
    Sequence,
)
from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queue_limit import QueueLimit
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore

NEW = Versions("1.1")
QUEUES = ("inbox", "orders", "audit")


class Node:
    """An endpoint with three queues. What it commits is durable at once."""

    def __init__(self, store: MemoryStore | None = None, partitions: int = 2) -> None:
        self.store = store or MemoryStore()
        first, *further = (Queue(name, partitions) for name in QUEUES)
        self.effects: list[object] = []
        self.protocol = RMProtocol(
            first,
            Environment(self.store.read, lambda: "urn:id:1", lambda: 0.0),
            further=further,
            policies=Policies(destination=DestinationPolicy()),
            rules=MessageRules(replies=lambda _action: False),
        )
        self.protocol.recover(self.store.load(), 1.0)
        self.settle()

    def settle(self) -> None:
        self.protocol.pump(1.0)
        while True:
            self.effects += take_effects(self.protocol, self.store, 1.0)
            if not self.protocol.wants_commit:
                return
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(1.0)

    def create(self, offer: Offer | None = None) -> None:
        envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, "urn:create", message_id="urn:create:1")
        envelope.control = CreateSequence(ANONYMOUS_EPR, None, offer)
        self.protocol.receive(envelope, object(), 1.0)
        self.settle()

    def come(self, number: int, routed: Routed | None, reply_to: EndpointReference | None = None) -> None:
        envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, "urn:a", message_id=f"urn:m:{number}", routed=routed)
        envelope.body, envelope.sequence, envelope.reply_to = b"<x/>", Sequence("urn:id:1", number, False), reply_to
        self.protocol.receive(envelope, object(), 1.0)
        self.settle()

    def content(self) -> dict[str, list[int]]:
        found = {}
        for name in QUEUES:
            records = [one for p in range(2) for _, one in self.store.read(name, p, 0, 1000)]
            found[name] = [record.message_number for record in records]
        return found

    @property
    def answers(self) -> list[Envelope]:
        return [one.envelope for one in self.effects if isinstance(one, Respond) and one.envelope is not None]


def test_a_message_without_a_route_goes_to_the_first_queue():
    node = Node()
    node.create()
    node.come(1, None)
    assert node.content() == {"inbox": [1], "orders": [], "audit": []}


def test_a_message_for_two_queues_is_one_record_in_each_at_the_same_partition():
    node = Node()
    node.create()
    node.come(1, Routed(("orders", "audit")))
    assert node.content() == {"inbox": [], "orders": [1], "audit": [1]}
    told = [(one.queue, one.partition) for one in node.effects if isinstance(one, Delivered)]
    partition = node.protocol.inbound.destinations["urn:id:1"].partition
    assert told == [("orders", partition), ("audit", partition)]


def test_a_message_for_no_queue_is_acknowledged_and_kept_nowhere():
    node = Node()
    node.create()
    node.come(1, Routed(()))
    assert node.content() == {"inbox": [], "orders": [], "audit": []}
    assert node.answers[-1].acknowledgements[0].ranges == ((1, 1),)


def test_a_held_message_keeps_its_route_over_a_crash():
    node = Node()
    node.create()
    node.come(3, Routed(()))
    node.come(2, Routed(("orders", "audit")))
    again = Node(node.store)
    again.come(1, None)
    assert again.content() == {"inbox": [1], "orders": [2], "audit": [2]}
    assert again.store.load().held == {}
    assert "routed" not in again.store.load().sequences["urn:id:1"]


def test_a_held_message_whose_queue_is_no_more_goes_to_the_first_one():
    node = Node()
    node.create()
    node.come(2, Routed(("orders",)))
    node.protocol.inbound.queues.pop("orders")
    node.come(1, None)
    assert node.content()["inbox"] == [1, 2]


def test_a_full_queue_takes_nothing_new_and_says_so_until_a_part_of_it_is_free():
    node = Node()
    orders_queue = node.protocol.inbound.queues["orders"]
    node.protocol.inbound.limits["orders"] = QueueLimit(orders_queue, 32)
    node.create()
    orders = Routed(("orders", "audit"))
    for number in range(1, 35):
        node.come(number, orders)
    last = node.answers[-1].acknowledgements[0]
    assert (last.ranges, last.buffer_remaining) == (((1, 32),), 0), "33 and 34 are not there, and none is to follow"
    node.come(7, orders)
    assert node.answers[-1].acknowledgements[0].ranges == ((1, 32),), "what is there is acknowledged to who repeats it"
    node.come(33, Routed(("audit",)))
    last = node.answers[-1].acknowledgements[0]
    assert (last.ranges, last.buffer_remaining) == (((1, 33),), 256), "other queues are not full"
    partition = node.protocol.inbound.destinations["urn:id:1"].partition
    orders_queue.deletion.purge(partition, 1)
    node.come(34, orders)
    assert node.answers[-1].acknowledgements[0].ranges == ((1, 33),), "a single place is not worth telling of"
    orders_queue.deletion.purge(partition, 2)
    node.come(34, orders)
    last = node.answers[-1].acknowledgements[0]
    assert (last.ranges, last.buffer_remaining) == (((1, 34),), 256)
    told = [one.name for one in node.effects if isinstance(one, Incident) and one.name.startswith("queue.")]
    assert told == ["queue.full", "queue.writable"]


@pytest.mark.parametrize("limit", [1, 2, 15, 16, 17])
def test_a_queue_of_any_limit_has_room_again_once_it_is_empty(limit: int):
    node = Node()
    queue = node.protocol.inbound.queues["inbox"]
    node.protocol.inbound.limits["inbox"] = QueueLimit(queue, limit)
    node.create()
    for number in range(1, limit + 2):
        node.come(number, None)
    assert node.content()["inbox"] == list(range(1, limit + 1))
    queue.deletion.purge(node.protocol.inbound.destinations["urn:id:1"].partition, limit)
    node.come(limit + 1, None)
    assert node.content()["inbox"] == [limit + 1]


@pytest.mark.parametrize(("replied", "is_awaited"), [(True, True), (False, False), (None, False)])
def test_the_route_says_whether_a_request_awaits_a_reply(replied, is_awaited):
    node = Node()
    node.create()
    node.come(1, Routed(("orders",), replied), ANONYMOUS_EPR)
    assert bool(node.protocol.inbound.destinations["urn:id:1"].replies.awaiting) is is_awaited


@pytest.mark.parametrize("expects", [None, *Expects])
@pytest.mark.parametrize("is_offered", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_only_a_sender_that_needs_a_reply_waits_for_one_that_may_be_lost(expects, is_offered, at_once):
    node = Node()
    node.create(Offer("urn:offered", ANONYMOUS_EPR) if is_offered else None)
    node.come(1, Routed(("orders",), True, expects, replies_at_once=at_once), ANONYMOUS_EPR)
    is_awaited = expects is Expects.REQUEST or (expects is None and (is_offered or not at_once))
    assert bool(node.protocol.inbound.destinations["urn:id:1"].replies.awaiting) is is_awaited
    assert any(answer.acknowledgements for answer in node.answers[1:]) is not is_awaited


@settings(max_examples=examples(60))
@given(st.lists(st.sets(st.sampled_from(QUEUES)), min_size=1, max_size=8), st.randoms(), st.integers(0, 8))
def test_whatever_the_order_of_arrival_each_queue_has_its_messages_in_their_order(routes, random, crash_after):
    node = Node()
    node.create()
    numbers = list(range(1, len(routes) + 1))
    random.shuffle(numbers)
    effects: list[object] = []
    for count, number in enumerate(numbers):
        if count == crash_after:
            effects += node.effects
            node = Node(node.store)
        node.come(number, Routed(tuple(sorted(routes[number - 1]))))
    assert node.content() == {
        name: [number for number, route in enumerate(routes, 1) if name in route] for name in QUEUES
    }
    told = [one.count for one in effects + node.effects if isinstance(one, Delivered)]
    assert (len(told), sum(told)) == (sum(map(len, routes)), sum(map(bool, routes))), "each message counts once"
