"""Checks what the stores of a cluster contain: every record, and every cursor. Nothing is changed.

``verification`` compares the rows with each other; here, each record is read and decoded, and its attachments are
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from xml.parsers import expat

from holdfast.core.messages import IncompleteSequenceBehavior
from holdfast.core.queues.cursors import ASIDE
from holdfast.core.queues.dead_letters import LETTERS
from holdfast.core.queues.description import DEAD_LETTERS, OUTBOX
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record, Snapshot, State, content_name, content_size, hold_of
from holdfast.core.sending.outboxes.records import outbox_queue, replies_queue
from holdfast.core.sinks.parts import STAGING
from holdfast.core.states.inbound import DestinationState
from holdfast.exceptions import StoreDamaged, StoreMissing, clause
from holdfast.store import Store, open_store
from holdfast.store.address import store_of_part

MOST_PROBLEMS: Final = 100
"""Problems of one partition that are reported."""
READ_BYTES: Final = 256 << 10
"""Bytes of attachments that are read at a time."""


@dataclass(slots=True)
class Contents:
    """What a check of one cluster partition found.

    Args:
        problems: The broken rules, each as a sentence.
        bodies: How many records were read.
        starts: Outbound Sequence -> the offset of its message 1 in its outbox, which never changes.
        ended_letters: How many dead letters have ended, and were not found as repeats: an operator may have put so many
            messages into their queues again.
    """

    problems: list[str] = field(default_factory=list)
    bodies: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    ended_letters: int = 0

    def say(self, problem: str) -> None:
        """Add a problem, as long as there are few."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)


def check_contents(location: str, partition: int) -> Contents:
    """Check the store of one partition of a cluster, also while a node serves it.

    Args:
        location: The URL of the database, of which the space names the cluster, or of the topic.

    Raises:
        StoreError: The store cannot be read.
    """
    try:
        store = open_store(store_of_part(location, partition), read_only=True)
    except StoreMissing:
        return Contents()  # it was never served
    with closing(store):
        return check_store(store, partition)


def check_store(store: Store, partition: int) -> Contents:
    """Check what the store of one partition contains, also while its owner changes it.

    Raises:
        StoreError: The store cannot be read.
    """
    found, snapshot, place = Contents(), store.load(), f"Cluster partition {partition}"
    _cursors(snapshot, partition, found)
    ended = snapshot.cursors.get((DEAD_LETTERS, 0, LETTERS), {}).get("over", [])
    found.ended_letters = AcknowledgementRanges.from_state(ended).count
    found.starts = {
        f"{name} in cluster partition {partition}": int(state["start"])
        for name, state in snapshot.sequences.items()
        if state.get("role") == "source"
    }
    accepted = _accepted(snapshot, place, found)
    stored = {name: AcknowledgementRanges((one, one) for one in snapshot.held.get(name, ())) for name in accepted}
    read: list[tuple[str, int]] = []
    for (queue, number), (first, end) in sorted(snapshot.bounds.items()):
        if _has_messages(snapshot, queue):
            where = f"{place}, queue {queue!r}, partition {number}"
            there = _records(store, (queue, number), (first, end), where, found, accepted)
            if queue.startswith((outbox_queue(""), replies_queue(""))):
                continue  # a reply has the number of its request
            read.append((queue, number))
            for name, numbers in there.items():
                stored.setdefault(name, AcknowledgementRanges()).update(numbers)
    missing = _missing(snapshot, accepted, stored)
    if missing:
        # Only now: while the records were read, an owner may have deleted some.
        bounds = store.load().bounds
        _lost(missing, place, found, accepted, stored, sum(bounds[one][0] for one in read if one in bounds))
    return found


def _has_messages(snapshot: Snapshot, queue: str) -> bool:
    """Whether the records of a queue are messages in the form in which they came: staged rows are in blocks."""
    is_other = queue == DEAD_LETTERS or queue.startswith((ASIDE, f"{STAGING}/"))
    return not is_other and snapshot.queues.get(queue, {}).get("kind") not in (OUTBOX, DEAD_LETTERS)


def _cursors(snapshot: Snapshot, partition: int, found: Contents) -> None:
    """No cursor is behind the end of its queue's partition."""
    for (queue, number, name), state in sorted(snapshot.cursors.items()):
        offset, (_, end) = state.get("offset", 0), snapshot.bounds.get((queue, number), (0, 0))
        if type(offset) is not int or not 0 <= offset <= end:
            where = f"Cluster partition {partition}, queue {queue!r}, partition {number}"
            found.say(f"{where}: the cursor {name!r} is at {offset}, but the partition ends at {end}.")


