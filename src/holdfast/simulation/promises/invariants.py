"""What must hold whatever the network, the disks and the clocks do: named invariants, each checked from outside.

An invariant looks at the :class:`~holdfast.simulation.nodes.ledger.Ledger` (what was durable, what was said) and at the
living endpoints; it never asks an endpoint whether it did right. Override the moments that matter and call
:meth:`broken`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.core.events import Handle
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
from holdfast.core.policy import Delivery
from holdfast.core.queues.queue import DEAD_LETTERS
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Batch
from holdfast.core.sending.outboxes.records import outbox_queue
from holdfast.core.states import DESTINATION_TABLES, SOURCE_TABLES, DestinationState
from holdfast.simulation.nodes.ledger import LAST_MESSAGE, DurableState, Queued, Where, is_reply, is_row, is_staged
from holdfast.simulation.nodes.node import INBOX, SECOND_OUTBOX, Node, saved_sequences
from holdfast.simulation.nodes.routed_queues import is_routed
from holdfast.store.staged import appended

if TYPE_CHECKING:
    from holdfast.simulation.world import World


class InvariantViolation(AssertionError):
    """Something that must never happen has happened.

    Args:
        invariant: The name of the invariant.
        what: What happened.
    """

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class Invariant:
    """One thing that must hold. Its name is its class's; its docstring says it in a sentence.

    Each endpoint is watched by an instance of its own, which may remember what it saw there. What it may ask of the
    other endpoint :func:`~holdfast.simulation.nodes.ledger.seen_by_the_other` names.
    """

    def broken(self, what: str) -> NoReturn:
        """Say how it was broken.

        Raises:
            InvariantViolation: always.
        """
        raise InvariantViolation(type(self).__name__, what)

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        """An acknowledgement leaves an endpoint."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        """A batch became durable; the ledger has it already."""

    def leaving(self, world: World, node: Node, envelope: Envelope) -> None:
        """Any envelope leaves an endpoint; the ledger does not have it yet."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        """An envelope with a Sequence header leaves an endpoint; the ledger does not have it yet."""

    def reported(self, world: World, node: Node, body: bytes) -> None:
        """The source's application is told that a message has arrived."""

    def handed_over(self, world: World, node: Node, handle: Handle) -> None:
        """A record is given to the handler."""

    def pumped(self, world: World, node: Node) -> None:
        """An endpoint's timer fired."""

    def after(self, world: World, node: Node) -> None:
        """Anything has happened to the endpoint, and it is up."""


def numbers_of(acknowledgement: SequenceAcknowledgement) -> list[int]:
    """Every number an acknowledgement names."""
    return [number for lower, upper in acknowledgement.ranges for number in range(lower, upper + 1)]


def skips(node: Node) -> bool:
    """Whether the endpoint drops what comes too late: at-most-once, in order, where no replies go back."""
    policy = node.setup.destination_policy
    if policy.incomplete_sequence_behavior is not IncompleteSequenceBehavior.NO_DISCARD:
        return False  # held until it is certain that nothing will have to be discarded
    offers = any(offer for _, offer in node.world.nodes[0].setup.choices)
    return policy.assurance.in_order and policy.assurance.delivery is Delivery.AT_MOST_ONCE and not offers


def repeats(world: World) -> bool:
    """Whether the source sends again in a new Sequence by itself."""
    return world.nodes[0].setup.source_policy.assurance.delivery is Delivery.AT_LEAST_ONCE


def is_requeued(world: World, body: bytes) -> bool:
    """Whether a message was a dead letter of a broker: an operator may have put it into its queue again."""
    brokers = (node.index for node in world.nodes if node.setup.forwards)
    return any(letter.body == body for index in brokers for letter in world.ledger.disks[index].letters)


def is_of_replies(world: World, node: Node, identifier: str) -> bool:
    """Whether a Sequence brings an endpoint the replies to what it asked. It is over with that of the requests, the end
    of which was durable."""
    if not node.setup.forwards:
        return node.index == 0
    return all(name != identifier for name, _ in world.ledger.words[node.index - 1].bodies)


