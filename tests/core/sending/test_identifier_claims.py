"""Two workers, each with a store of its own, and a destination that grants one Identifier to both."""

from __future__ import annotations

import random

import pytest
from sending import TO, Sending

from holdfast.core.events import Stopped
from holdfast.core.messages import CreateSequenceResponse
from holdfast.core.sending.identifier_claims import ClaimResult, GrantedIdentifier, IdentifierClaims
from holdfast.core.states.outbound import SourceState
from holdfast.endpoint.workers import identifier_table
from holdfast.endpoint.workers.identifier_table import IdentifierTable
from holdfast.store import MemoryStore

OTHER = "http://other/"


def worker(table: IdentifierTable, number: int, store: MemoryStore | None = None) -> Sending:
    return Sending(store, claims=table.of(number), initial_window=2)


def workers(count: int = 2) -> list[Sending]:
    table = IdentifierTable(count)
    return [worker(table, number) for number in range(count)]


def reason_of_refusal(sending: Sending) -> str:
    (refused,) = sending.incidents("sequence.refused")
    assert refused.detail is not None
    return str(refused.detail["reason"])


def is_refused(sending: Sending) -> bool:
    outbox, create = sending.creating()
    sending.grant(create, "urn:x")
    return outbox.source is None and "urn:x" in reason_of_refusal(sending)


def test_an_identifier_that_another_worker_was_granted_by_this_peer_is_refused() -> None:
    one, other = workers()
    first, create = one.creating()
    second, create_other = other.creating()
    one.grant(create, "urn:x")
    other.grant(create_other, "urn:x")
    assert first.source is not None and first.source.state is SourceState.CREATED
    assert second.source is None and other.take() == []
    assert "urn:x" in reason_of_refusal(other) and "worker" in reason_of_refusal(other)
    assert [one.key for one in other.told if isinstance(one, Stopped)] == ["a"]


def test_two_peers_may_grant_one_identifier_to_two_workers() -> None:
    one, other = workers()
    _, create = one.creating()
    second, create_other = other.creating("b", OTHER)
    one.grant(create, "urn:x")
    other.grant(create_other, "urn:x")
    assert second.source is not None and second.source.state is SourceState.CREATED


def test_an_outbox_that_is_redirected_claims_its_identifier_at_the_new_address() -> None:
    one, other = workers()
    first, create = one.creating()
    one.grant(create, "urn:x")
    registry = one.protocol.outbound.registry
    registry.redirect(first, OTHER)
    registry.redirected([TO])
    second, create_other = other.creating("b", OTHER)
    other.grant(create_other, "urn:x")
    third, create_other = other.creating("c", TO)
    other.grant(create_other, "urn:x")
    assert (second.source, third.source is not None) == (None, True)


@pytest.mark.parametrize(("identifier", "may"), [("urn:x", False), ("urn:y", True)])
def test_no_sequence_is_redirected_to_where_another_has_its_identifier(identifier: str, may: bool) -> None:
    sending = Sending(initial_window=2)
    first, create = sending.creating()
    sending.grant(create, "urn:x")
    sending.take()
    _, create = sending.creating("b", OTHER)
    sending.grant(create, identifier)
    registry = sending.protocol.outbound.registry
    third = "http://a-third/"
    assert registry.may_redirect(first, {"a": OTHER}) is may
    assert registry.may_redirect(first, {"a": third, "b": third}) is may
    assert registry.may_redirect(first, {"a": OTHER, "b": third})
    assert registry.may_redirect(first, {"a": third})
    first.drop(sending.now)
    assert registry.may_redirect(first, {"a": OTHER})


def test_a_sequence_releases_its_identifier_once_its_end_is_durable() -> None:
    one, other = workers()
    outbox, create = one.creating()
    one.grant(create, "urn:x")
    assert outbox.source is not None
    outbox.drop(one.now)
    second, create_other = other.creating()
    second.lifecycle.choices *= 2  # so that the first refusal does not stop it
    other.grant(create_other, "urn:x")
    assert second.source is None, "a crash of the other worker would bring its Sequence back"
    one.settle()
    second.resume(other.choices[:1], other.now)
    (create_other,) = other.take()
    other.grant(create_other, "urn:x")
    assert second.source is not None and second.source.identifier == "urn:x"


