"""Named invariants that hold whatever the network, the disks and the clocks do, each checked from outside.

Here are those of acknowledgements, numbers, deletion and states; ``delivery_invariants`` has those of delivery.
:data:`ALL_INVARIANTS` lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from holdfast.core.faults import TELLS_OF_END
from holdfast.core.messages import (
    CloseSequence,
    CloseSequenceResponse,
    Envelope,
    IncompleteSequenceBehavior,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Batch
from holdfast.core.states.inbound import DESTINATION_TABLES, DestinationState
from holdfast.core.states.outbound import SOURCE_TABLES
from holdfast.simulation.nodes.ledger import LAST_MESSAGE, is_reply, is_staged
from holdfast.simulation.nodes.node import INBOX, Node, saved_sequences
from holdfast.simulation.nodes.routed_queues import is_routed
from holdfast.simulation.promises.delivery_invariants import (
    AtMostOnce,
    DeadLettersOnce,
    ForwardedInOrder,
    HandledOnce,
    HandledOrDeadLetter,
    InOrder,
    NothingUnacknowledgedDropped,
    SessionsApart,
)
from holdfast.simulation.promises.invariant import (
    Invariant,
    is_of_replies,
    is_requeued,
    numbers_of,
    skips,
)
from holdfast.store.staged import appended

if TYPE_CHECKING:
    from holdfast.simulation.world import World


class AcknowledgedIsStored(Invariant):
    """A message is on the disk, complete, when an endpoint acknowledges it."""

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        disk = world.ledger.disks[node.index]
        if skips(node):
            return
        for number in numbers_of(acknowledgement):
            key = (acknowledgement.identifier, number)
            body = world.ledger.came_as(node.index, key)
            is_kept = key in disk.records or body == LAST_MESSAGE
            if not is_kept and not (node.setup.forwards and body in disk.replies):
                self.broken(f"{node.name} acknowledges {number} of {acknowledgement.identifier}, which is not durable")


class AcknowledgedIsRemembered(Invariant):
    """An acknowledged number is in the saved state, so that a restart acknowledges and filters the same."""

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        disk = world.ledger.disks[node.index]
        accepted = disk.accepted.get(acknowledgement.identifier)
        state = disk.behaviors[acknowledgement.identifier] if accepted is not None else {}
        # A saved reply acknowledges its request; the request then only awaits the delivery of that reply.
        unanswered = set(state.get("awaiting", ())).difference(state.get("replies", ())[0::2])
        for number in numbers_of(acknowledgement):
            if accepted is None or number not in accepted:
                self.broken(f"{node.name} acknowledges {number} of {acknowledgement.identifier}, saved are {accepted}")
            if number in unanswered:
                self.broken(f"{node.name} acknowledges {number} of {acknowledgement.identifier}, saved as unanswered")


class RangesNeverShrink(Invariant):
    """An acknowledged number stays acknowledged, across every crash."""

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        said = world.ledger.words[node.index].said.get(acknowledgement.identifier)
        if said is not None and not acknowledgement.nacks:
            self._compare(said, AcknowledgementRanges(acknowledgement.ranges), acknowledgement.identifier, node)

    def after(self, world: World, node: Node) -> None:
        everything = world.ledger.words[node.index].said
        for identifier, destination in node.protocol.inbound.destinations.items():
            said = everything.get(identifier)
            if said is not None and said != destination.acknowledged:
                self._compare(said, destination.acknowledged, identifier, node)

    def _compare(self, said: AcknowledgementRanges, now: AcknowledgementRanges, identifier: str, node: Node) -> None:
        if said == now:
            return
        union = now.copy()
        union.update(said)
        if union != now:
            self.broken(f"{node.name} acknowledges {now} of {identifier} after it had acknowledged {said}")


class AcceptedIsCounted(Invariant):
    """Every accepted number is that of a message that is or was on the disk, or counts as one for no queue."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk = world.ledger.disks[node.index]
        for identifier, state in saved_sequences(batch, "destination").items():
            known = {number for sequence, number in disk.records if sequence == identifier}
            accepted, unqueued = disk.accepted[identifier].count, int(str(state["unqueued"]))
            if accepted != len(known) + unqueued:
                what = f"{accepted} messages of {identifier}, has {sorted(known)}, and counts {unqueued} for no queue"
                self.broken(f"{node.name} accepts {what}")


