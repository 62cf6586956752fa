"""Protocol bugs planted by hand: each replaces one method of the core by one that is wrong in one way.

``expected`` names the invariants that may notice it first. The explorer's tests plant some of them as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.core.forwarding.undeliverable import UndeliverableMessages
from holdfast.core.forwarding.withdrawals import Withdrawals
from holdfast.core.handling.delivery import HandlerSchedule
from holdfast.core.handling.handler_cursor import HandlerCursor
from holdfast.core.origin import Origin
from holdfast.core.protocol_messages.peer_acknowledgements import PeerAcknowledgements
from holdfast.core.queues.cursors import HANDLER, OUTBOUND
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.deletion import Deletion
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queue_records import QueueRecords
from holdfast.core.queues.retention_enforcement import RetentionEnforcement
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.receiving.acceptance import Acceptance
from holdfast.core.receiving.authority import Authority
from holdfast.core.receiving.held_messages import HeldMessages
from holdfast.core.receiving.inbound import Inbound
from holdfast.core.receiving.replies import Replies
from holdfast.core.records import Record
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.rm_source.flight import InFlight
from holdfast.core.rm_source.pace import Pace
from holdfast.core.rm_source.source import RMSource
from holdfast.core.rm_source.transmissions import Transmissions
from holdfast.core.sending.grants.unusable_grants import why_unusable
from holdfast.core.sending.outbound_sequences import OutboundSequences
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.records import OutboxRecords
from holdfast.core.sending.outboxes.transmission_mark import TransmissionMarks
from holdfast.core.sinks.staging import Sinks
from holdfast.core.states.inbound import SETTLING_TABLE, DestinationState, SettlingAction, SettlingEvent, SettlingState
from holdfast.core.states.outbound import SourceAction, SourceState
from holdfast.core.states.outbox import WithdrawalState
from holdfast.core.versions import RM
from holdfast.simulation.nodes.node import FORWARD
from holdfast.simulation.nodes.routed_queues import is_routed

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A planted bug, and who may notice it."""

    name: str
    plant: Plant
    expected: frozenset[str]


MUTANTS: list[Mutant] = []


def mutant(*expected: str) -> Callable[[Plant], Plant]:
    """Register a planted bug with the invariants that may notice it first."""

    def register(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(plant.__name__, plant, frozenset(expected)))
        return plant

    return register


def replace(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, method: Any) -> Any:
    """Put ``method`` in the place of another, under its name, so that what is saved by name finds it; the original."""
    original = getattr(owner, name)
    if not isinstance(method, property | classmethod):
        method.__name__ = name
    monkeypatch.setattr(owner, name, method)
    return original


@mutant("AcknowledgedIsStored", "AcknowledgedIsRemembered")
def acknowledge_before_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(
        self: Inbound, destination: RMDestination, envelope: Any, awaits: bool, *rest: Any, **named: Any
    ) -> Any:
        verdict = original(self, destination, envelope, awaits, *rest, **named)
        if envelope.sequence.message_number in destination.accepted and not awaits:
            destination.acknowledge(envelope.sequence.message_number)
        return verdict

    original = replace(monkeypatch, Inbound, "receive", receive)


@mutant("TransmittedIsDurable")
def transmit_before_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(self: Outbox, record: Record) -> int:
        offset = original(self, record)
        self.records.queue.partitions[self.records.partition].durable_end = self.records.end
        self.records.update_available()
        self.ready()
        return offset

    original = replace(monkeypatch, Outbox, "submit", submit)


@mutant("TransmittedIsMarked")
def transmit_before_the_mark_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    def _move(self: TransmissionMarks, source: RMSource) -> None:
        original(self, source)
        source.numbers.durable_mark = source.numbers.mark

    original = replace(monkeypatch, TransmissionMarks, "_move", _move)


@mutant("TransmittedIsMarked")
def move_the_mark_and_save_it_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def see(self: TransmissionMarks, source: RMSource) -> None:
        if source.numbers.left_before_mark <= source.policy.mark_ahead // 4:
            self._move(source)

    replace(monkeypatch, TransmissionMarks, "see", see)