def test_an_identifier_stays_in_use_while_its_worker_is_dead_and_when_it_is_back() -> None:
    table = IdentifierTable(2)
    one = worker(table, 0)
    worker(table, 1)
    _, create = one.creating()
    one.grant(create, "urn:x")
    store = one.store
    del one
    assert is_refused(worker(table, 1)), "nothing but the table knows of worker 0"
    one = worker(table, 0, store)
    assert is_refused(worker(table, 1))
    assert [outbox.key for outbox in one.protocol.outbound.sequences.named("urn:x")] == ["a"]


def test_a_grant_that_was_not_durable_when_its_worker_died_is_free() -> None:
    table = IdentifierTable(2)
    one, other = worker(table, 0), worker(table, 1)
    _, create = one.creating()
    envelope = create.envelope
    one.protocol.outbound.creation.receive(CreateSequenceResponse("urn:x"), envelope.message_id, one.now)
    second, create_other = other.creating()
    assert table.of(1).claim(GrantedIdentifier("another", TO, "urn:x")) is ClaimResult.IN_USE
    one = worker(table, 0, one.store)
    other.grant(create_other, "urn:x")
    assert second.source is not None and second.source.identifier == "urn:x"
    (create,) = one.take()
    one.grant(create, "urn:x")
    assert one.protocol.outbound.sequences.named("urn:x") == []


def test_a_grant_before_every_worker_has_started_is_asked_for_again() -> None:
    table = IdentifierTable(2)
    one = worker(table, 0)
    outbox, create = one.creating()
    one.grant(create, "urn:x")
    assert outbox.source is not None and outbox.source.state is SourceState.CREATING
    assert one.incidents("sequence.grant_ignored")
    worker(table, 1)
    (again,) = one.wait(2.0)
    assert again.envelope.message_id == create.envelope.message_id
    one.grant(again, "urn:x")
    assert outbox.source.state is SourceState.CREATED


def test_a_grant_is_refused_if_the_table_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifier_table, "MOST_CLAIMS", 1)
    one, _ = workers()
    _, create = one.creating()
    one.grant(create, "urn:x")
    one.take()
    second, create = one.creating("b")
    one.grant(create, "urn:y")
    assert second.source is None and "as many" in reason_of_refusal(one)


class Trial:
    """Some workers in random order: grants of few Identifiers, ends of Sequences, and crashes before a commit."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.table = IdentifierTable(3)
        self.workers = [worker(self.table, number) for number in range(3)]
        self.granted = self.refused = 0

    def step(self) -> None:
        number = self.chance.randrange(3)
        one = self.workers[number]
        outbox = one.open(self.chance.choice("ab"), TO)
        outbound = one.protocol.outbound
        if outbox.lifecycle.stopped:
            outbox.resume(one.choices[:1], one.now)
        source = outbox.source
        if source is None:
            one.submit(outbox, f"m{self.chance.random()}")
        elif source.state is SourceState.CREATING:
            response = CreateSequenceResponse(f"urn:{self.chance.randrange(4)}")
            is_used = (
                outbound.creation.receive(response, source.control.message_ids["CreateSequence"], one.now) is not None
            )
            self.granted += is_used
            self.refused += not is_used
        else:
            outbox.drop(one.now)
        if self.chance.random() < 0.3:
            self.workers[number] = worker(self.table, number, one.store)  # what was not committed is lost
        elif self.chance.random() < 0.7:
            one.settle()

    def used(self) -> list[tuple[int, str]]:
        """Who may send in which Sequence: in memory, and according to the stores."""
        found = set()
        for number, one in enumerate(self.workers):
            sources = [outbox.source for outbox in one.protocol.outbound.outboxes.values()]
            states = (SourceState.NONE, SourceState.CREATING)
            found |= {(number, str(one.identifier)) for one in sources if one is not None and one.state not in states}
            saved = one.store.load().sequences.values()
            found |= {(number, state["identifier"]) for state in saved if state["identifier"] is not None}
        return sorted(found)


def test_no_two_workers_ever_use_one_identifier_whichever_is_killed_and_when() -> None:
    granted = refused = 0
    for seed in range(30):
        trial = Trial(seed)
        for _ in range(150):
            trial.step()
            identifiers = [identifier for _, identifier in trial.used()]
            assert len(identifiers) == len(set(identifiers)), f"seed {seed}: {trial.used()}"
        granted, refused = granted + trial.granted, refused + trial.refused
    assert granted > 200 and refused > 200


def test_a_server_of_one_process_makes_no_claims() -> None:
    sending = Sending()
    claims: IdentifierClaims | None = sending.protocol.outbound.context.claims
    assert claims is None
