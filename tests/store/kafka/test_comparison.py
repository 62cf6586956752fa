"""A cache that has what its log says has no problem, and each difference is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.store import directory
from holdfast.store import records as layout
from holdfast.store.kafka import cache
from holdfast.store.kafka.cache import open_without_log
from holdfast.store.kafka.comparison import compare_cache
from holdfast.store.kafka.frames import Claim, Copies, encode_claim, encode_parts, encode_write
from holdfast.store.kafka.replay import Checkpoint

IDENTITY = {"cluster": "c", "topic": "t", "topic_id": "i", "partition": "0"}


def write(serial: int, *changes: Any, copies: Copies = Copies.NONE, copied: Any = ()) -> bytes:
    (record,) = encode_parts(1, serial, copies, encode_write(changes, copied), 1 << 20)
    return record


USUAL = Checkpoint(3, 1, 2)
LOG = [
    encode_claim(Claim(1, "test", b"nonce", 1.0)),
    write(1, (b"a", b"1"), (b"b", b"2"), (b"c", b"3")),
    write(2, (b"b",), (b"c", b"d", True), (b"d", b"4")),
    write(3, (b"a", b"later")),
]


def log(records: list[bytes], first: int = 0, identity: dict[str, str] = IDENTITY) -> Any:
    def read(start: int) -> Iterator[tuple[int, bytes]]:
        return iter(list(enumerate(records, first))[start - first :])

    return SimpleNamespace(identity=identity, bounds=lambda: (first, first + len(records)), read=read)


@pytest.fixture
def fill(tmp_path: Path) -> Callable[..., Path]:
    """Returns what fills a cache, as of the third record of the log unless it is told otherwise."""

    def fill(point: Checkpoint | None = USUAL, **values: bytes) -> Path:
        cache.mark(tmp_path, IDENTITY)
        engine = open_without_log(tmp_path / directory.ENGINE, tmp_path, compacts=True)
        for key, value in ({"a": b"1", "d": b"4"} | values).items():
            if value:
                engine.put(key.encode(), value)
        engine.put(layout.TRIMMED, b"of this process")
        if point is not None:
            engine.put(cache.CHECKPOINT, cache.encode_checkpoint(point))
        engine.close()
        return tmp_path

    return fill


def test_a_cache_with_what_its_log_says_has_no_problem(fill: Callable[..., Path]) -> None:
    assert compare_cache(fill(), log(LOG), "here") == ""


@pytest.mark.parametrize(
    ("point", "values", "problem"),
    [
        (USUAL, {"a": b"other"}, "has another value of the key b'a' than the log, as of record 3"),
        (USUAL, {"d": b""}, "lacks the key b'd', which the log has"),
        (USUAL, {"a": b""}, "lacks the key b'a', which the log has"),
        (USUAL, {"b": b"2"}, "has the key b'b', which the log does not have"),
        (USUAL, {"e": b"5"}, "has the key b'e', which the log does not have"),
        (Checkpoint(4, 1, 3), {}, "has another value of the key b'a'"),
        (
            Checkpoint(3, 1, 1),
            {},
            "says that write 1 of epoch 1 ends at record 3, but in the log it is write 2 of epoch 1",
        ),
        (Checkpoint(9, 1, 2), {}, "has record 8, but the log ends before record 4"),
        (
            Checkpoint(0, 1, 2),
            {},
            "says that write 2 of epoch 1 ends at record 0, but in the log it is write 0 of epoch 0",
        ),
    ],
)
def test_a_difference_is_a_problem(
    fill: Callable[..., Path], point: Checkpoint, values: dict[str, bytes], problem: str
) -> None:
    found = compare_cache(fill(point, **values), log(LOG), "here")
    assert found is not None and found.startswith("The cache of the log at here ") and problem in found


def test_a_cache_is_compared_while_its_process_runs(fill: Callable[..., Path]) -> None:
    place = fill()
    engine = open_without_log(place / directory.ENGINE, place, compacts=True)
    with contextlib.closing(engine):
        engine.put(b"a", b"not in a file yet")
        assert compare_cache(place, log(LOG), "here") == ""
        engine.flush()
        assert "another value of the key b'a'" in (compare_cache(place, log(LOG), "here") or "")


def test_a_cache_of_another_log_is_a_problem(fill: Callable[..., Path]) -> None:
    found = compare_cache(fill(), log(LOG, identity=IDENTITY | {"topic_id": "other"}), "here")
    assert found is not None and "cannot be compared with it" in found and "belongs to another log" in found


def test_without_a_cache_there_is_nothing_to_compare(fill: Callable[..., Path], tmp_path: Path) -> None:
    assert compare_cache(tmp_path, log(LOG), "here") is None
    assert compare_cache(fill(None), log(LOG), "here") is None


def test_a_cache_that_is_older_than_its_log_is_not_compared(fill: Callable[..., Path]) -> None:
    begins = write(4, copies=Copies.BEGINS, copied=[(b"a", b"1")])
    ends = write(5, copies=Copies.ENDS, copied=[(b"d", b"4")])
    assert compare_cache(fill(), log([begins, ends], 7), "here") is None
    assert compare_cache(fill(Checkpoint(8, 1, 4)), log([begins, ends], 7), "here") is None, "the copy is not complete"
    assert compare_cache(fill(Checkpoint(9, 1, 5)), log([begins, ends], 7), "here") == ""