@mutant("Liveness", "AtMostOnce")
def take_the_mark_for_less_than_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_state(cls: type[RMSource], state: Any, *rest: Any) -> RMSource:
        source: RMSource = original(cls, state, *rest)
        source.numbers.sent_before = source.acknowledged.highest
        return source

    original = RMSource.from_state.__func__
    replace(monkeypatch, RMSource, "from_state", classmethod(from_state))


@mutant("NothingUnacknowledgedDropped")
def let_go_of_what_is_forwarded_once_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_acknowledged(self: OutboxRecords) -> bool:
        found: bool = original(self)
        if self.cursor.startswith(OUTBOUND + FORWARD) and self.source is not None:
            numbers = self.source.numbers
            self.first = max(self.first, min(numbers.start + numbers.highest_sent, self.durable_end))
            return True
        return found

    original = replace(monkeypatch, OutboxRecords, "pass_acknowledged", pass_acknowledged)


@mutant("NumbersNeverReused", "TransmittedIsDurable")
def number_anew_after_a_crash_what_is_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_state(cls: type[RMSource], state: Any, *rest: Any) -> RMSource:
        done = AcknowledgementRanges.from_state(state["acknowledged"]).first_gap - 1
        if state["outbox"].startswith(FORWARD):
            state = {**state, "start": state["start"] + done, "acknowledged": []}
        return original(cls, state, *rest)  # type: ignore[no-any-return]

    original = RMSource.from_state.__func__
    replace(monkeypatch, RMSource, "from_state", classmethod(from_state))


@mutant("ForwardedInOrder", "AtMostOnce")
def forward_after_a_crash_in_a_sequence_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def adopt(self: Outbox, source: RMSource) -> None:
        if self.key.startswith(FORWARD) and source.numbers.sent_before:  # it was read back
            self._commit.forget(source.local_id)
        else:
            original(self, source)

    original = replace(monkeypatch, Outbox, "adopt", adopt)


@mutant("WrittenOnce")
def copy_what_is_forwarded_into_a_queue_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(self: QueueRecords, partition: int, record: Record) -> int:
        if self.name == "inbox" and self.partitions[partition].outbound:
            self.commit.batch.appends.append((f"copy of {record.message_number} {record.sequence}", 0, 0, record))
        return appended(self, partition, record)  # type: ignore[no-any-return]

    appended = replace(monkeypatch, QueueRecords, "append", append)


@mutant("RangesNeverShrink", "ForwardedInOrder")
def forget_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledgement(self: RMDestination) -> Any:
        answer = original(self)
        if len(answer.ranges) > 1:
            answer.ranges = answer.ranges[1:]
        return answer

    original = replace(monkeypatch, RMDestination, "acknowledgement", acknowledgement)


@mutant("HandledOnce", "AssertionError")  # the core's own, where what it hands over again is deleted
def reset_the_order_cursor_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def __init__(self: HandlerCursor, policy: Any, in_order: bool, state: Any = None) -> None:
        original(self, policy, in_order, None)

    original = replace(monkeypatch, HandlerCursor, "__init__", __init__)


@mutant("Liveness", "InOrder", "Bounded")
def skip_saving_next_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_state(self: RMDestination) -> Any:
        return {**original(self), "next_in_order": 1}

    original = replace(monkeypatch, RMDestination, "to_state", to_state)


@mutant("NumbersNeverReused", "TransmittedIsDurable", "NothingUnacknowledgedDropped")
def reuse_a_number_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RMSource.from_state.__func__  # type: ignore[attr-defined]

    def from_state(cls: type[RMSource], state: Any, *arguments: Any) -> RMSource:
        source: RMSource = original(cls, state, *arguments)
        if not source.polled:
            source.numbers.start += source.records_done
            source.acknowledged = AcknowledgementRanges()
            source.numbers.next = 1
        return source

    replace(monkeypatch, RMSource, "from_state", classmethod(from_state))


@mutant("Liveness", "NothingUnacknowledgedDropped")
def take_a_stale_acknowledgement_for_the_whole_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    def receive_acknowledgement(self: RMSource, ack: Any, now: float) -> Any:
        action, newly = original(self, ack, now)
        if action in (SourceAction.MARK, SourceAction.MARK_AND_REPORT):
            self.acknowledged = AcknowledgementRanges(ack.ranges)
        return action, newly

    original = replace(monkeypatch, RMSource, "receive_acknowledgement", receive_acknowledgement)


