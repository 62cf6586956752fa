"""Every cell of the table of withdrawals, on a real forwarder: what comes of an event is what its cell says."""

from __future__ import annotations

import pytest

from holdfast.core.events import Incident, ReadWanted
from holdfast.core.messages import Fault, SequenceAcknowledgement
from holdfast.core.policy import Assurance, DestinationPolicy, ForwardingPolicy, SourcePolicy
from holdfast.core.sending.outboxes.forwarder_state import Refusal
from holdfast.core.states.outbound import DoubtEvent, SourceState
from holdfast.core.states.outbox import WITHDRAWAL_TABLE, WithdrawalAction, WithdrawalEvent, WithdrawalState
from tests.support.chain import STEADY, Chain

S, V, A = WithdrawalState, WithdrawalEvent, WithdrawalAction
REFUSED, OTHER, REQUEST, NEXT = 1, 2, 3, 4
"""Four messages in flight: the first is withdrawn, and the third is a request."""
POISON = Fault("Poison", "it cannot be read")


class Forwarder:
    """A forwarder with four messages in flight, none of which is answered."""

    def __init__(self, state: S, assurance: str = "exactly-once") -> None:
        sending = SourcePolicy(retransmission=STEADY, assurance=Assurance.parse(assurance))
        service_policy = DestinationPolicy(assurance=Assurance.parse("exactly-once"))
        self.chain = Chain(policy=ForwardingPolicy(sending=sending), service_policy=service_policy)
        receive = self.chain.service.receive
        self.chain.service.receive = (  # type: ignore[method-assign]
            lambda journey: None if journey.transmit.number else receive(journey)
        )
        for number in (REFUSED, OTHER, REQUEST, NEXT):
            self.chain.ask(f"m{number}", wants_reply=number == REQUEST)
        self.outbox = self.chain.forwarder
        self.chain.go(20.0, until=lambda: self.outbox.source is not None and len(self.outbox.source.flight) == 4)
        self.chain.settle()
        assert self.outbox.source is not None
        self.source, self.flight = self.outbox.source, self.outbox.source.flight
        assert [*self.flight] == [REFUSED, OTHER, REQUEST, NEXT] and [*self.source.waiting.unreplied] == [REQUEST]
        self.withdrawals = self.chain.broker.giving_up._withdrawals
        self.now = self.chain.now
        self.refuse(REFUSED)
        assert self.outbox.withdrawal is not None
        self.withdrawal = self.outbox.withdrawal
        self.withdrawal.state = state
        if state is S.NONE:
            self.withdrawal.refused.clear()
            self.flight.release(REFUSED, self.now + 9.0)
            self.source.numbers.limit = 99

    def refuse(self, number: int) -> None:
        """The destination refuses a message, for good."""
        self.flight[number].faults = self.flight[number].attempts
        self.outbox.refusals[self.outbox.records.offset_of(number)] = Refusal(self.now, POISON, 1)
        self.withdrawals.refused(self.outbox, self.source, number, self.now)

    def happen(self, event: V) -> None:
        """Make the facts of an event true, and give the withdrawal its turn."""
        for number in self.flight:
            self.flight[number].answered, self.flight[number].exchanges = True, 0
        if event is V.REFUSED:
            self.withdrawals.refused(
                self.outbox, self.source, REFUSED if self.withdrawal.state is S.NONE else NEXT, self.now
            )
        elif event is V.REFUSED_AGAIN:
            self.withdrawals.refused(self.outbox, self.source, REFUSED, self.now)
        elif event is V.ACKNOWLEDGEMENT:
            ack = SequenceAcknowledgement(self.source.identifier or "", ((OTHER, OTHER),))
            self.withdrawals.acknowledged(self.withdrawal, ack)
        elif event is V.SILENT:
            self.source.doubt.ask_what_else(self.now)
            self.withdrawals.silent(self.outbox, self.source, self.now)
        else:
            self._bring_about(event)
            self.withdrawals.turn(self.outbox, self.withdrawal, self.now)

    def _bring_about(self, event: V) -> None:
        flight = self.flight
        if event in (V.UNREPLIED, V.UNREPLIED_TOO_LONG, V.UNREAD, V.CERTAIN):
            for number in (OTHER, NEXT):  # no transmission of them arrived
                flight[number].untaken = flight[number].attempts
        if event is V.SEQUENCE_OVER:
            self.source.state = SourceState.CLOSED
        elif event is V.PENDING:
            flight[OTHER].exchanges = 1
        elif event is V.UNANSWERED:
            flight[OTHER].answered = False
            flight.wait(OTHER, REFUSED, self.now + 9.0)
        elif event is V.UNREPLIED_TOO_LONG:
            self.now = self.withdrawal.until
        elif event in (V.UNREAD, V.CERTAIN):
            self.source.replied(REQUEST, self.now)
        if event is V.UNREAD:
            self.outbox.records.here.drop(self.outbox.records.offset_of(REFUSED))

    def done(self) -> set[A]:
        """What was done, told from what came out of it, and from what the Sequence remembers."""
        effects = self.chain.broker.protocol.effects
        parked = {number for number, entry in self.flight.items() if entry.is_parked}
        done: set[A] = set()
        if any(isinstance(one, Incident) and one.name == "dead_letter.added" for one in effects):
            done.add(A.DEAD_LETTER)
        elif any(isinstance(one, ReadWanted) for one in effects):
            done.add(A.READ)
        elif self.outbox.lifecycle.stopped:
            assert not parked and [*self.flight] == [REFUSED, OTHER, REQUEST, NEXT] and not self.outbox.refusals
            done.add(A.STOP_UNREPLIED if "1 requests" in self.outbox.lifecycle.stopped_for else A.STOP)
        elif OTHER not in self.flight:
            assert NEXT not in self.flight and REQUEST in self.flight
            done.add(A.AWAIT_REPLIES)
        elif self.source.doubt.is_open:
            assert parked == {REFUSED, OTHER, NEXT}
            done.add(A.ASK)
        if OTHER in self.withdrawal.named:
            done.add(A.NOTE)
        return done | {action for action, fact in self._facts(parked).items() if fact}

    def _facts(self, parked: set[int]) -> dict[A, bool]:
        other = self.flight.get(OTHER)
        is_held = self.source.numbers.limit == self.source.numbers.highest_sent
        return {
            A.HOLD: is_held and not self.was_held,
            A.WITHHOLD: is_held and self.was_held and parked == self.withdrawal.refused != self.were_parked,
            A.HURRY: other is not None and other.attempts > 0 and other.due == self.now,
        }

    def look(self) -> None:
        """Remember what is so before the event."""
        self.chain.broker.protocol.take_effects()
        self.was_held = self.source.numbers.limit == self.source.numbers.highest_sent
        self.were_parked = {number for number, entry in self.flight.items() if entry.is_parked}


