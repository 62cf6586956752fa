"""Who may write to a log, and what its records mean: processes on a fake Kafka, in every order of their steps while few
things happen, and by chance beyond. Mistakes are planted, and must be noticed.

After each step, the log has what was acknowledged, once and in order; each owner has what the log says; and the log
can be read from where it was trimmed. Covers store/kafka/frames.py, store/kafka/replay.py and store/kafka/sweep.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from log_mistakes import (
    AcceptsAnyClaim,
    AcknowledgesBeforeConfirmed,
    DeliversVoidRecords,
    IgnoresEpochs,
    TrimsBeforeTheCopyIsComplete,
    large,
)
from log_world import Broken, World, explore, wander

from holdfast.exceptions import StoreDamaged, StoreFormatError
from holdfast.store.kafka.frames import (
    Claim,
    Copies,
    decode_write,
    encode_claim,
    encode_parts,
    encode_write,
)
from holdfast.store.kafka.owner import LogOwner, Write
from holdfast.store.kafka.replay import Checkpoint, Found, Replay, Written
from holdfast.store.kafka.states import OWNER_TABLE, OwnerAction, OwnerEvent, OwnerState

WORLDS = 40


def small(budget: dict[str, int] | None = None, **options: Any) -> World:
    """Two processes that open the log at once, and a write of each."""
    return World([[b"a"], [b"b"]], budget, **options)


def test_in_every_order_of_steps_nothing_acknowledged_is_lost_or_twice() -> None:
    assert explore(small(), 5_000) > 500
    assert explore(World([[b"a" * 60]], {"unknown": 1}), 5_000) > 50
    assert explore(World([[b"a" * 60]], {"refused": 1}), 5_000) > 5


@pytest.mark.nightly
@pytest.mark.parametrize(
    "world",
    [
        small({"unknown": 1}),
        small({"crash": 1}),
        small({"short end": 1}),
        small({"unknown": 1}, fewest=100),
        World([[b"a1", b"a2"], [b"b"]]),
        World([[b"a" * 60], [b"b"]], {"short end": 1}),
        World([[b"a" * 60], [b"b"]], {"refused": 1}),
    ],
    ids=["an outcome is lost", "a crash", "an end too early", "trimmed", "two writes", "parts", "a refused part"],
)
def test_in_every_order_of_more_steps_nothing_acknowledged_is_lost_or_twice(world: World) -> None:
    explore(world, 300_000)


@pytest.mark.parametrize("seed", range(WORLDS))
def test_whatever_fails_nothing_acknowledged_is_lost_or_twice(seed: int) -> None:
    wander(large(seed), seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 11_000, 500))
def test_in_many_more_worlds_nothing_acknowledged_is_lost_or_twice(first: int) -> None:
    for seed in range(first, first + 500):
        wander(large(seed), seed, steps=100 + seed % 400)


def test_the_worlds_write_trim_and_take_over() -> None:
    """Without this, the worlds might never do what they are for."""
    worlds = [wander(large(seed), seed) for seed in range(12)]
    assert sum(len(world.acknowledged) for world in worlds) > 50
    assert sum(world.log.start > 0 for world in worlds) >= 3
    assert sum(one.owner.is_lost for world in worlds for one in world.processes) >= 5


# --- mistakes that the worlds must notice ----------------------------------------------------------------------------


class KeepsPartsOverAClaim(Replay):
    def _claim(self, claim: Claim) -> Found:  # type: ignore[override]
        parts = self._parts
        found = super()._claim(claim)
        self._parts = parts
        return found


class KeepsACopyOverAClaim(Replay):
    def _claim(self, claim: Claim) -> Found:  # type: ignore[override]
        copy = self._copy
        found = super()._claim(claim)
        self._copy = copy
        return found


class BelievesItsClaim(LogOwner):
    def claimed(self) -> None:
        super().claimed()
        self.replay.epoch += 1
        self.state = OwnerState.OWNING


class ServesBeforeItClaims(LogOwner):
    def ended(self) -> OwnerAction:
        super().ended()
        if self.state is OwnerState.CLAIMING and self.epoch:
            self.state = OwnerState.OWNING
        return OwnerAction.NOTHING


class TakesAnyOffsetForTheNext(LogOwner):
    def appended(self, offsets: Sequence[int] | None, size: int) -> OwnerAction:
        if offsets is not None:
            self.replay.next = offsets[0]
        return super().appended(offsets, size)


class WritesAgainWhatItFound(LogOwner):
    def _on(self, event: OwnerEvent) -> OwnerAction:
        if event is OwnerEvent.OWN_CLAIM and self.state is OwnerState.RESEEKING:
            event = OwnerEvent.UNWRITTEN
        return super()._on(event)


class WritesAgainWithoutAClaim(LogOwner):
    def ended(self) -> OwnerAction:
        if self.state is OwnerState.DOUBTING and not self._is_found:
            self.state = OwnerState.WRITING
            return OwnerAction.APPEND
        return super().ended()


MISTAKES: list[tuple[str, type, int]] = [
    ("process", AcknowledgesBeforeConfirmed, 3),
    ("process", DeliversVoidRecords, 1),
    ("replay", TrimsBeforeTheCopyIsComplete, 0),
    ("replay", IgnoresEpochs, 1),
    ("replay", KeepsPartsOverAClaim, 23),
    ("replay", KeepsACopyOverAClaim, 141),
    ("replay", AcceptsAnyClaim, 2),
    ("owner", BelievesItsClaim, 1),
    ("owner", ServesBeforeItClaims, 1),
    ("owner", TakesAnyOffsetForTheNext, 1),
    ("owner", WritesAgainWhatItFound, 15),
    ("owner", WritesAgainWithoutAClaim, 14),
]


@pytest.mark.every(3)
@pytest.mark.parametrize(("what", "mistake", "seed"), MISTAKES, ids=[one.__name__ for _, one, _ in MISTAKES])
def test_a_mistake_is_noticed(what: str, mistake: type, seed: int) -> None:
    """By the world that is known to notice it; if it no longer does, by another one."""

    def search() -> None:
        for one in (seed, *range(2000)):
            wander(large(one, **{what: mistake}), one)

    with pytest.raises((Broken, RuntimeError)):
        search()


class Visited(dict[Any, Any]):
    """A table that knows which of its cells were used."""

    def __init__(self, table: dict[Any, Any]) -> None:
        super().__init__(table)
        self.missing = set(table)

    def get(self, key: Any, default: Any = None) -> Any:
        self.missing.discard(key)
        return super().get(key, default)


VISIT_ALL = (11, 531, 2245, 3055)
"""Worlds that together visit every cell."""


def test_the_worlds_visit_every_cell_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Visited(OWNER_TABLE)
    monkeypatch.setattr("holdfast.store.kafka.owner.OWNER_TABLE", table)
    for seed in VISIT_ALL:
        wander(large(seed), seed)
    assert not table.missing


# --- records ---------------------------------------------------------------------------------------------------------


def test_a_large_write_is_one_write_of_several_records() -> None:
    data = encode_write([(b"key", b"v" * 5000)])
    records = encode_parts(1, 1, Copies.NONE, data, most=1024)
    assert len(records) == 10 and max(map(len, records)) <= 1024
    replay = Replay(Checkpoint(epoch=1), "the log")
    found = [replay.read(offset, record) for offset, record in enumerate(records)]
    assert found[:-1] == [None] * 9
    assert found[-1] == Written(0, 1, Copies.NONE, data, False)
    resume = Replay(Checkpoint(epoch=1), "the log")
    resume.read(0, records[0])
    assert resume.checkpoint == Checkpoint(0, 1, 0, len(records[0])), "a write is applied as a whole"


@pytest.mark.parametrize("record", [None, b"", b"hello", b"hf", b"hf\x00"])
def test_a_record_that_holdfast_did_not_write_has_no_effect(record: bytes | None) -> None:
    replay = Replay(Checkpoint(), "the log")
    assert replay.read(0, record) is None
    assert (replay.voids, replay.next) == (1, 1)


def test_a_record_of_a_newer_format_is_refused() -> None:
    with pytest.raises(StoreFormatError, match="format 2"):
        Replay(Checkpoint(), "the log").read(0, b"hf\x00\x02" + b"anything")


@pytest.mark.parametrize("record", [b"\xc1", b"\x93\xa5claim\x01\x02", b"\x91\xa4what", b"\x01"])
def test_a_changed_record_is_damage(record: bytes) -> None:
    with pytest.raises(StoreDamaged, match="cannot be read"):
        Replay(Checkpoint(), "the log").read(0, b"hf\x00\x01" + record)


@pytest.mark.parametrize(
    "values",
    [
        ("claim", "1", "a", b"a", 0.0),
        ("claim", 1, "a", b"a", 0.0, 0),
        ("write", 0, "1", 0, 1, 1, b"x"),
        ("write", 0, 1, 0, "1", 1, b"x"),
        ("write", 0, 1, 0, 1, "1", b"x"),
        ("write", 0, 1, 0, 1, 1, "x"),
    ],
)
def test_a_record_with_a_value_of_another_type_is_damage(values: tuple[object, ...]) -> None:
    with pytest.raises(StoreDamaged, match="cannot be read"):
        Replay(Checkpoint(), "the log").read(0, b"hf\x00\x01" + msgspec.msgpack.encode(values))


def test_the_bytes_of_a_write_are_read_again() -> None:
    copied, changes = [(b"a", b"1")], [(b"b",), (b"c", b"2"), (b"d", b"e", True)]
    assert decode_write(encode_write(changes, copied), "the log") == (copied, changes)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x92\x90",
        b"\x92\x90\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        encode_write([(b"key", b"value")])[:-1],
        *map(
            msgspec.msgpack.encode,
            [
                1,
                ([], []) * 2,
                ([(b"key",)], []),
                ([], [()]),
                ([], [(b"key", True)]),
                ([], [("key", b"value")]),
                ([], [(b"a", b"b", True, True)]),
            ],
        ),
    ],
)
def test_a_changed_write_is_damage(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="cannot be read"):
        decode_write(data, "the log")


def test_a_log_with_a_gap_or_with_a_wrong_beginning_is_damaged() -> None:
    claim = encode_claim(Claim(1, "a", b"a", 0.0))
    with pytest.raises(StoreDamaged, match="record 0 is missing"):
        Replay(Checkpoint(), "the log").read(1, claim)
    for record in (claim, *encode_parts(1, 7, Copies.CONTINUES, b"x", 1024)):
        with pytest.raises(StoreDamaged, match="no copy of its content begins"):
            Replay(Checkpoint(next=9), "the log").read(9, record)
    replay = Replay(Checkpoint(epoch=1), "the log")
    with pytest.raises(StoreDamaged, match="write 3 after write 0"):
        replay.read(0, encode_parts(1, 3, Copies.NONE, b"x", 1024)[0])
    replay = Replay(Checkpoint(epoch=1), "the log")
    first = encode_parts(1, 1, Copies.NONE, b"x" * 2000, 1024)[0]
    replay.read(0, first)
    with pytest.raises(StoreDamaged, match="part 0 of a write of which 1 precede"):
        replay.read(1, first)


def test_a_write_without_one_of_its_parts_is_void() -> None:
    """Kafka refused the part, so no owner acknowledged the write."""
    parts = encode_parts(1, 1, Copies.NONE, b"x" * 4000, 1024)
    for missing in range(len(parts)):
        replay = Replay(Checkpoint(epoch=1), "the log")
        left = [part for number, part in enumerate(parts) if number != missing]
        again = [encode_claim(Claim(2, "a", b"a", 0.0)), *encode_parts(2, 1, Copies.NONE, b"y", 1024)]
        found = [replay.read(offset, record) for offset, record in enumerate([*left, *again])]
        assert [one.data for one in found if isinstance(one, Written)] == [b"y"]
        assert replay.checkpoint == Checkpoint(len(left) + 2, 2, 1, replay.since_copy)


def test_a_copy_has_no_checkpoint_before_its_end() -> None:
    """The rest of the copy would be missing after a crash."""
    log = next(log for seed in range(0, 300, 3) if (log := wander(large(seed), seed).log).start)
    replay = Replay(Checkpoint(next=log.start), "the log")
    ends = False
    for offset in range(log.start, len(log.records)):
        assert (replay.checkpoint is not None) == ends
        if not ends:
            with pytest.raises(StoreDamaged, match="incomplete"):
                replay.require_whole()
        found = replay.read(offset, log.records[offset])
        ends = ends or (isinstance(found, Written) and bool(found.copies & Copies.ENDS))
    assert ends


def test_an_owner_without_a_write_in_progress_refuses_an_outcome() -> None:
    owner = LogOwner("a", b"a", Replay(Checkpoint(), "the log"), 1024)
    with pytest.raises(RuntimeError, match="has no cell"):
        owner.commit(Write(b"x"))