class AcknowledgedIsStored(Invariant):
    """What is acknowledged is on the disk, whole, at the moment it is said."""

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
    """What is acknowledged is in the saved state, so that a restart says and filters the same."""

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        disk = world.ledger.disks[node.index]
        accepted = disk.accepted.get(acknowledgement.identifier)
        state = disk.behaviors[acknowledgement.identifier] if accepted is not None else {}
        # One with a saved reply is acknowledged by that, and awaits only that its requester has it.
        unanswered = set(state.get("awaiting", ())).difference(state.get("replies", ())[0::2])
        for number in numbers_of(acknowledgement):
            if accepted is None or number not in accepted:
                self.broken(f"{node.name} acknowledges {number} of {acknowledgement.identifier}, saved are {accepted}")
            if number in unanswered:
                self.broken(f"{node.name} acknowledges {number} of {acknowledgement.identifier}, saved as unanswered")


class RangesNeverShrink(Invariant):
    """What was acknowledged once is acknowledged ever after, over every crash."""

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


class FinalIsFinal(Invariant):
    """After an acknowledgement with Final nothing is added: no other range is said, no message accepted."""

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        state = world.ledger.disks[node.index].behaviors.get(acknowledgement.identifier)
        if (
            acknowledgement.final
            and not is_of_replies(world, node, acknowledgement.identifier)
            and state is not None
            and state["state"] == "created"
        ):
            self.broken(f"{node.name} says Final of {acknowledgement.identifier}, whose end is not durable")
        final = world.ledger.words[node.index].finals.get(acknowledgement.identifier)
        if final is not None and final != acknowledgement.ranges:
            self.broken(
                f"{node.name} says {acknowledgement.ranges} of {acknowledgement.identifier} after Final {final}"
            )

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        for identifier in saved_sequences(batch, "destination"):
            final = world.ledger.words[node.index].finals.get(identifier)
            accepted = world.ledger.disks[node.index].accepted[identifier].as_pairs()
            if final is not None and final != accepted:
                self.broken(f"{node.name} accepts {accepted} of {identifier} after Final {final}")


class EndsAreDurable(Invariant):
    """That a Sequence has ended is said only once it is durable, and no request that was accepted awaits its reply."""

    def leaving(self, world: World, node: Node, envelope: Envelope) -> None:
        for identifier, is_answered in _told_ended(envelope):
            if is_of_replies(world, node, identifier):
                continue
            state = world.ledger.disks[node.index].sequences.get(identifier)
            if state is None or state["role"] == "source":
                continue
            if state["state"] == "created":
                self.broken(f"{node.name} says that {identifier} has ended, which is not durable")
            if is_answered and state["awaiting"]:
                self.broken(f"{node.name} says that {identifier} has ended, while {state['awaiting']} await replies")


def _told_ended(envelope: Envelope) -> Iterator[tuple[str, bool]]:
    """The Sequences that an envelope says have ended, and whether their requests must have been answered: whose source
    ended them, or broke them, waits for nothing."""
    control, fault = envelope.control, envelope.fault
    if isinstance(control, CloseSequenceResponse | TerminateSequenceResponse):
        yield control.identifier, False
    elif isinstance(control, CloseSequence | TerminateSequence):
        yield control.identifier, True
    elif fault is not None and fault.code in TELLS_OF_END:
        yield fault.identifier or "", True


class ReplyBeforeAcknowledgement(Invariant):
    """A request is never acknowledged before its reply is durable (wcf: the call would end without it), unless it was
    discarded with its Sequence."""

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        ledger = world.ledger
        disk = ledger.disks[node.index]
        for number in numbers_of(acknowledgement):
            key = (acknowledgement.identifier, number)
            body = ledger.came_as(node.index, key)
            wants_reply = body in ledger.wants_reply and (node.setup.forwards or not is_requeued(world, body))
            if wants_reply and b"r" + body[1:] not in disk.replies and key not in disk.dropped:
                self.broken(f"{node.name} acknowledges {number} of {acknowledgement.identifier} without its reply")