@mutant("InOrder")
def deliver_a_held_message_early(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, RMDestination, "hold", lambda self, number, size=0: False)


@mutant("Liveness")
def never_acknowledge_a_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(self: Replies, destination: RMDestination, number: int, exchange: Any, now: float, **_: Any) -> None:
        self._answering.done(exchange)

    replace(monkeypatch, Replies, "again", again)


@mutant("Liveness", "NothingUnacknowledgedDropped")
def lose_the_reply_on_a_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(self: Replies, record: Record, reply: Record | None, now: float) -> None:
        original(self, record, reply, now)
        destination = self._sequences.destinations.get(record.sequence)
        if destination is not None:
            destination.replies.numbers.clear()

    original = replace(monkeypatch, Replies, "reply", reply)


@mutant("ReplyBeforeAcknowledgement")
def acknowledge_a_request_without_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, Acceptance, "_awaits_reply", lambda self, *_: False)


@mutant("ReplyBeforeAcknowledgement", "AnswersSurviveRestart")
def forget_over_a_crash_that_a_reply_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_state(self: RMDestination) -> Any:
        return {**original(self), "awaiting": []}

    original = replace(monkeypatch, RMDestination, "to_state", to_state)


@mutant("NothingUnacknowledgedDropped", "AssertionError")  # the core's own, where it wants to read what it has trimmed
def trim_the_outbox_beyond_what_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_acknowledged(self: OutboxRecords) -> Any:
        is_to_be_saved = original(self)
        if self.source is not None:
            self.queue.records.delete_below(0, self.source.numbers.start + self.source.acknowledged.highest)
        return is_to_be_saved

    original = replace(monkeypatch, OutboxRecords, "pass_acknowledged", pass_acknowledged)


@mutant("FinalIsFinal", "Liveness")
def say_final_before_it_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, RMDestination, "is_final", property(lambda self: self.versions.rm is RM.V1_1))


@mutant("AtMostOnce", "AcceptedIsCounted", "AcknowledgedIsRemembered", "Bounded", "InOrder")
def take_a_duplicate_for_a_new_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(self: RMDestination, number: int, *arguments: Any, **named: Any) -> Any:
        self.accepted.discard(number)
        return original(self, number, *arguments, **named)

    original = replace(monkeypatch, RMDestination, "receive", receive)


@mutant("AcknowledgedIsRemembered", "AcceptedIsCounted")
def save_all_but_the_newest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_state(self: RMDestination) -> Any:
        accepted = self.accepted.copy()
        accepted.discard(accepted.highest)
        return {**original(self), "accepted": accepted.to_state()}

    original = replace(monkeypatch, RMDestination, "to_state", to_state)


@mutant("Bounded")
def ignore_the_send_window(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, Pace, "size", property(lambda self: 1000))


@mutant("Bounded")
def hold_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, RMDestination, "_has_room", lambda self, number, may_hold: True)


@mutant("LegalMoves")
def wake_an_ended_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(self: RMDestination, *arguments: Any, **named: Any) -> Any:
        self.state = DestinationState.CREATED
        return original(self, *arguments, **named)

    original = replace(monkeypatch, RMDestination, "receive", receive)


@mutant("NothingUnacknowledgedDropped", "RepeatedAfterItsExchange")
def take_an_acknowledgement_for_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def news(self: Transmissions, *arguments: Any) -> Any:
        self._waiting.unreplied.clear()
        return original(self, *arguments)

    original = replace(monkeypatch, Transmissions, "news", news)


@mutant("Liveness", "TimersMakeProgress")
def forget_that_a_sequence_was_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RMSource.from_state.__func__  # type: ignore[attr-defined]

    def from_state(cls: type[RMSource], state: Any, *arguments: Any) -> RMSource:
        source: RMSource = original(cls, state, *arguments)
        if source.state is SourceState.CREATED and not source.polled and not source.acknowledged.count:
            source.state = SourceState.GRANTED
        return source

    replace(monkeypatch, RMSource, "from_state", classmethod(from_state))


@mutant("InOrder")
def deliver_what_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, RMDestination, "is_too_late", lambda self, number, size=0: False)


