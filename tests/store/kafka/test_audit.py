"""The rules of a log: a log that keeps them has no problem, and each broken rule is one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.queues.dead_letters import LETTERS
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.records import Record, with_content
from holdfast.store import records as layout
from holdfast.store.contents import MemoryContents
from holdfast.store.kafka.audit import MOST_PROBLEMS, LogAudit
from holdfast.store.kafka.frames import Change, Claim, Copies, encode_claim, encode_parts, encode_write
from holdfast.store.kafka.replay import Checkpoint, Replay
from holdfast.store.kafka.sweep import Sweep

Log = list[bytes | None]


def claim(epoch: int) -> bytes:
    return encode_claim(Claim(epoch, "test", b"nonce", 1.0))


def write(epoch: int, serial: int, *changes: Change, copies: Copies = Copies.NONE, copied: Any = ()) -> bytes:
    (record,) = encode_parts(epoch, serial, copies, encode_write(changes, copied), 1 << 20)
    return record


def queue(name: str = "orders", kind: str = "queue") -> Change:
    return layout.name_key(layout.QUEUE, name), layout.encode_state({"kind": kind, "partitions": 1})


def record(offset: int, number: int, queue: str = "orders") -> Change:
    key = layout.partition_key(layout.RECORD, queue, 0) + layout.number(offset)
    return key, layout.encode_record(Record("urn:s", number, "urn:a", b"", 1.0))


def held(number: int) -> Change:
    return layout.held_key("urn:s", number), layout.encode_record(Record("urn:s", number, "urn:a", b"", 1.0))


def accepted(*ranges: int, **state: Any) -> Change:
    return layout.name_key(layout.SEQUENCE, "urn:s"), layout.encode_state({"accepted": list(ranges), **state})


def outbound(start: int) -> Change:
    return layout.name_key(layout.SEQUENCE, "urn:o"), layout.encode_state({"role": "source", "start": start})


def audit(log: Sequence[bytes | None], first: int = 0) -> LogAudit:
    found = LogAudit(first, "here")
    for offset, one in enumerate(log, first):
        found.read(offset, one)
    found.end()
    return found


def whole() -> Log:
    return [
        claim(1),
        write(1, 1, queue(), record(0, 1), accepted(1, 1)),
        write(1, 2, held(3), accepted(1, 1, 3, 3), outbound(0)),
        b"of another program",
        claim(2),
        claim(2),  # of a process that came second
        write(1, 3, record(7, 7)),  # of the earlier owner, and void
        write(2, 3, record(1, 2), record(2, 3), (held(3)[0],), accepted(1, 3), outbound(0)),
        None,
    ]


def test_a_log_that_keeps_the_rules_has_no_problem() -> None:
    found = audit(whole())
    assert found.problems == []
    assert (found.epoch, found.serial, found.records) == (2, 3, 3)


@settings(max_examples=50)
@given(st.permutations([record(3, 4), record(4, 5), record(5, 6), (held(3)[0],), accepted(1, 6)]), st.integers(3, 5))
def test_the_order_within_a_write_has_no_meaning_but_each_record_has(changes: list[Change], lost: int) -> None:
    """A batch puts messages that a gap held back after those that came later, and is durable as a whole."""
    assert audit([*whole(), write(2, 4, *changes)]).problems == []
    found = audit([*whole(), write(2, 4, *[one for one in changes if one[0] != record(lost, 1)[0]])]).problems
    assert any("the next record should be" in problem for problem in found) == (lost < 5)


def test_a_log_is_read_from_the_copy_that_it_begins_with() -> None:
    copied = [queue(), record(4, 5), accepted(1, 5)]
    log = [
        write(3, 9, copies=Copies.BEGINS, copied=copied[:2]),
        write(3, 10, record(5, 6), accepted(1, 6), copies=Copies.ENDS, copied=copied[2:]),
        claim(4),
        write(4, 11, record(6, 7), accepted(1, 7)),
    ]
    assert audit(log, 100).problems == []
    assert audit([*log, write(4, 12, record(6, 8), accepted(1, 8))], 100).problems == [
        "The log at here, record 104: queue 'orders', partition 0: the next record should be 7, but 6 is written."
    ]
    without = [log[0], write(3, 10, record(6, 7), accepted(1, 7), copies=Copies.ENDS, copied=copied[2:])]
    assert audit(without, 100).problems == [
        "The log at here, record 101: queue 'orders', partition 0: the next record should be 5, but 6 is written."
    ]
    assert "the copy of the content at its beginning is incomplete" in audit(log[:1], 100).problems[0]
    assert "no copy of its content begins" in audit(log[1:], 100).problems[0]


def test_a_requeued_dead_letter_repeats_its_number_and_nothing_else_may() -> None:
    """Its message goes to the end of its queue, in the write that ends the letter."""
    letters = layout.partition_key(layout.CURSOR, DEAD_LETTERS, 0) + LETTERS.encode()
    ended: Change = letters, layout.encode_state({"over": [1, 1], "asked": []})
    assert audit([*whole(), write(2, 4, record(3, 2), ended)]).problems == []
    (problem,) = audit([*whole(), write(2, 4, record(3, 2))]).problems
    assert "record 3 repeats number 2 of Sequence urn:s" in problem


class Owner:
    """An owner of a log without Kafka: it writes what it is given, and copies a little of its content each time."""

    def __init__(self) -> None:
        self.content: dict[bytes, bytes] = {}
        self.log: Log = [claim(1)]
        self.beginnings: list[int] = []
        """Where the complete copies begin."""
        self._replay = Replay(Checkpoint(), "here")
        self._replay.read(0, self.log[0])
        self._sweep = Sweep(self._replay, fewest=400, step=1)

    def write(self, *changes: Change) -> None:
        copies, copied = self._sweep.part(0, self._scan)
        size = len(self.log)
        self.log.append(write(1, self._replay.serial + 1, *changes, copies=copies, copied=copied))
        self._replay.read(size, self.log[-1])
        for change in changes:
            match change:
                case (key, value):
                    self.content[key] = value
                case (key,):
                    self.content.pop(key, None)
                case (begin, end, _):
                    self.content = {key: one for key, one in self.content.items() if not begin <= key < end}
        if self._replay.trim_to not in (None, *self.beginnings):
            self.beginnings.append(self._replay.trim_to or 0)

    def _scan(self, first: bytes, size: int) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return a few keys, so that each copy takes some writes."""
        keys = sorted(key for key in self.content if key >= first)
        return [(key, self.content[key]) for key in keys[:4]], keys[4] if len(keys) > 4 else None