class ForwardedInOrder(Invariant):
    """Where order is promised, the destination gets what a Sequence brought to the broker by its numbers there."""

    def __init__(self) -> None:
        self._seen = 0
        self._last: dict[str, int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        broker = world.nodes[node.index - 1]
        if not broker.setup.forwards or node.setup.partitions != 1:
            return
        if not node.setup.destination_policy.assurance.in_order:
            return
        came = world.ledger.disks[broker.index].by_body
        arrived = world.ledger.disks[node.index].queues[0]
        for queued in arrived[self._seen :]:
            if (world.service is not None and queued.body in world.service.refused) or is_requeued(world, queued.body):
                continue  # what followed it was accepted, and goes on without it
            sequence, number = came[queued.body]
            if number <= self._last.get(sequence, 0):
                self.broken(
                    f"{node.name} queues {number} of {sequence} after {self._last[sequence]}, as a broker had it"
                )
            self._last[sequence] = number
        self._seen = len(arrived)


class SessionsApart(Invariant):
    """No Sequence at the destination carries messages of two sessions of which one had ended at the broker before the
    other began."""

    def __init__(self) -> None:
        self._over: set[str] = set()
        self._over_before: dict[str, set[str]] = {}
        """Session -> those that had ended when its first message went into the queue."""
        self._carried: dict[str, set[str]] = defaultdict(set)
        """Sequence at the destination -> the sessions whose messages it brought."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if node.setup.sessions:
            self._note(node, batch)
        elif node.index and world.nodes[node.index - 1].setup.sessions:
            came = world.ledger.disks[node.index - 1].by_body
            (broker,) = (one for one in world.watches[node.index - 1].stored if isinstance(one, SessionsApart))
            for queue, _, _, record in batch.appends:
                session = came[record.body][0] if queue == INBOX and record.body in came else ""
                if session in broker._over_before:
                    self._carried[record.sequence].add(session)
                    self._check(node, record.sequence, broker._over_before)

    def _note(self, node: Node, batch: Batch) -> None:
        first = node.setup.partitions
        came = [record.sequence for queue, at, _, record in batch.appends if queue == INBOX and at >= first]
        came += [sequence for sequence, _, queue, at, _, _ in batch.releases if queue == INBOX and at >= first]
        for session in came:
            self._over_before.setdefault(session, set(self._over))
            if session in self._over:  # messages that were held, or were dead letters, come after its end
                for over in self._over_before.values():
                    over.discard(session)
        self._over |= {name for name, state in batch.sequences.items() if state and state.get("ended_at") is not None}

    def _check(self, node: Node, sequence: str, over_before: dict[str, set[str]]) -> None:
        sessions = self._carried[sequence]
        for session in sessions:
            if mixed := sessions & over_before[session]:
                self.broken(f"{node.name} gets {session} in {sequence}, which brought {sorted(mixed)}, ended before")


class AtMostOnce(Invariant):
    """No message is twice in an application's queue, unless the source's application chose or allowed to repeat it."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, int]] = set()
        self._bodies: set[bytes] = set()
        self._seen: dict[int, int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        keys, bodies, seen = self._keys, self._bodies, self._seen
        for partition, records in world.ledger.disks[node.index].queues.items():
            for queued in records[seen.get(partition, 0) :]:
                if node.setup.forwards and is_requeued(world, queued.body):
                    continue  # the broker takes a dead letter back
                key = (queued.sequence, queued.number)
                if queued.sequence and key in keys:
                    self.broken(f"{node.name} delivers {queued.number} of {queued.sequence} twice")
                if queued.body in bodies and not self._may_repeat(world, queued.body):
                    self.broken(f"{node.name} delivers {queued.body.decode()} twice")
                keys.add(key)
                bodies.add(queued.body)
            seen[partition] = len(records)

    @staticmethod
    def _may_repeat(world: World, body: bytes) -> bool:
        in_doubt = world.ledger.words[0].in_doubt
        return repeats(world) or body in in_doubt or b"m" + body[1:] in in_doubt


def order_of(body: bytes) -> int:
    """When it was submitted: the simulator's bodies are m0, m1 ..., their replies r0, r1 ..."""
    return int(body[1:])


class InOrder(Invariant):
    """Where order is promised, a Sequence's messages are queued by their numbers, without a hole while it is open."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._last: dict[str, int] = {}
        self._last_order = -1

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if not node.setup.destination_policy.assurance.in_order:
            return
        disk = world.ledger.disks[node.index]
        for partition, records in disk.queues.items():
            for queued in records[self._seen.get(partition, 0) :]:
                if node.setup.forwards and is_requeued(world, queued.body):
                    continue  # an operator puts a dead letter behind what is there
                was_refused = world.service is not None and queued.body in world.service.refused
                was_refused |= is_requeued(world, queued.body)
                is_of_sink = node.setup.forwards and is_row(queued.body)  # its numbers are those of no Sequence of ours
                if queued.sequence and not is_of_sink:
                    # A Sequence of replies ends, and is forgotten, in the batch that releases what it held.
                    is_open = disk.sequences.get(queued.sequence, {}).get("state") == "created"
                    self._follow(node, queued.sequence, queued.number, is_open and not skips(node))
                if not is_row(queued.body) and not was_refused:
                    self._follow_outbox(world, node, queued.body)
            self._seen[partition] = len(records)

    def _follow(self, node: Node, sequence: str, number: int, without_hole: bool) -> None:
        last = self._last.get(sequence, 0)
        if number <= last or (without_hole and number != last + 1):
            self.broken(f"{node.name} queues {number} of {sequence} after {last}")
        self._last[sequence] = number

    def _follow_outbox(self, world: World, node: Node, body: bytes) -> None:
        if world.broker is not None:
            return  # the broker's queue has the order
        # A broker keeps the order of a Sequence, not of two: the next one may have another partition, or a session.
        passed = [one.setup for one in world.nodes[1 : node.index + 1]]
        is_one_line = all(one.partitions == 1 and not one.sessions for one in passed)
        if not node.index or not is_one_line or repeats(world) or world.ledger.words[0].in_doubt:
            return
        order = order_of(body)
        if order <= self._last_order:
            self.broken(f"{node.name} queues {body.decode()} after m{self._last_order}")
        self._last_order = order


class NumbersNeverReused(Invariant):
    """A message number of a Sequence means one message for ever, over every crash."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        assert envelope.sequence is not None
        key = (envelope.sequence.identifier, envelope.sequence.message_number)
        body = LAST_MESSAGE if envelope.sequence.last_message else envelope.body
        known = world.ledger.words[node.index].bodies.get(key, body)
        if known != body:
            self.broken(f"{node.name} sends {body.decode()} as {key[1]} of {key[0]}, which was {known.decode()}")


class TransmittedIsDurable(Invariant):
    """Nothing is transmitted before it, and what gives it its number, is on the sender's disk."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        sequence = envelope.sequence
        assert sequence is not None
        disk = world.ledger.disks[node.index]
        state = next(iter(disk.sending(sequence.identifier)), None)
        if state is None:
            self.broken(f"{node.name} uses {sequence.identifier}, of which nothing is durable")
        if sequence.last_message:
            return
        records = disk.sent_under(state["outbox"])
        offset = state["start"] + sequence.message_number - 1
        if offset >= len(records) or records[offset].body != envelope.body:
            self.broken(f"{node.name} transmits {envelope.body.decode()}, which is not durable at its offset {offset}")


class TransmittedIsMarked(Invariant):
    """No number is transmitted beyond the mark on the sender's disk: after a crash it is known what may have been."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        assert envelope.sequence is not None
        identifier, number = envelope.sequence.identifier, envelope.sequence.message_number
        for state in world.ledger.disks[node.index].sending(identifier):
            if not state["polled"] and number > state["mark"]:
                self.broken(f"{node.name} transmits {number} of {identifier}, marked are those up to {state['mark']}")


class NothingUnacknowledgedDropped(Invariant):
    """A message leaves an outbox, and is reported as arrived, only when the peer has it (and we have its reply)."""

    def __init__(self) -> None:
        self._checked: dict[str, int] = {}
        self._passed: dict[int, int] = {}
        self._times: Counter[bytes] = Counter()

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk = world.ledger.disks[node.index]
        for (queue, partition), offset in batch.trims.items():
            if queue == INBOX and node.setup.forwards:
                for queued in disk.queues[partition][self._passed.get(partition, 0) : offset]:
                    self._drop(world, node, queued.body)
                self._passed[partition] = offset
            if queue in (INBOX, DEAD_LETTERS) or is_staged(queue) or is_routed(queue):
                continue
            to = world.second if queue == outbox_queue(SECOND_OUTBOX) else world
            for record in disk.outbound[queue][self._checked.get(queue, 0) : disk.trimmed[queue]]:
                self._look(to or world, node, record.body, "drops")
            self._checked[queue] = disk.trimmed[queue]

    def reported(self, world: World, node: Node, body: bytes) -> None:
        if not (node.setup.forwards and is_requeued(world, body)):
            self._look(world, node, body, "reports as arrived")

    def _drop(self, world: World, node: Node, body: bytes) -> None:
        """A broker drops a message, each time that it was in the queue: it has become a dead letter, or has arrived."""
        self._times[body] += 1
        letters = world.ledger.disks[node.index].letters
        if [letter.body for letter in letters].count(body) < self._times[body]:
            self._look(world, node, body, "drops")

    def _look(self, world: World, node: Node, body: bytes, verb: str) -> None:
        if not world.ledger.has_arrived(node.index - 1 if is_reply(body) else node.index + 1, body):
            self.broken(f"{node.name} {verb} {body.decode()}, which has not arrived")
        is_answered = b"r" + body[1:] in world.ledger.disks[node.index].replies
        if body in world.ledger.wants_reply and not is_answered and not world.ledger.is_discarded(body):
            self.broken(f"{node.name} {verb} {body.decode()} without having its reply")


class HandledOnce(Invariant):
    """The handler gets nothing again that is durably done, and in order only what follows what it is done with; at most
    once, it gets nothing that is not durably marked as done before, and nothing twice."""

    def __init__(self) -> None:
        self._called: set[tuple[int, int]] = set()

    def handed_over(self, world: World, node: Node, handle: Handle) -> None:
        disk = world.ledger.disks[node.index]
        if handle.queue == DEAD_LETTERS:
            return
        partition, offset = handle.partition, handle.offset
        done = disk.done.get(partition)
        is_marked = done is not None and offset + 1 in done
        if node.setup.destination_policy.assurance.delivery is Delivery.AT_MOST_ONCE:
            if not is_marked or (partition, offset) in self._called:
                self.broken(f"{node.name} hands over offset {offset} of partition {partition}, which may happen twice")
            self._called.add((partition, offset))
        elif is_marked:
            self.broken(f"{node.name} hands over offset {offset} of partition {partition}, which is done with")
        records = disk.queues[partition]
        if offset >= len(records):
            self.broken(f"{node.name} hands over offset {offset} of partition {partition}, which is not durable")
        if not node.setup.destination_policy.assurance.in_order:
            return
        cursor = node.handling.cursors[partition]
        for earlier in range(offset):
            if records[earlier].sequence == records[offset].sequence and not cursor.is_done(earlier):
                self.broken(f"{node.name} hands over offset {offset} before offset {earlier} of the same Sequence")


class HandledOrDeadLetter(Invariant):
    """What the handlers are done with succeeded, or has become a dead letter in the same batch after as many failures
    as it may have; never both. At most once, there are no dead letters."""

    def __init__(self) -> None:
        self._done: dict[int, AcknowledgementRanges] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk = world.ledger.disks[node.index]
        letters = letters_of(batch)
        for partition, done in disk.done.items():
            before = self._done.get(partition, AcknowledgementRanges())
            if done == before:
                continue
            self._done[partition] = done.copy()
            for number in [number for lower, upper in done for number in range(lower, upper + 1)]:
                if number not in before and number <= len(disk.queues[partition]):
                    self._look(node, disk, (INBOX, partition, number - 1), letters)

    def _look(self, node: Node, disk: DurableState, where: Where, letters: list[Queued]) -> None:
        queued = disk.queues[where[1]][where[2]]
        times = letters.count(queued)
        failures = disk.outcomes.get(where, 0)
        if node.setup.destination_policy.assurance.delivery is Delivery.AT_MOST_ONCE:
            if times:
                self.broken(f"{node.name} makes a dead letter of {queued.body.decode()}, which is handled at most once")
        elif times != (0 if failures < 0 else 1):
            self.broken(f"{node.name} is done with {queued.body.decode()}: {failures} failures, {times} dead letters")
        elif failures >= 0 and failures != node.setup.handling.attempts:
            self.broken(f"{node.name} gives up {queued.body.decode()} after {failures} failures")


class DeadLettersOnce(Invariant):
    """A message that was given up is a dead letter once, until it is handled after all; one is handed over once more
    only when that was asked for, durably."""

    def __init__(self) -> None:
        self._over = AcknowledgementRanges()

    def handed_over(self, world: World, node: Node, handle: Handle) -> None:
        disk, number = world.ledger.disks[node.index], handle.offset + 1
        is_asked = number in disk.letters_asked and number not in disk.letters_over
        if handle.queue == DEAD_LETTERS and not is_asked:
            self.broken(f"{node.name} hands over the dead letter {handle.offset}, which nobody asked for")

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk, letters = world.ledger.disks[node.index], letters_of(batch)
        for number in [number for lower, upper in disk.letters_over for number in range(lower, upper + 1)]:
            if number in self._over:
                continue
            if node.setup.forwards:
                continue  # it has no handlers: an operator requeues its dead letters
            failures = disk.outcomes.get((DEAD_LETTERS, 0, number - 1), 0)
            times = letters.count(disk.letters[number - 1])
            if failures == 0 or times != (0 if failures < 0 else 1):
                self.broken(f"{node.name} is done with the dead letter {number - 1}: {failures} failures, {times} anew")
        self._over = disk.letters_over.copy()
        live = [key for number, key in enumerate(disk.letters, 1) if number not in disk.letters_over]
        if len(set(live)) != len(live):
            self.broken(f"{node.name} has a dead letter twice: {live}")


def letters_of(batch: Batch) -> list[Queued]:
    """The messages that become dead letters with a batch."""
    return [
        Queued(one.sequence, one.message_number, one.body)
        for queue, _, _, one in batch.appends
        if queue == DEAD_LETTERS
    ]


class NothingNeededDeleted(Invariant):
    """Nothing goes from a queue that the handlers are not durably done with, or that a reader's durable cursor has not
    passed."""

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
    """A broker writes the body of a message that it forwards once for each queue, whether it is held, queued or sent
    on; and so a row that moves into its queue, from where it was staged."""

    def __init__(self) -> None:
        self._written: set[tuple[str, bytes]] = set()

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if not node.setup.forwards:
            return
        elsewhere = [(queue, record) for queue, _, _, record in appended(batch) if not is_staged(queue)]
        written = [(queue, record) for queue, record in elsewhere if queue != DEAD_LETTERS]
        for queue, record in [*written, *((INBOX, one[2]) for one in batch.holds)]:
            if is_reply(record.body):
                continue  # kept for its requester, beside what keeps it in order
            key = (queue if is_routed(queue) else INBOX, record.body)
            if key in self._written and not is_requeued(world, record.body):
                self.broken(f"{node.name} writes {record.body.decode()} a second time")
            self._written.add(key)


class IncompleteSequences(Invariant):
    """A Sequence that ended gives to the queue exactly what its IncompleteSequenceBehavior says, and tells its gaps.
    Messages that it still holds are on their way there."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk = world.ledger.disks[node.index]
        for identifier, state in saved_sequences(batch, "destination").items():
            if state["state"] == "created" or skips(node):
                continue
            accepted = disk.accepted[identifier]
            last: Any = state["last_message_number"]
            gaps = list(accepted.gaps(last or accepted.highest))
            if state["gaps"] != [number for gap in gaps for number in gap]:
                self.broken(f"{node.name} tells of the gaps {state['gaps']} of {identifier}, they are {gaps}")
            expected = {number for lower, upper in accepted for number in range(lower, upper + 1)} - {state["marker"]}
            if node.setup.forwards:  # a reply goes to who asked, and into no queue
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
    """A Sequence of which a durable state says that it is closed or terminated is never open again, over every
    crash."""

    def after(self, world: World, node: Node) -> None:
        saved = world.ledger.disks[node.index].behaviors
        for name, destination in node.protocol.inbound.destinations.items():
            if destination.state is DestinationState.CREATED and name in saved and saved[name]["state"] != "created":
                self.broken(f"{node.name} has {name} open, which is durably {saved[name]['state']}")


class LegalMoves(Invariant):
    """A Sequence moves by its state table only."""

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
            return  # another object: a restart read it back, or a late CreateSequence made it anew
        if state not in reachable(table, before):
            self.broken(f"{what} of {node.name} moved from {before.value} to {state.value}")


def reachable(table: dict[tuple[Enum, Enum], Any], state: Enum) -> set[Enum]:
    """The states that one event can lead to: by one cell, or by two (some inputs are two events at once)."""
    once = {cell[1] for (before, _), cell in table.items() if before is state}
    return once | {cell[1] for (before, _), cell in table.items() if before in once}


class TimersMakeProgress(Invariant):
    """A timer that fired is not due again at the same moment for ever."""

    def __init__(self) -> None:
        self._when = -1.0
        self._times = 0

    def pumped(self, world: World, node: Node) -> None:
        when = world.clock.now
        self._times = self._times + 1 if when == self._when else 0
        self._when = when
        if self._times > 200:
            self.broken(f"the timer of {node.name} is due again and again at one moment")


class Bounded(Invariant):
    """Ranges, held messages and messages in flight stay within the limits that the policies name."""

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