@mutant("HandledOnce")
def go_on_to_the_next_while_one_waits_for_its_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(self: HandlerCursor, offset: int, now: float) -> bool:
        entry = self._running[offset]
        is_due_again: bool = original(self, offset, now)
        if is_due_again and self.in_order:
            line = self._waiting[entry.sequence]
            if len(line) > 1:
                self._ready[line[1].offset] = line[1]
        return is_due_again

    original = replace(monkeypatch, HandlerCursor, "failed", failed)


@mutant("HandledOnce")
def call_a_handler_at_most_once_before_that_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    def _hand_over(self: HandlerSchedule, *where: Any) -> None:
        marks, self.is_at_most_once = self.is_at_most_once, False
        original(self, *where)
        self.is_at_most_once = marks

    original = replace(monkeypatch, HandlerSchedule, "_hand_over", _hand_over)


@mutant("EndsAreDurable", "FinalIsFinal")
def make_an_acknowledgement_final_before_the_end_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    is_decided = property(lambda self: self.settling is not SettlingState.OPEN)
    replace(monkeypatch, RMDestination, "is_final", is_decided)


@mutant("EndsAreDurable")
def tell_of_the_end_while_a_reply_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    awaiting = SettlingState.AWAITING
    monkeypatch.setitem(SETTLING_TABLE, (awaiting, SettlingEvent.TELL), (SettlingAction.TELL, awaiting))
    monkeypatch.setitem(SETTLING_TABLE, (awaiting, SettlingEvent.REFUSED), (SettlingAction.ANSWER, awaiting))


@mutant("ReplyBeforeAcknowledgement", "NothingUnacknowledgedDropped")
def give_up_the_replies_of_a_sequence_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: RMDestination, last_message_number: int | None) -> Any:
        self.replies.awaiting.clear()
        return original(self, last_message_number)

    original = replace(monkeypatch, RMDestination, "end", end)


@mutant("NothingUnacknowledgedDropped", "AnswersSurviveRestart")
def forget_the_replies_of_a_sequence_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def over(self: Replies, destination: RMDestination, *, by_source: bool) -> None:
        original(self, destination, by_source=True)

    original = replace(monkeypatch, Replies, "over", over)


@mutant("AnswersSurviveRestart")
def forget_over_a_crash_which_replies_were_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_state(self: RMDestination) -> Any:
        return {**original(self), "answered": []}

    original = replace(monkeypatch, RMDestination, "to_state", to_state)


@mutant("AcknowledgedIsRemembered")
def acknowledge_a_request_before_its_reply_to_an_address_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Replies, destination: RMDestination, record: Record, reply: Record, now: float) -> bool:
        is_carried: bool = original(self, destination, record, reply, now)
        if is_carried:
            destination.acknowledged.add(record.message_number)
        return is_carried

    original = replace(monkeypatch, Replies, "_keep", keep)


@mutant("Liveness")
def stay_with_a_sequence_that_the_peer_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, RMSource, "move_rest", lambda self: None)


@mutant("Liveness")
def forget_after_a_crash_what_could_not_be_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_delivered(self: RMSource, number: int, now: float) -> None:
        if self.numbers.sent_before:  # it was read back
            self.flight.pop(number, None)
        original(self, number, now)

    original = replace(monkeypatch, RMSource, "not_delivered", not_delivered)


@mutant("HandledOrDeadLetter", "NothingUnacknowledgedDropped")
def forget_what_no_handler_could_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, DeadLetters, "add", lambda self, record: 0)


@mutant("StrangersAreIgnored")
def count_an_acknowledgement_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(self: Authority, identifier: str, origin: Origin) -> Outbox | None:
        return next(iter(self._registry.sequences.named(identifier)), None)

    replace(monkeypatch, Authority, "find", find)


@mutant("NothingUnacknowledgedDropped", "Liveness", "NoFalseAccusation")  # by the other destination's acknowledgement
def count_what_any_destination_says_in_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def may_speak(self: Authority, outbox: Outbox, origin: Origin) -> bool:
        is_answer = outbox.source is not None and not outbox.is_for_replies and bool(origin.address)
        return is_answer or original(self, outbox, origin)

    original = replace(monkeypatch, Authority, "may_speak", may_speak)