@pytest.mark.parametrize("seed", range(8))
def test_a_log_has_no_problem_from_each_copy_on_whatever_happens_while_it_is_copied(seed: int) -> None:
    draw, owner, first, end = random.Random(seed), Owner(), 0, 0
    owner.write(queue(), accepted())
    for _ in range(120):
        appended = end + draw.randint(1, 3)
        changes: list[Change] = [record(offset, offset + 1) for offset in range(end, appended)]
        end, trimmed = appended, min(first + draw.choice((0, 0, 1, 2, 8)), end)
        if trimmed > first + 1:
            changes.append((record(first, 1)[0], record(trimmed, 1)[0], True))
        elif trimmed > first:
            changes.append((record(first, 1)[0],))
        first = trimmed
        owner.write(*changes, accepted(1, end, unqueued=0))
    for beginning in [0, *owner.beginnings]:
        assert audit(owner.log[beginning:], beginning).problems == []
    assert len(owner.beginnings) > 2


NOWHERE = "message 9 of Sequence urn:s was held, and is in no queue now"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (lambda: [claim(4)], "record 9 claims epoch 4, but the last one is 2"),
        (lambda: [write(3, 4)], "record 9 has epoch 3, which no process has claimed before"),
        (lambda: [write(2, 5)], "record 9 begins write 5 after write 3"),
        (lambda: [write(2, 3)], "record 9 begins write 3 after write 3"),
        (lambda: [write(2, 4, record(4, 4), accepted(1, 4))], "the next record should be 3, but 4 is written"),
        (lambda: [write(2, 4, record(3, 2))], "record 3 repeats number 2 of Sequence urn:s"),
        (lambda: [write(2, 4, record(3, 4))], "message 4 of Sequence urn:s was stored, but not accepted"),
        (lambda: [write(2, 4, held(9))], "message 9 of Sequence urn:s was stored, but not accepted"),
        (lambda: [write(2, 4, accepted(1, 1, 3, 3))], "messages 2 to 2 of Sequence urn:s count as accepted no longer"),
        (lambda: [write(2, 4, held(9), accepted(1, 3, 9, 9)), write(2, 5, (held(9)[0],))], NOWHERE),
        (lambda: [write(2, 4, accepted(1, 3, 9, 9, held=[9, 80]))], "message 9 of Sequence urn:s counts as held, but"),
        (lambda: [write(2, 4, outbound(1))], "message 1 of Sequence urn:o was record 0 of its queue, but is 1 now"),
        (lambda: [write(2, 4, (record(3, 4)[0], b"?"))], "cannot be read"),  # type: ignore[misc]
        (lambda: [write(2, 4, (accepted()[0], b"?"))], "cannot be read"),
        (lambda: [write(2, 4, (b"r\0\0\0\1\xff", b"?"))], "cannot be read"),
        (lambda: [b"hf\x00\x01?"], "a record with Holdfast's mark cannot be read"),
    ],
)
def test_a_broken_rule_is_a_problem(more: Callable[[], Log], problem: str) -> None:
    (found,) = audit([*whole(), *more()]).problems
    assert problem in found and "here" in found