class FinalIsFinal(Invariant):
    """After an acknowledgement with Final, the ranges stay the same and the endpoint accepts no message."""

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        state = world.ledger.disks[node.index].behaviors.get(acknowledgement.identifier)
        if (
            acknowledgement.final
            and not is_of_replies(world, node, acknowledgement.identifier)
            and state is not None
            and state["state"] == "created"
        ):
            self.broken(f"{node.name} sends Final for {acknowledgement.identifier}, but its end is not durable")
        final = world.ledger.words[node.index].finals.get(acknowledgement.identifier)
        if final is not None and final != acknowledgement.ranges:
            self.broken(
                f"{node.name} acknowledges {acknowledgement.ranges} of {acknowledgement.identifier} after Final {final}"
            )

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        for identifier in saved_sequences(batch, "destination"):
            final = world.ledger.words[node.index].finals.get(identifier)
            accepted = world.ledger.disks[node.index].accepted[identifier].as_pairs()
            if final is not None and final != accepted:
                self.broken(f"{node.name} accepts {accepted} of {identifier} after Final {final}")


class EndsAreDurable(Invariant):
    """An endpoint reports the end of a Sequence only when it is durable and every accepted request has its reply."""

    def leaving(self, world: World, node: Node, envelope: Envelope) -> None:
        for identifier, is_answered in _told_ended(envelope):
            if is_of_replies(world, node, identifier):
                continue
            state = world.ledger.disks[node.index].sequences.get(identifier)
            if state is None or state["role"] == "source":
                continue
            if state["state"] == "created":
                self.broken(f"{node.name} reports the end of {identifier}, which is not durable")
            if is_answered and state["awaiting"]:
                self.broken(f"{node.name} reports the end of {identifier}, while {state['awaiting']} await replies")


def _told_ended(envelope: Envelope) -> Iterator[tuple[str, bool]]:
    """Yield each Sequence that an envelope reports as ended, and whether its requests must already have replies.

    A source that ended or broke its Sequence awaits no replies.
    """
    control, fault = envelope.control, envelope.fault
    if isinstance(control, CloseSequenceResponse | TerminateSequenceResponse):
        yield control.identifier, False
    elif isinstance(control, CloseSequence | TerminateSequence):
        yield control.identifier, True
    elif fault is not None and fault.code in TELLS_OF_END:
        yield fault.identifier or "", True


class ReplyBeforeAcknowledgement(Invariant):
    """An endpoint acknowledges a request only once the reply is durable, or discards it with its Sequence.

    In the wcf profile, the call would otherwise end without its reply.
    """

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        ledger = world.ledger
        disk = ledger.disks[node.index]
        for number in numbers_of(acknowledgement):
            key = (acknowledgement.identifier, number)
            body = ledger.came_as(node.index, key)
            wants_reply = body in ledger.wants_reply and (node.setup.forwards or not is_requeued(world, body))
            if wants_reply and b"r" + body[1:] not in disk.replies and key not in disk.dropped:
                self.broken(f"{node.name} acknowledges {number} of {acknowledgement.identifier} without its reply")


class NumbersNeverReused(Invariant):
    """A message number of a Sequence always means the same message, across every crash."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        assert envelope.sequence is not None
        key = (envelope.sequence.identifier, envelope.sequence.message_number)
        body = LAST_MESSAGE if envelope.sequence.last_message else envelope.body
        known = world.ledger.words[node.index].bodies.get(key, body)
        if known != body:
            self.broken(f"{node.name} sends {body.decode()} as {key[1]} of {key[0]}, which was {known.decode()}")


class TransmittedIsDurable(Invariant):
    """An endpoint transmits a message only when it, and the state that numbers it, are on the disk."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        sequence = envelope.sequence
        assert sequence is not None
        disk = world.ledger.disks[node.index]
        state = next(iter(disk.sending(sequence.identifier)), None)
        if state is None:
            self.broken(f"{node.name} uses {sequence.identifier}, which has no durable state")
        if sequence.last_message:
            return
        records = disk.sent_under(state["outbox"])
        offset = state["start"] + sequence.message_number - 1
        if offset >= len(records) or records[offset].body != envelope.body:
            self.broken(f"{node.name} transmits {envelope.body.decode()}, which is not durable at its offset {offset}")