def _accepted(snapshot: Snapshot, place: str, found: Contents) -> dict[str, AcknowledgementRanges]:
    """Return the accepted numbers of each inbound Sequence. What it holds behind a gap is stored, and accepted."""
    numbers: dict[str, AcknowledgementRanges] = {}
    for name, state in sorted(snapshot.sequences.items()):
        if "accepted" not in state:
            continue
        accepted = numbers[name] = AcknowledgementRanges.from_state(state["accepted"])
        held = snapshot.held.get(name, [])
        listed = state.get("held", [])
        lost = set(listed[: len(listed) // 2]) - set(held)  # the numbers, then their sizes
        if state["state"] != DestinationState.CREATED.value:
            lost.clear()  # a Sequence that has ended may discard them
        for number in sorted(lost):
            found.say(f"{place}: message {number} of Sequence {name} counts as held, but is not stored.")
        for number in held:
            if number not in accepted:
                found.say(f"{place}: message {number} of Sequence {name} is held, but not accepted.")
    return numbers


def _missing(
    snapshot: Snapshot, accepted: Mapping[str, AcknowledgementRanges], stored: Mapping[str, AcknowledgementRanges]
) -> dict[str, int]:
    """Return the Sequences with accepted messages that are neither stored nor for no queue, and how many these are."""
    missing: dict[str, int] = {}
    for name, numbers in accepted.items():
        state, home = snapshot.sequences[name], snapshot.homes.get(name)
        # An older version did not count those for no queue.
        if "unqueued" not in state or _may_discard(state, numbers):
            continue
        # A session's partition goes with its session.
        if home not in snapshot.bounds and home is not None and snapshot.queues.get(home[0], {}).get("sessions"):
            continue
        count = numbers.count - stored[name].count - int(state["unqueued"])
        if count > 0:
            missing[name] = count
    return missing


def _may_discard(state: State, accepted: AcknowledgementRanges) -> bool:
    """Whether a Sequence has ended, and may have discarded messages that waited for others."""
    if state["state"] == DestinationState.CREATED.value:
        return False
    is_whole = state.get("behavior") == IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE.value
    return is_whole or not accepted.covers(accepted.highest)


def _lost(
    missing: Mapping[str, int],
    place: str,
    found: Contents,
    accepted: Mapping[str, AcknowledgementRanges],
    stored: Mapping[str, AcknowledgementRanges],
    deleted: int,
) -> None:
    """What was accepted, and is not stored, was deleted from a queue.

    Which messages were deleted is not stored, but how many records were.
    """
    left = deleted
    for name, count in missing.items():
        left -= count
        if left < 0:
            among = AcknowledgementRanges(accepted[name].outside(stored[name]))
            what = f"{count} messages of Sequence {name} are" if count > 1 else f"a message of Sequence {name} is"
            more = f", and only {deleted} records were ever deleted" if deleted else ""
            found.say(f"{place}: {what} accepted, but not stored: of {among}{more}.")


def _records(
    store: Store,
    where: tuple[str, int],
    bounds: tuple[int, int],
    place: str,
    found: Contents,
    accepted: Mapping[str, AcknowledgementRanges],
) -> dict[str, AcknowledgementRanges]:
    """Each record has a body of XML, and each number of a Sequence is accepted, and occurs once.

    Returns:
        Sequence -> the numbers of its records.
    """
    numbers: dict[str, AcknowledgementRanges] = {}
    position, end = bounds
    while position < end and (rows := store.read(*where, position, end)):
        for offset, record in rows:
            found.bodies += 1
            if record.message_number > 0:  # the others came outside a Sequence
                known = numbers.setdefault(record.sequence, AcknowledgementRanges())
                numbered = accepted.get(record.sequence)
                is_repeat = not known.add(record.message_number)
                if is_repeat and found.ended_letters:
                    found.ended_letters -= 1
                elif is_repeat:
                    what = f"record {offset} repeats number {record.message_number} of Sequence {record.sequence}"
                    found.say(f"{place}: {what}.")
                if numbered is not None and record.message_number not in numbered:
                    what = f"message {record.message_number} of Sequence {record.sequence}"
                    found.say(f"{place}: record {offset} is {what}, which is not accepted.")
            if why := _wrong_body(record):
                found.say(f"{place}: the body of record {offset} is not XML: {clause(why)}.")
            if content_name(record.attachments) and (size := _stored(record)) != content_size(record.attachments):
                what = f"{size} of {content_size(record.attachments)} bytes of the attachments of record {offset}"
                found.say(f"{place}: {what} are stored.")
        position = rows[-1][0] + 1
    return numbers


def _stored(record: Record) -> int:
    """Return how many bytes of its attachments can be read."""
    try:
        with hold_of(record.attachments).open() as file:
            return sum(map(len, iter(partial(file.read, READ_BYTES), b"")))
    except StoreDamaged:
        return 0


def _wrong_body(record: Record) -> str:
    parser = expat.ParserCreate()
    try:
        parser.Parse(b"<body>")
        parser.Parse(record.body)
        parser.Parse(b"</body>", True)
    except expat.ExpatError as error:
        return str(error)
    return ""