NAME = b"n" * 16


def naming(offset: int, number: int, size: int) -> list[Change]:
    """A record of a large message, and the reference to its attachments."""
    hold = MemoryContents().create().hold
    attachments = with_content(hold, size, b"\x93").replace(hold.name, NAME)
    key = layout.partition_key(layout.RECORD, "orders", 0) + layout.number(offset)
    value = layout.encode_record(Record("urn:s", number, "urn:a", b"", 1.0, attachments=attachments))
    return [(key, value), (layout.reference_key(("orders", 0), offset), NAME)]


def piece(number: int, data: bytes = b"12345") -> Change:
    return layout.piece_key(NAME, number), data


@pytest.mark.parametrize(
    ("pieces", "found"), [((0, 1), None), ((0,), 5), ((), 0), ((0, 0), 5), ((0, 1, 2), 15)], ids=str
)
def test_the_attachments_that_a_record_names_are_whole(pieces: Sequence[int], found: int | None) -> None:
    log = [claim(1), write(1, 1, queue())]
    log += [write(1, serial, piece(one)) for serial, one in enumerate(pieces, 2)]
    log.append(write(1, len(log), *naming(0, 1, 10), accepted(1, 1)))
    name = NAME.hex()
    problem = f"The log at here: a record names attachments {name} of 10 bytes, but {found} bytes are stored."
    assert audit(log).problems == ([] if found is None else [problem])
    reference = (layout.reference_key(("orders", 0), 0),)
    gone = write(1, len(log), reference, (*layout.pieces_range(NAME), True))
    assert audit([*log, gone]).problems == []


def test_attachments_that_are_deleted_too_early_are_a_problem_also_after_a_copy() -> None:
    copied = [queue(), *naming(0, 1, 10), piece(0), piece(1), accepted(1, 1)]
    log = [write(3, 9, piece(1), copies=Copies.BEGINS | Copies.ENDS, copied=copied)]
    assert audit(log, 100).problems == []
    log.append(write(3, 10, (*layout.pieces_range(NAME), True)))
    assert "of 10 bytes, but 0 bytes are stored" in audit(log, 100).problems[0]


def test_a_missing_record_ends_the_check() -> None:
    found = LogAudit(0, "here")
    found.read(0, claim(1))
    found.read(2, write(1, 1))
    found.read(3, write(9, 9))
    found.end()
    assert found.problems == ["The log at here is damaged: record 1 is missing; the next one is 2."]