@mutant("Liveness")
def forget_both_sequences_with_an_identifier_when_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def _unname(self: OutboundSequences, source: RMSource, identifier: str) -> None:
        self._by_identifier.pop(identifier, None)

    replace(monkeypatch, OutboundSequences, "_unname", _unname)


@mutant("Liveness")
def refuse_an_identifier_that_another_destination_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(response: Any, source: RMSource, outbox: Outbox, named: list[Outbox], offered: Any) -> str:
        return "another open Sequence has it" if named else why_unusable(response, source, outbox, named, offered)

    monkeypatch.setattr("holdfast.core.sending.grants.creation.why_unusable", refusal)


@mutant("StrangersAreIgnored")
def let_any_certificate_use_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, Authority, "refusal", lambda self, envelope, origin: None)


@mutant("StrangersAreIgnored", "NothingUnacknowledgedDropped", "Liveness")
def forget_the_secret_of_an_address_at_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_state(cls: type[RMSource], state: Any, *rest: Any) -> RMSource:
        return original(cls, {**state, "secret": ""}, *rest)  # type: ignore[no-any-return]

    original = RMSource.from_state.__func__  # type: ignore[attr-defined]
    replace(monkeypatch, RMSource, "from_state", classmethod(from_state))


@mutant("EndsAreRemembered", "AnswersSurviveRestart")
def forget_at_a_restart_that_a_sequence_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_state(cls: type[RMDestination], state: Any, *rest: Any) -> RMDestination:
        destination: RMDestination = original(cls, state, *rest)
        if destination.state is DestinationState.CLOSED:
            destination.state = DestinationState.CREATED
        return destination

    original = RMDestination.from_state.__func__  # type: ignore[attr-defined]
    replace(monkeypatch, RMDestination, "from_state", classmethod(from_state))


@mutant("RefusedInOnePlace", "Liveness", "NothingUnacknowledgedDropped")
def do_not_tell_the_requester_of_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, UndeliverableMessages, "_answer", lambda self, record, fault, now: None)


@mutant("RefusedInOnePlace")
def bury_a_message_at_its_first_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: UndeliverableMessages, outbox: Outbox, number: int, fault: Any, now: float, **_: Any) -> None:
        original(self, outbox, number, fault, now, is_final=True)

    original = replace(monkeypatch, UndeliverableMessages, "refused", refused)


@mutant("NothingUnacknowledgedDropped", "Liveness")
def pass_a_refused_message_without_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    def _bury(self: UndeliverableMessages, outbox: Outbox, offset: int, fault: Any, times: int, now: float) -> None:
        self._answer(outbox.records.here[offset], fault, now)

    replace(monkeypatch, UndeliverableMessages, "_bury", _bury)


@mutant("RefusedInOnePlace")
def tell_the_requester_of_a_dead_letter_in_another_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def _answer(self: UndeliverableMessages, record: Record, fault: Any, now: float) -> None:
        self._commit.then(lambda later: original(self, record, fault, later))

    original = replace(monkeypatch, UndeliverableMessages, "_answer", _answer)


@mutant("RequeuedInOneBatch")
def lose_a_dead_letter_that_is_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(
        monkeypatch, UndeliverableMessages, "_requeue", lambda self, letter, found, now: self.letters.discard(letter)
    )


@mutant("RequeuedInOneBatch")
def keep_a_dead_letter_that_is_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    def _requeue(self: UndeliverableMessages, letter: int, found: Any, now: float) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DeadLetters, "discard", DeadLetters.forget_asked)
            original(self, letter, found, now)

    original = replace(monkeypatch, UndeliverableMessages, "_requeue", _requeue)


@mutant("AtMostOnce", "ReplyBeforeAcknowledgement")
def end_a_sequence_at_a_refusal_without_asking_what_else_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Withdrawals, outbox: Outbox, *about: Any) -> None:
        original(self, outbox, *about)
        assert outbox.withdrawal is not None
        outbox.withdrawal.state = WithdrawalState.ASKED

    original = replace(monkeypatch, Withdrawals, "refused", refused)


@mutant("StrangersAreIgnored")
def count_a_posted_refusal_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def _refused_request(self: PeerAcknowledgements, envelope: Any, _origin: Origin) -> Any:
        return self._outbound.request_of(envelope.relates_to, lambda _outbox: True) or (None, 0)

    replace(monkeypatch, PeerAcknowledgements, "_refused_request", _refused_request)


