"""Named invariants that hold whatever the network, the disks and the clocks do, each checked from outside.

An invariant reads the :class:`~holdfast.simulation.nodes.ledger.Ledger` (durable state, sent acknowledgements) and the
running endpoints. It never asks an endpoint whether it acted correctly. To write one, override the hooks you need and
call :meth:`broken`.
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
from holdfast.core.queues.description import DEAD_LETTERS
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
    """An invariant does not hold.

    Args:
        invariant: The name of the invariant.
        what: What happened.
    """

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class Invariant:
    """One condition, named after its class; the class's docstring states it.

    Each endpoint has its own instance, which may remember what it saw there. Of the other endpoint, it may read only
    the part that :func:`~holdfast.simulation.nodes.ledger.seen_by_the_other` returns.
    """

    def broken(self, what: str) -> NoReturn:
        """Report a violation.

        Raises:
            InvariantViolation: always.
        """
        raise InvariantViolation(type(self).__name__, what)

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        """Called before an endpoint sends an acknowledgement."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        """Called after a batch became durable and the ledger recorded it."""

    def leaving(self, world: World, node: Node, envelope: Envelope) -> None:
        """Called before an endpoint sends any envelope and the ledger records it."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        """Called before an endpoint sends an envelope with a Sequence header and the ledger records it."""

    def reported(self, world: World, node: Node, body: bytes) -> None:
        """Called when the core reports to the source's application that a message has arrived."""

    def handed_over(self, world: World, node: Node, handle: Handle) -> None:
        """Called when the core gives a record to the handler."""

    def pumped(self, world: World, node: Node) -> None:
        """Called after an endpoint's timer fired."""

    def after(self, world: World, node: Node) -> None:
        """Called after each event of a running endpoint."""


def numbers_of(acknowledgement: SequenceAcknowledgement) -> list[int]:
    """Return every number that an acknowledgement names."""
    return [number for lower, upper in acknowledgement.ranges for number in range(lower, upper + 1)]


def skips(node: Node) -> bool:
    """Whether the endpoint drops late messages: at-most-once, in order, without replies."""
    policy = node.setup.destination_policy
    if policy.incomplete_sequence_behavior is not IncompleteSequenceBehavior.NO_DISCARD:
        return False  # it holds messages until no rule can discard them
    offers = any(offer for _, offer in node.world.nodes[0].setup.choices)
    return policy.assurance.in_order and policy.assurance.delivery is Delivery.AT_MOST_ONCE and not offers


def repeats(world: World) -> bool:
    """Whether the source automatically sends unacknowledged messages again in a new Sequence."""
    return world.nodes[0].setup.source_policy.assurance.delivery is Delivery.AT_LEAST_ONCE


def is_requeued(world: World, body: bytes) -> bool:
    """Whether a message was a dead letter of a broker, so that an operator may have requeued it."""
    brokers = (node.index for node in world.nodes if node.setup.forwards)
    return any(letter.body == body for index in brokers for letter in world.ledger.disks[index].letters)


def is_of_replies(world: World, node: Node, identifier: str) -> bool:
    """Whether a Sequence carries the replies to an endpoint's requests.

    Such a Sequence ends with the Sequence of the requests, after the end of that one is durable.
    """
    if not node.setup.forwards:
        return node.index == 0
    return all(name != identifier for name, _ in world.ledger.words[node.index - 1].bodies)


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


class ForwardedInOrder(Invariant):
    """If order is promised, the destination gets a Sequence's messages in the order of their broker numbers."""

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
                continue  # the service accepted the messages behind it without waiting for it
            sequence, number = came[queued.body]
            if number <= self._last.get(sequence, 0):
                self.broken(
                    f"{node.name} queues {number} of {sequence} after {self._last[sequence]}, unlike the broker"
                )
            self._last[sequence] = number
        self._seen = len(arrived)


class SessionsApart(Invariant):
    """No Sequence at the destination mixes two sessions if one ended at the broker before the other began."""

    def __init__(self) -> None:
        self._over: set[str] = set()
        self._over_before: dict[str, set[str]] = {}
        """Session -> the sessions that had ended when its first message entered the queue."""
        self._carried: dict[str, set[str]] = defaultdict(set)
        """Sequence at the destination -> the sessions of the messages in it."""

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
            if session in self._over:  # held messages and requeued dead letters arrive after the session's end
                for over in self._over_before.values():
                    over.discard(session)
        self._over |= {name for name, state in batch.sequences.items() if state and state.get("ended_at") is not None}

    def _check(self, node: Node, sequence: str, over_before: dict[str, set[str]]) -> None:
        sessions = self._carried[sequence]
        for session in sessions:
            if mixed := sessions & over_before[session]:
                self.broken(f"{node.name} gets {session} in {sequence}, which brought {sorted(mixed)}, ended before")