def test_what_may_repeat_is_no_problem() -> None:
    log = [claim(1), write(1, 1, queue("dead-letters", "dead-letters"), queue("o", "outbox"))]
    for serial, name in enumerate(["dead-letters", "o", "unknown"], 2):
        log.append(write(1, serial, record(0, 1, name), record(1, 1, name)))
    gone = (layout.partition_key(layout.PARTITION, "o", 0),)
    log.append(write(1, 5, gone, (layout.name_key(layout.SEQUENCE, "urn:s"),)))
    log.append(write(1, 6, record(0, 1, "o")))
    assert audit(log).problems == []


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ({}, accepted(1, 3, 9, 9, state="terminated", ended_at=1.0)),
        ({}, (layout.name_key(layout.SEQUENCE, "urn:s"),)),
        ({"routed": [[9]]}, accepted(1, 3, 9, 9)),
        ({"routed": [[9, "orders"]]}, record(3, 9)),
    ],
    ids=["the Sequence ended", "it is forgotten", "for no queue", "released"],
)
def test_a_held_message_may_leave(state: dict[str, Any], change: Change) -> None:
    held_9 = write(2, 4, held(9), accepted(1, 3, 9, 9, held=[9, 80], **state))
    assert audit([*whole(), held_9, write(2, 5, (held(9)[0],), change)]).problems == []


def counted(*ranges: int, unqueued: int = 0, **state: Any) -> Change:
    """The state of a Sequence that counts its messages for no queue."""
    return accepted(*ranges, unqueued=unqueued, **state)


LOST = "1 more messages of Sequence urn:s are accepted than stored: some of "


@pytest.mark.parametrize(
    ("writes", "problems"),
    [
        ([[counted()], [record(0, 1), counted(1, 1)], [record(1, 2), counted(1, 2)]], []),
        ([[record(0, 1), counted(1, 1)], [counted(1, 2)], [record(1, 3), counted(1, 3)]], [f"2: {LOST}2-2."]),
        ([[counted(1, 2, unqueued=1)]], [f"1: {LOST}1-2."]),
        ([[counted(1, 1, unqueued=1)], [record(0, 2), counted(1, 2, unqueued=1)]], []),
        ([[held(2), counted(2, 2, held=[2, 9])], [record(0, 1), record(1, 2), (held(2)[0],), counted(1, 2)]], []),
        ([[held(2), counted(2, 2, held=[2, 9])], [(held(2)[0],), counted(2, 2, state="terminated")]], []),
        ([[record(0, 1), counted(1, 1, unqueued=1)]], ["1: 1 messages of Sequence urn:s are stored, but count"]),
        ([[accepted(1, 5)], [record(0, 6), counted(1, 6)], [counted(1, 7)]], [f"3: {LOST}1-5 7-7."]),
    ],
    ids=["stored", "lost", "one of two", "for no queue", "held", "discarded", "miscounted", "of an older version"],
)
def test_an_accepted_message_is_stored_or_counts_as_one_for_no_queue(
    writes: Sequence[Sequence[Change]], problems: Sequence[str]
) -> None:
    log = [claim(1), write(1, 1, queue(), *writes[0])]
    log += [write(1, serial, *changes) for serial, changes in enumerate(writes[1:], 2)]
    found = audit(log).problems
    assert [one.partition("record ")[2][: len(two)] for one, two in zip(found, problems, strict=True)] == problems


@pytest.mark.parametrize("parts", [1, 2])
def test_messages_that_were_deleted_before_a_copy_are_not_missing(parts: int) -> None:
    copied = [queue(), record(4, 5), counted(1, 5, unqueued=1)]
    changes = [record(5, 6), counted(1, 6, unqueued=1)]
    log = [write(3, 9, *changes, copies=Copies.BEGINS | Copies.ENDS, copied=copied)]
    if parts == 2:
        log = [
            write(3, 8, copies=Copies.BEGINS, copied=copied[:1]),
            write(3, 9, *changes, copies=Copies.ENDS, copied=copied[1:]),
        ]
    log += [claim(4), write(4, 10, counted(1, 7, unqueued=2))]
    assert audit(log, 100).problems == []
    log.append(write(4, 11, counted(1, 8, unqueued=2)))
    (problem,) = audit(log, 100).problems
    assert LOST in problem


def test_a_log_with_many_problems_keeps_the_first() -> None:
    log = [claim(1), write(1, 1, queue(), record(0, 1))]
    log += [write(1, serial, record(serial - 1, 1)) for serial in range(2, 300)]
    assert len(audit(log).problems) == MOST_PROBLEMS