@pytest.mark.parametrize(("state", "event"), WITHDRAWAL_TABLE)
def test_what_comes_of_an_event_is_what_its_cell_says(state: S, event: V) -> None:
    one = Forwarder(state)
    if event is V.REFUSED_AGAIN:
        one.flight.release(REFUSED, one.now)
    one.look()
    one.happen(event)
    action, after = WITHDRAWAL_TABLE[state, event]
    assert one.withdrawal.state is after
    assert (one.outbox.withdrawal is None) == (after is S.NONE)
    assert one.done() == ({action} if action is not A.NOTHING else set())


def test_with_at_least_once_silence_and_requests_without_a_reply_stop_nothing() -> None:
    one = Forwarder(S.ASKED, "at-least-once")
    one.look()
    one.happen(V.SILENT)
    assert one.withdrawal.state is S.ASKED and not one.outbox.lifecycle.stopped and not one.source.doubt.is_open
    one.happen(V.UNREPLIED_TOO_LONG)
    assert one.outbox.withdrawal is None and one.done() == {A.DEAD_LETTER}
    assert not one.flight, "everything goes again in the next Sequence"


def test_a_message_that_arrived_after_all_becomes_no_dead_letter() -> None:
    one = Forwarder(S.ASKED)
    one.look()
    one.withdrawal.named.add(REFUSED)
    one.withdrawals.turn(one.outbox, one.withdrawal, one.now)
    assert one.withdrawal.refused == set() and not one.flight[REFUSED].is_parked
    assert A.DEAD_LETTER not in one.done()


def test_while_the_answer_is_awaited_nothing_is_decided() -> None:
    one = Forwarder(S.DRAINING)
    one.look()
    one.happen(V.UNCERTAIN)
    one.withdrawals.turn(one.outbox, one.withdrawal, one.now)
    assert one.withdrawal.state is S.ASKED and one.source.doubt.is_open and len(one.flight) == 4
    one.source.doubt.resolve(DoubtEvent.SAID)
    one.source.replied(REQUEST, one.now)
    one.withdrawals.turn(one.outbox, one.withdrawal, one.now)
    assert one.outbox.withdrawal is None and one.done() == {A.DEAD_LETTER}


def test_a_parked_number_is_not_sent_again_by_a_late_answer_when_a_lower_one_arrives() -> None:
    one = Forwarder(S.DRAINING)
    one.refuse(NEXT)
    one.source.transmissions.answered(NEXT, one.now, in_answers=True)
    one.source.replied(REQUEST, one.now)
    for number in (REFUSED, OTHER):
        one.flight.remove(number)
    assert NEXT not in one.flight.due(one.now + 99.0, one.source.waiting.unreplied)