@mutant("Liveness")
def ignore_a_refusal_that_is_posted_to_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, PeerAcknowledgements, "_refused_request", lambda self, envelope, origin: (None, 0))


@mutant("RepeatedAfterItsExchange")
def repeat_a_request_while_its_exchange_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InFlight, "exchanges", property(lambda self: 0, lambda self, value: None))


@mutant("AnswerHasTheReply", "NothingUnacknowledgedDropped")
def answer_a_request_that_takes_long_with_an_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    def pump(self: Replies, now: float) -> None:
        while self._patience and self._patience[0][0] <= now:
            _, _, _, identifier, number, exchange = heapq.heappop(self._patience)
            waiting = self._waiting.get(identifier, {}).get(number, [])
            entry = next((one for one in waiting if one[0] is exchange), None)
            if entry is not None:
                waiting.remove(entry)
                self._acknowledging.acknowledge(self._sequences.destinations[identifier], exchange, now)

    replace(monkeypatch, Replies, "pump", pump)


@mutant("ReplyBeforeAcknowledgement", "Liveness", "NothingUnacknowledgedDropped")
def drop_a_reply_that_comes_when_no_exchange_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(self: Replies, record: Record, reply: Record | None, now: float) -> None:
        waits = bool(self._waiting.get(record.sequence, {}).get(record.message_number))
        original(self, record, reply if waits else None, now)

    original = replace(monkeypatch, Replies, "reply", reply)


@mutant("HandledOrDeadLetter")
def give_up_at_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, HandlerCursor, "failed", lambda self, offset, now: False)


@mutant("DeadLettersOnce")
def keep_a_letter_beside_the_one_that_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, DeadLetters, "failed_again", lambda self, letter, record: self.add(record))


@mutant("DeadLettersOnce")
def hand_over_a_letter_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_asked(self: DeadLetters) -> int | None:
        return next((first for first, _ in self.ranges()), None)

    replace(monkeypatch, DeadLetters, "next_asked", next_asked)


@mutant("NothingNeededDeleted", "ReaderSeesAllOnce", "RetentionKeepsItsWord")
def delete_what_a_reader_has_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_from(self: Deletion, partition: int) -> Any:
        all_of_them = self._cursors.everywhere
        self._cursors.everywhere = {name: cursor for name, cursor in all_of_them.items() if not cursor.is_readers}
        try:
            return original(self, partition)
        finally:
            self._cursors.everywhere = all_of_them

    original = replace(monkeypatch, Deletion, "keep_from", keep_from)


@mutant("NothingNeededDeleted", "ReaderSeesAllOnce", "RetentionKeepsItsWord")
def delete_what_handlers_are_not_done_with(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, Deletion, "keep_from", lambda self, partition: self._records.partitions[partition].durable_end)


@mutant("NothingNeededDeleted", "ReaderSeesAllOnce", "ReadersSeeAllOnce")
def forget_a_readers_cursor_at_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    def _recover_cursor(self: Queue, name: str, partition: int, state: Any) -> None:
        if name == HANDLER:
            original(self, name, partition, state)

    original = replace(monkeypatch, Queue, "_recover_cursor", _recover_cursor)


# --- several queues, readers, blocks and sinks ------------------------------------------------------------------------


@mutant("RetentionKeepsItsWord", "ReadersSeeAllOnce")
def protect_what_the_first_reader_has_not_passed_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_from(self: Deletion, partition: int) -> Any:
        every = self._cursors.everywhere
        readers = [name for name, cursor in every.items() if cursor.is_readers]
        self._cursors.everywhere = {name: cursor for name, cursor in every.items() if name not in readers[1:]}
        try:
            return original(self, partition)
        finally:
            self._cursors.everywhere = every

    original = replace(monkeypatch, Deletion, "keep_from", keep_from)


@mutant("RetentionKeepsItsWord", "ReadersSeeAllOnce")
def let_no_reader_protect_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def _measured(self: RetentionEnforcement, left: int, now: float) -> None:
        original(self, left, now)
        for number, one in enumerate(self._records.partitions):
            one.lapsed = max(one.lapsed, one.expired)
            self._deletion.trim(number)

    original = replace(monkeypatch, RetentionEnforcement, "_measured", _measured)


