"""Sessions: each client that sends requests through a broker has an outbound Sequence of its own."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.faults import SEQUENCE_TERMINATED
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    CreateSequence,
    Envelope,
    Offer,
    Sequence,
    TerminateSequence,
)
from holdfast.core.policy import ForwardingPolicy, OnRefused
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment
from holdfast.core.queues.queue import Queue
from holdfast.core.sending.outboxes.records import MOST_CUTS
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore
from tests.support.chain import BROKER, SERVICE, Chain


def sequences(chain: Chain) -> dict[str, set[str]]:
    """Sequence at the service -> the clients whose messages came in it; a client is the first letter of a body."""
    found: dict[str, set[str]] = {}
    for record in chain.handled:
        found.setdefault(record.sequence, set()).add(record.body.decode()[0])
    return found


def ended_at_the_service(chain: Chain) -> list[str]:
    return [
        sent.control.identifier
        for _, to, sent in chain.journeys
        if to == SERVICE and isinstance(sent.control, TerminateSequence)
    ]


def end(chain: Chain, key: str) -> None:
    """A client ends its session."""
    protocol = chain.requester.protocol
    protocol.outbound.outboxes[key].want_end(chain.now)
    chain.requester.settle()


def test_each_client_with_requests_has_its_sequence_and_one_way_messages_share() -> None:
    chain = Chain(sessions=4)
    for key in "abc":
        chain.ask(f"{key}1", key=key)
        chain.ask(f"{key}2", key=key, wants_reply=False)
        chain.ask(f"{key}3", key=key)
    for key in "xy":
        chain.ask(f"{key}1", f"{key}2", key=key, wants_reply=False)
    chain.go()
    assert sorted(map(sorted, sequences(chain).values())) == [["a"], ["b"], ["c"], ["x", "y"]]
    assert sorted(chain.replies) == [(f"urn:m:{key}{n}", f"re {key}{n}") for key in "abc" for n in (1, 3)]


def test_a_client_whose_request_is_refused_again_and_again_holds_up_no_other() -> None:
    chain = Chain(sessions=4)
    chain.refuse("a1")
    chain.ask("a1", key="a")
    chain.settle()
    before = chain.now
    chain.ask("b1", "b2", key="b")
    chain.settle()
    assert chain.now == before and [body for _, body in chain.replies if body[3] == "b"] == ["re b1", "re b2"]


def test_the_sequence_at_the_service_ends_with_that_of_its_client() -> None:
    chain = Chain(sessions=1)
    chain.ask("a1", "a2", key="a")
    chain.go(1.0)
    (first,) = sequences(chain)
    assert ended_at_the_service(chain) == []
    end(chain, "a")
    chain.go(1.0)
    assert ended_at_the_service(chain) == [first]
    assert not chain.broker.protocol.outbound.sequences.by_local_id, "nothing of it is left"
    chain.ask("b1", key="b")
    chain.go(1.0)
    assert sorted(map(sorted, sequences(chain).values())) == [["a"], ["b"]]


def test_a_retried_dead_letter_of_an_ended_client_shares_no_sequence() -> None:
    dead_letters = ForwardingPolicy(refusals=1, patience=0.1, on_refused=OnRefused.DEAD_LETTER)
    chain = Chain(sessions=1, policy=dead_letters)
    chain.refuse("a1")
    chain.ask("a1", key="a")
    chain.go(400.0)
    end(chain, "a")
    chain.go(400.0)
    chain.refuse()
    assert chain.broker.giving_up.requeue() == 1
    chain.broker.settle()
    chain.go(1.0)
    assert sequences(chain)
    chain.ask("b1", key="b")
    chain.go(1.0)
    assert sorted(map(sorted, sequences(chain).values())) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("victim", "versions"),
    [
        ("broker", "1.1"),
        pytest.param("broker", "1.0", marks=pytest.mark.nightly),
        pytest.param("service", "1.1", marks=pytest.mark.nightly),
    ],
)
def test_whoever_is_killed_at_any_step_no_sequence_mixes_two_clients(victim: str, versions: str) -> None:
    step = 0
    while True:
        step += 1
        chain = Chain(sessions=1, versions=Versions(versions))
        party = getattr(chain, victim)
        party.die_at = party.events + step
        chain.ask("a1", "a2", key="a")
        chain.go(400.0)
        end(chain, "a")
        chain.go(400.0)
        chain.ask("b1", "b2", key="b")
        chain.go(400.0)
        end(chain, "b")
        chain.go(400.0)
        assert sorted(chain.replies) == [(f"urn:m:{key}{n}", f"re {key}{n}") for key in "ab" for n in (1, 2)], step
        assert all(len(clients) == 1 for clients in sequences(chain).values()), (step, sequences(chain))
        assert not chain.broker.protocol.outbound.sequences.by_local_id, step
        if party.run == 1:
            break
    assert step > 10


def test_backlogs_of_ended_clients_go_in_sequences_of_their_own() -> None:
    chain = Chain(sessions=1)
    chain.service.is_up = False
    for key in "abc":
        protocol = chain.requester.protocol
        chain.ask(f"{key}1", key=key)
        chain.ask(f"{key}2", key=key, wants_reply=False)
        chain.go(1.0)
        (session,) = [one for one in chain.broker.protocol.inbound.destinations.values() if not one.is_over]
        chain.broker.protocol.inbound.fault_received(session, SEQUENCE_TERMINATED, chain.now)
        chain.broker.settle()
        protocol.outbound.registry.close(key, chain.now)
        chain.go(1.0)
        chain.broker.kill()
        chain.settle()
    chain.service.start()
    chain.go(400.0)
    assert chain.bodies == ["a2", "b2", "c2"]
    assert [letter.record.body for letter in chain.letters] == [b"a1", b"b1", b"c1"], "nobody waits for their replies"
    assert [sorted(clients) for clients in sequences(chain).values()] == [["a"], ["b"], ["c"]]


def test_sessions_beyond_the_bound_share_the_partition_with_the_fewest() -> None:
    chain = Chain(sessions=2)
    for key in "abc":
        chain.ask(f"{key}1", key=key)
        chain.go(1.0)
    assert sorted(map(sorted, sequences(chain).values())) == [["a", "c"], ["b"]]
    end(chain, "a")
    chain.go(1.0)
    assert ended_at_the_service(chain) == []
    end(chain, "c")
    chain.go(1.0)
    assert len(ended_at_the_service(chain)) == 1


def test_idle_sessions_that_come_and_go_are_remembered_up_to_a_limit() -> None:
    chain = Chain(sessions=1)
    chain.ask("a1", key="a")
    chain.go(1.0)
    outbox = chain.broker.protocol.outbound.outboxes["forward/x/1"]
    outbox.lifecycle.suspend("held back")
    for _ in range(MOST_CUTS + 10):
        outbox.records._records.end += 1
        outbox.records.cut()
    assert len(outbox.records.cuts) == MOST_CUTS and outbox.records.run_end(0) == outbox.records.durable_end


class Taker:
    """A broker that takes messages in, one after the other."""

    def __init__(self, store: MemoryStore, sessions: int) -> None:
        self.store = store
        self.queue = Queue("inbox", drops_passed=True)
        self.queue.divide(2, sessions)
        self.count = 0
        self.protocol = RMProtocol(self.queue, Environment(store.read, self.name, lambda: 0.0))
        self.protocol.recover(store.load(), 1.0)
        if not self.queue.description.epoch:
            self.queue.description.begin("e")
        self.commit()

    def name(self) -> str:
        self.count += 1
        return f"urn:{len(self.protocol.inbound.destinations)}:{self.count}"

    def commit(self) -> None:
        while self.protocol.wants_commit:
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(1.0)

    def first_partition(self, *, offers: bool, **fields: Any) -> int:
        """In which partition a Sequence is whose first message is such."""
        new = Versions("1.1")
        before = set(self.protocol.inbound.destinations)
        create = Envelope(new.soap, new.addressing, new.rm, action="urn:create", message_id=self.name())
        create.control = CreateSequence(ANONYMOUS_EPR, None, Offer(self.name(), None) if offers else None)
        self.protocol.receive(create, object(), 1.0)
        self.commit()
        (identifier,) = set(self.protocol.inbound.destinations) - before
        message = Envelope(new.soap, new.addressing, new.rm, to=BROKER, action="urn:a", body=b"<a/>")
        message.sequence = Sequence(identifier, 1)
        for name, value in fields.items():
            setattr(message, name, value)
        self.protocol.receive(message, object(), 1.0)
        self.commit()
        return self.protocol.inbound.destinations[identifier].partition


@pytest.mark.parametrize(
    ("offers", "fields", "is_session"),
    [
        (True, {"message_id": "urn:m", "reply_to": ANONYMOUS_EPR}, True),
        (False, {"message_id": "urn:m", "reply_to": ANONYMOUS_EPR}, True),
        (True, {}, True),
        (True, {"message_id": "urn:m"}, False),
        (False, {}, False),
    ],
    ids=["a request", "one without an Offer", "WCF's one-way before a request", "our one-way", "WCF's one-way alone"],
)
def test_a_sequence_is_a_session_by_its_first_message(offers: bool, fields: dict[str, Any], is_session: bool) -> None:
    taker = Taker(MemoryStore(), 2)
    assert (taker.first_partition(offers=offers, **fields) >= 2) is is_session


def test_a_store_without_partitions_for_sessions_gets_them_behind_those_that_it_has() -> None:
    store = MemoryStore()
    request: dict[str, Any] = {"message_id": "urn:m", "reply_to": ANONYMOUS_EPR}
    before = Taker(store, 0)
    assert before.first_partition(offers=True, **request) < 2
    assert "sessions" not in store.load().queues["inbox"]
    grown = Taker(store, 3)
    assert grown.queue.description.epoch == "e" and grown.queue.description.stored_partitions == 5
    assert grown.first_partition(offers=True, **request) == 2
    description = store.load().queues["inbox"]
    assert (description["partitions"], description["sessions"]) == (5, 3)
    again = Taker(store, 3)
    assert again.first_partition(offers=True, **request) == 3, "the session from before is open still"