class TransmittedIsMarked(Invariant):
    """An endpoint transmits no number beyond its saved mark, so that it knows after a crash which it may have sent."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        assert envelope.sequence is not None
        identifier, number = envelope.sequence.identifier, envelope.sequence.message_number
        for state in world.ledger.disks[node.index].sending(identifier):
            if not state["polled"] and number > state["mark"]:
                self.broken(f"{node.name} transmits {number} of {identifier}, but the saved mark is {state['mark']}")


class NothingNeededDeleted(Invariant):
    """A queue keeps each record until the handlers are durably done with it and every reader's durable cursor passed
    it."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk = world.ledger.disks[node.index]
        for (queue, partition), offset in batch.trims.items():
            if queue != INBOX or node.setup.forwards:
                continue
            done = disk.done.get(partition)
            if done is None or not done.covers(offset):
                self.broken(f"{node.name} deletes partition {partition} up to {offset}, its handlers are at {done}")
            for (where, name), position in disk.readers.items():
                if where == partition and position < offset:
                    self.broken(f"{node.name} deletes partition {partition} up to {offset}, {name} is at {position}")


class WrittenOnce(Invariant):
    """A broker writes a forwarded message's body once for each queue, whether it holds, queues or forwards it.

    The same applies to a staged row that moves into its queue.
    """

    def __init__(self) -> None:
        self._written: set[tuple[str, bytes]] = set()

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if not node.setup.forwards:
            return
        elsewhere = [(queue, record) for queue, _, _, record in appended(batch) if not is_staged(queue)]
        written = [(queue, record) for queue, record in elsewhere if queue != DEAD_LETTERS]
        for queue, record in [*written, *((INBOX, one[2]) for one in batch.holds)]:
            if is_reply(record.body):
                continue  # stored for its requester, in addition to the copy that keeps the order
            key = (queue if is_routed(queue) else INBOX, record.body)
            if key in self._written and not is_requeued(world, record.body):
                self.broken(f"{node.name} writes {record.body.decode()} a second time")
            self._written.add(key)


class IncompleteSequences(Invariant):
    """An ended Sequence gives the queue what its IncompleteSequenceBehavior requires, and reports its gaps.

    Messages that it still holds count as queued.
    """

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk = world.ledger.disks[node.index]
        for identifier, state in saved_sequences(batch, "destination").items():
            if state["state"] == "created" or skips(node):
                continue
            accepted = disk.accepted[identifier]
            last: Any = state["last_message_number"]
            gaps = list(accepted.gaps(last or accepted.highest))
            if state["gaps"] != [number for gap in gaps for number in gap]:
                self.broken(f"{node.name} reports the gaps {state['gaps']} of {identifier}, but they are {gaps}")
            expected = {number for lower, upper in accepted for number in range(lower, upper + 1)} - {state["marker"]}
            if node.setup.forwards:  # a reply goes to its requester, not into a queue
                came = {number: world.ledger.came_as(node.index, (identifier, number)) for number in expected}
                expected = {number for number, body in came.items() if not is_reply(body)}
            if gaps and state["behavior"] == IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE.value:
                expected = set()
            elif gaps and state["behavior"] == IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP.value:
                expected = {number for number in expected if number < gaps[0][0]}
            queued = {q.number for records in disk.queues.values() for q in records if q.sequence == identifier}
            held = {number for sequence, number in disk.held if sequence == identifier}
            if queued | held != expected or queued & held:
                self.broken(f"{identifier} ended {state['behavior']} with {gaps} missing and queued {sorted(queued)}")