class AtMostOnce(Invariant):
    """No message is twice in a queue, unless the source's application requested or allowed the repeat."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, int]] = set()
        self._bodies: set[bytes] = set()
        self._seen: dict[int, int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        keys, bodies, seen = self._keys, self._bodies, self._seen
        for partition, records in world.ledger.disks[node.index].queues.items():
            for queued in records[seen.get(partition, 0) :]:
                if node.setup.forwards and is_requeued(world, queued.body):
                    continue  # an operator requeued the dead letter
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
    """Return the position in which it was submitted: bodies are m0, m1 ..., their replies r0, r1 ..."""
    return int(body[1:])


class InOrder(Invariant):
    """If order is promised, a Sequence's messages are queued by number, without a gap while the Sequence is open."""

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
                    continue  # an operator requeues a dead letter behind newer records
                was_refused = world.service is not None and queued.body in world.service.refused
                was_refused |= is_requeued(world, queued.body)
                is_of_sink = node.setup.forwards and is_row(queued.body)  # its number belongs to no simulated Sequence
                if queued.sequence and not is_of_sink:
                    # A Sequence of replies ends, and is forgotten, in the batch that releases its held messages.
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
            return  # the broker's queue defines the order
        # A broker keeps order within a Sequence only: the next Sequence may use another partition or session.
        passed = [one.setup for one in world.nodes[1 : node.index + 1]]
        is_one_line = all(one.partitions == 1 and not one.sessions for one in passed)
        if not node.index or not is_one_line or repeats(world) or world.ledger.words[0].in_doubt:
            return
        order = order_of(body)
        if order <= self._last_order:
            self.broken(f"{node.name} queues {body.decode()} after m{self._last_order}")
        self._last_order = order


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


class NothingUnacknowledgedDropped(Invariant):
    """A message leaves an outbox, or is reported as arrived, only when the peer has it and the sender has its reply."""

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
        """Check a deletion from a broker's queue: the message is a dead letter or has arrived.

        A requeued message is in the queue several times, so this counts the deletions.
        """
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
    """The handler never gets a record again that is durably done.

    In order, it gets a record only after every earlier record of the Sequence is done. At most once, it gets a record
    only after the durable mark that it is done, and never twice.
    """

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
                self.broken(f"{node.name} handles offset {offset} of partition {partition}, which may happen twice")
            self._called.add((partition, offset))
        elif is_marked:
            self.broken(f"{node.name} handles offset {offset} of partition {partition}, which is already done")
        records = disk.queues[partition]
        if offset >= len(records):
            self.broken(f"{node.name} handles offset {offset} of partition {partition}, which is not durable")
        if not node.setup.destination_policy.assurance.in_order:
            return
        cursor = node.handling.cursors[partition]
        for earlier in range(offset):
            if records[earlier].sequence == records[offset].sequence and not cursor.is_done(earlier):
                self.broken(f"{node.name} handles offset {offset} before offset {earlier} of the same Sequence")


class HandledOrDeadLetter(Invariant):
    """A finished record succeeded, or became a dead letter in the same batch after all its attempts; never both.

    At most once, there are no dead letters.
    """

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
                self.broken(f"{node.name} makes {queued.body.decode()} a dead letter, but handles it at most once")
        elif times != (0 if failures < 0 else 1):
            self.broken(f"{node.name} finishes {queued.body.decode()}: {failures} failures, {times} dead letters")
        elif failures >= 0 and failures != node.setup.handling.attempts:
            self.broken(f"{node.name} stops retrying {queued.body.decode()} after {failures} failures")


class DeadLettersOnce(Invariant):
    """A message is a dead letter once, until a handler succeeds with it; each retry follows a durable request."""

    def __init__(self) -> None:
        self._over = AcknowledgementRanges()

    def handed_over(self, world: World, node: Node, handle: Handle) -> None:
        disk, number = world.ledger.disks[node.index], handle.offset + 1
        is_asked = number in disk.letters_asked and number not in disk.letters_over
        if handle.queue == DEAD_LETTERS and not is_asked:
            self.broken(f"{node.name} retries the dead letter {handle.offset} without a request")

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
                self.broken(
                    f"{node.name} finishes the dead letter {number - 1}: {failures} failures, {times} new dead letters"
                )
        self._over = disk.letters_over.copy()
        live = [key for number, key in enumerate(disk.letters, 1) if number not in disk.letters_over]
        if len(set(live)) != len(live):
            self.broken(f"{node.name} has a dead letter twice: {live}")


def letters_of(batch: Batch) -> list[Queued]:
    """Return the messages that a batch makes dead letters."""
    return [
        Queued(one.sequence, one.message_number, one.body)
        for queue, _, _, one in batch.appends
        if queue == DEAD_LETTERS
    ]


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