@mutant("Liveness")
def never_look_again_when_a_reader_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetentionEnforcement, "moved", lambda self, one, now: None)
    monkeypatch.setattr(RetentionEnforcement, "look_again", lambda self, now: None)


@mutant("ReadersSeeAllOnce")
def delete_unread_records_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, Deletion, "_tell", lambda self, partition, floor: None)


@mutant("CursorsAreTheReaders", "ReadersSeeAllOnce")
def let_a_late_settlement_move_a_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def move_cursor(self: Queue, name: str, partition: int, offset: int, now: float, state: Any = None) -> int:
        cursor = self.cursors.get(name)
        if cursor is not None and cursor.is_readers:
            one = self.partitions[partition]
            cursor.offsets[partition] = min(cursor.offsets[partition], max(one.first, offset))
        return original(self, name, partition, offset, now, state)  # type: ignore[no-any-return]

    original = replace(monkeypatch, Queue, "move_cursor", move_cursor)


@mutant("RoutedToEvery")
def forget_over_a_crash_where_held_messages_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_state(cls: type[RMDestination], state: Any, *rest: Any) -> RMDestination:
        return original(cls, {**state, "routed": []}, *rest)  # type: ignore[no-any-return]

    original = RMDestination.from_state.__func__  # type: ignore[attr-defined]
    replace(monkeypatch, RMDestination, "from_state", classmethod(from_state))


@mutant("RoutedToEvery")
def put_a_message_into_the_first_of_its_queues_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def _place(self: Inbound, destination: RMDestination, number: int, record: Record, queues: Any) -> Any:
        return original(self, destination, number, record, queues[:1])

    original = replace(monkeypatch, Inbound, "_place", _place)


@mutant("Liveness")
def release_no_further_block_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(self: HeldMessages, destination: RMDestination) -> None:
        self._count(destination, destination.held_bytes)

    replace(monkeypatch, HeldMessages, "recover", recover)


@mutant("RowsArriveOnce", "WrittenOnce", "AtMostOnce")
def publish_every_part_that_is_staged_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def _chosen(self: Sinks, batch: Any, tokens: Any, rows: int) -> Any:
        original(self, batch, tokens, rows)
        return [part for part in self.sinks[batch.sink].staged if part.batch == batch.number and part.staged]

    def guarded(self: Sinks, batch: Any, tokens: Any, rows: int) -> Any:
        return _chosen(self, batch, tokens, rows) if batch.sink in self.sinks else original(self, batch, tokens, rows)

    original = replace(monkeypatch, Sinks, "_chosen", guarded)


@mutant("Liveness")
def remember_a_sink_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, Sinks, "_forget_ended", lambda self, now: None)


@mutant("EveryForwarderSendsItsQueue")
def let_go_in_every_queue_of_what_one_forwarder_has_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[tuple[Any, Queue]] = []

    def join(self: Queue, commit: Any, *rest: Any) -> None:
        joined.append((commit, self))
        original_join(self, commit, *rest)

    def move_cursor(self: Queue, name: str, partition: int, *rest: Any) -> int:
        stands: int = original(self, name, partition, *rest)
        others = [queue for commit, queue in joined if commit is self.records.commit and is_routed(queue.name)]
        for queue in others if name.startswith(OUTBOUND + FORWARD) and not is_routed(self.name) else ():
            one = queue.partitions[partition]
            if one.first < min(stands, one.durable_end):
                queue.records.delete_below(partition, min(stands, one.durable_end))
        return stands

    original_join = replace(monkeypatch, Queue, "join", join)
    original = replace(monkeypatch, Queue, "move_cursor", move_cursor)


@mutant("AcceptedIsCounted")
def forget_over_a_crash_how_many_messages_entered_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_state(cls: type[RMDestination], state: Any, *rest: Any) -> RMDestination:
        return original(cls, {**state, "unqueued": 0}, *rest)  # type: ignore[no-any-return]

    original = RMDestination.from_state.__func__  # type: ignore[attr-defined]
    replace(monkeypatch, RMDestination, "from_state", classmethod(from_state))