class EndsAreRemembered(Invariant):
    """A Sequence that is durably closed or terminated never opens again, across every crash."""

    def after(self, world: World, node: Node) -> None:
        saved = world.ledger.disks[node.index].behaviors
        for name, destination in node.protocol.inbound.destinations.items():
            if destination.state is DestinationState.CREATED and name in saved and saved[name]["state"] != "created":
                self.broken(f"{node.name} has {name} open, but it is durably {saved[name]['state']}")


class LegalMoves(Invariant):
    """A Sequence changes state only as its state table allows."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, Enum]] = {}

    def after(self, world: World, node: Node) -> None:
        for name, destination in node.protocol.inbound.destinations.items():
            table: Any = DESTINATION_TABLES[destination.versions.rm]
            self._look(node, f"inbound {name}", destination, destination.state, table)
        for name, outbox in node.protocol.outbound.sequences.by_local_id.items():
            if outbox.source is not None:
                table = SOURCE_TABLES[outbox.source.versions.rm]
                self._look(node, f"outbound {name}", outbox.source, outbox.source.state, table)

    def _look(self, node: Node, what: str, sequence: object, state: Enum, table: dict[tuple[Enum, Enum], Any]) -> None:
        known, before = self._known.get(what, (None, state))
        self._known[what] = (sequence, state)
        if before is state or known is not sequence:
            return  # another object: a restart restored it, or a late CreateSequence created it again
        if state not in reachable(table, before):
            self.broken(f"{what} of {node.name} moved from {before.value} to {state.value}")


def reachable(table: dict[tuple[Enum, Enum], Any], state: Enum) -> set[Enum]:
    """Return the states after one event: one cell, or two, because some inputs are two events at once."""
    once = {cell[1] for (before, _), cell in table.items() if before is state}
    return once | {cell[1] for (before, _), cell in table.items() if before in once}


class TimersMakeProgress(Invariant):
    """A timer that fired is not due again at the same moment without end."""

    def __init__(self) -> None:
        self._when = -1.0
        self._times = 0

    def pumped(self, world: World, node: Node) -> None:
        when = world.clock.now
        self._times = self._times + 1 if when == self._when else 0
        self._when = when
        if self._times > 200:
            self.broken(f"the timer of {node.name} fires more than 200 times at one moment")


class Bounded(Invariant):
    """Ranges, held messages and messages in flight stay within the limits of the policies."""

    def after(self, world: World, node: Node) -> None:
        policy = node.setup.destination_policy
        for name, destination in node.protocol.inbound.destinations.items():
            if len(destination.accepted) > policy.max_ranges:
                self.broken(f"{len(destination.accepted)} ranges of {name}, at most {policy.max_ranges}")
            if destination.beyond_gap > policy.buffer:
                self.broken(f"{destination.beyond_gap} messages of {name} held, at most {policy.buffer}")
        window = node.setup.source_policy.window
        for name, outbox in node.protocol.outbound.sequences.by_local_id.items():
            if outbox.source is not None and not outbox.source.polled and len(outbox.source.flight) > window:
                self.broken(f"{len(outbox.source.flight)} messages of {name} in flight, at most {window}")


ALL_INVARIANTS: tuple[type[Invariant], ...] = (
    AcknowledgedIsStored,
    AcknowledgedIsRemembered,
    RangesNeverShrink,
    AcceptedIsCounted,
    FinalIsFinal,
    EndsAreDurable,
    ReplyBeforeAcknowledgement,
    ForwardedInOrder,
    SessionsApart,
    AtMostOnce,
    InOrder,
    NumbersNeverReused,
    TransmittedIsDurable,
    TransmittedIsMarked,
    NothingUnacknowledgedDropped,
    HandledOnce,
    HandledOrDeadLetter,
    DeadLettersOnce,
    NothingNeededDeleted,
    WrittenOnce,
    IncompleteSequences,
    LegalMoves,
    EndsAreRemembered,
    TimersMakeProgress,
    Bounded,
)
"""Every invariant, in the order of the documentation."""
