"""Segments: what is read is what was written, up to where a file is whole, whatever else lies there."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.endpoint.journal import parquet as journal_parquet
from holdfast.endpoint.journal.columns import NAMES
from holdfast.endpoint.journal.events import ACKNOWLEDGED, APPENDED, ROWS
from holdfast.endpoint.journal.files import (
    HEADER,
    ROWS_A_FRAME,
    frames_of,
    made_parquet,
    open_segment,
    prune,
    read_segment,
    rows_of,
    segments,
    whole_length,
)
from holdfast.endpoint.journal.parquet import arrow_schema, to_parquet_all

TEXT = st.text(max_size=8)
SMALL = st.integers(0, 1 << 40)
TIME = st.floats(0, 4e9)
OFTEN = {"min_size": 1, "max_size": 5}
ROW = st.tuples(
    TIME,
    TEXT,
    st.none() | TEXT,
    st.none() | SMALL,
    st.none() | SMALL,
    st.none() | TEXT,
    st.none() | st.integers(0, 100),
    st.none() | SMALL,
    st.none() | TIME,
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | st.integers(0, 100),
    st.none() | TEXT,
)


@st.composite
def appended(draw: st.DrawFn) -> tuple[Any, ...]:
    stamp = st.tuples(st.text(min_size=1, max_size=8), st.integers(1, 1 << 40), TIME)
    plain = st.tuples(st.just(""), st.just(0), TIME)
    rows = draw(st.lists(st.tuples(TEXT, st.integers(0, 9), SMALL, stamp | plain), **OFTEN))
    queues, partitions, offsets, stamps = zip(*rows, strict=True)
    return (APPENDED, draw(TIME), queues, partitions, offsets, list(stamps))


ENTRIES = st.lists(
    st.one_of(
        appended(),
        st.tuples(st.just(ACKNOWLEDGED), TIME, st.lists(st.tuples(TEXT, SMALL, SMALL), **OFTEN)),
        st.tuples(st.just(ROWS), st.lists(ROW, **OFTEN)),
    ),
    max_size=6,
)


def read(data: bytes) -> list[dict[str, Any]]:
    return rows_of(io.BytesIO(data))


def _flat(entry: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if entry[0] == ROWS:
        return [row[1:4] for row in entry[1]]
    if entry[0] == ACKNOWLEDGED:
        return [("acknowledged", *row[:2]) for row in entry[2]]
    return [("delivered", sequence or None, number or None) for sequence, number, _ in entry[5]]


@given(ENTRIES, ENTRIES)
def test_what_is_read_is_what_was_written_in_its_order(first, second):
    data, count = frames_of("run", 3, 10, first)
    more, further = frames_of("run", 3, 10 + count, second)
    rows = read(HEADER + data + more)
    assert len(rows) == count + further == sum(len(entry[-1]) for entry in (*first, *second))
    assert [row["ordinal"] for row in rows] == list(range(10, 10 + len(rows)))
    assert all(tuple(row) == NAMES and row["worker"] == 3 and row["run"] == "run" for row in rows)
    told = [row for entry in (*first, *second) for row in _flat(entry)]
    assert [(row["event"], row["sequence"], row["number"]) for row in rows] == told


@given(ENTRIES, st.integers(0, 400), st.binary(max_size=40))
def test_a_torn_file_is_read_up_to_its_last_whole_frame(entries, cut, garbage):
    whole, count = frames_of("run", None, 0, entries)
    torn, _ = frames_of("run", None, count, [(ROWS, [(1.0, "delivered", *[None] * 11)])])
    end = min(cut, len(torn) - 1)
    assert len(read(HEADER + whole + torn[:end])) == count
    assert len(read(HEADER + whole + garbage)) >= count
    damaged = bytearray(torn)
    damaged[cut % len(torn)] ^= 1
    assert len(read(HEADER + whole + bytes(damaged))) == count


@given(st.binary(max_size=200))
def test_a_file_of_somebody_elses_holds_nothing(data):
    assert read(data) == []
    assert read(HEADER + data) == []


@pytest.mark.parametrize("payload", [{"a": 1}, [1, 2], ["run", None, 0, [["x", 1]]], ["run", None, 0, [["r", [[1]]]]]])
def test_a_whole_frame_that_is_none_of_ours_ends_the_file(payload):
    import msgspec

    from holdfast.endpoint.journal.files import _frame

    mine, count = frames_of("run", None, 0, [(ROWS, [(1.0, "delivered", *[None] * 11)])])
    assert count == 1
    foreign = _frame(payload) if isinstance(payload, list) else _frame((msgspec.msgpack.encode(payload),))
    assert len(read(HEADER + mine + foreign + mine)) == 1


def test_many_events_are_several_frames(tmp_path):
    entries = [(ROWS, [(1.0, "delivered", *[None] * 11)] * 1_000)] * 10
    data, count = frames_of("run", None, 0, entries)
    frames = list(read_segment(io.BytesIO(HEADER + data)))
    assert count == 10_000
    assert all(sum(len(part.columns["at"]) for part in parts) <= ROWS_A_FRAME for parts in frames)
    path = tmp_path / "_x.journal"
    path.write_bytes(HEADER + data + b"torn")
    assert whole_length(path) == len(HEADER + data)
    path.write_bytes(b"other")
    assert whole_length(path) == 0


def _segment(directory: Path, name: str, rows: int, run: str = "run") -> Path:
    data, _ = frames_of(run, None, 0, [(ROWS, [(1.5, "delivered", "urn:ä", *[None] * 10)] * rows)])
    path = directory / name
    path.write_bytes(HEADER + data)
    return path


def test_what_is_complete_becomes_parquet_once_and_what_is_being_written_does_not(tmp_path):
    _segment(tmp_path, "_2-a-1.journal", 5)
    _segment(tmp_path, "_1-a-1.journal", 3)
    _segment(tmp_path, "_live-3-a-1.journal", 2)
    (tmp_path / "_9.draft").write_bytes(b"half")
    (tmp_path / "README").write_text("somebody's")
    assert to_parquet_all(tmp_path) == 2
    assert to_parquet_all(tmp_path) == 0
    assert [one.path.name for one in segments(tmp_path)] == ["1-a-1.parquet", "2-a-1.parquet", "_live-3-a-1.journal"]
    table = pq.read_table(tmp_path / "2-a-1.parquet")
    assert table.schema.equals(arrow_schema())
    assert table.num_rows == 5
    assert table["at"].to_pylist()[0].timestamp() == 1.5
    assert not (tmp_path / "_9.draft").exists()


def test_a_segment_that_is_parquet_already_is_there_once(tmp_path):
    """Killed between the two, the writer leaves both."""
    _segment(tmp_path, "_1-a-1.journal", 3)
    to_parquet_all(tmp_path)
    _segment(tmp_path, "_1-a-1.journal", 3)
    assert [one.path.name for one in segments(tmp_path)] == ["1-a-1.parquet"]


def test_the_oldest_segments_go_first_by_size_and_by_age(tmp_path):
    for number in range(4):
        path = _segment(tmp_path, f"_{number}.journal", 100)
        os.utime(path, (1_000.0 + number, 1_000.0 + number))
    size = path.stat().st_size
    assert prune(tmp_path, None, 3 * size, time.time(), None) == 3 * size
    assert [one.name for one in segments(tmp_path)] == ["1", "2", "3"]
    assert prune(tmp_path, 100.0, None, 1_102.5, None) == size
    assert [one.name for one in segments(tmp_path)] == ["3"]
    assert prune(tmp_path, 1.0, 1, time.time(), tmp_path / "_3.journal") == size
    assert segments(tmp_path / "nowhere") == []


def test_a_segment_is_opened_by_one_name_while_it_is_written_and_when_it_is_complete(tmp_path):
    path = _segment(tmp_path, "_live-1-a-1.journal", 3)
    (one,) = segments(tmp_path)
    assert (one.file, one.is_live) == ("1-a-1.journal", True)
    content = path.read_bytes()
    opened = open_segment(tmp_path, one.file)
    path = path.rename(tmp_path / "_1-a-1.journal")
    with opened, open_segment(tmp_path, one.file) as again:
        assert made_parquet(tmp_path, one.file) is None
        to_parquet_all(tmp_path)
        assert opened.read() == again.read() == content  # whatever became of it
    assert open_segment(tmp_path, one.file) is None
    made = made_parquet(tmp_path, one.file)
    assert (made.file, made.size) == ("1-a-1.parquet", (tmp_path / "1-a-1.parquet").stat().st_size)
    with open_segment(tmp_path, made.file) as file:
        assert file.read(4) == b"PAR1"
    assert made_parquet(tmp_path, made.file) is None


def test_nothing_else_is_opened_whatever_it_is_called(tmp_path):
    directory = tmp_path / "journal"
    directory.mkdir()
    for name in ("x.parquet", "journal/_lock", "journal/_1.draft", "journal/.x.parquet", "journal/_x.parquet"):
        (tmp_path / name).write_text("not for you")
    (directory / "sub").mkdir()
    (directory / "sub" / "x.parquet").write_text("not for you")
    wild = ("../x.parquet", "..", ".", "", "_lock", "_1.draft", "1.draft", ".x.parquet", "_x.parquet", "sub/x.parquet")
    for name in (*wild, "x\0.parquet", "/etc/passwd", f"{tmp_path}/x.parquet", "ü.parquet", "a" * 300 + ".parquet"):
        assert open_segment(directory, name) is None, name
        assert made_parquet(directory, name) is None, name
    assert segments(directory) == []


def test_a_segment_says_when_it_was_begun_if_its_name_does(tmp_path):
    _segment(tmp_path, "_20261122T150312.500000Z-ab-000001.journal", 1)
    _segment(tmp_path, "_x-1.journal", 1)
    assert [one.begun for one in segments(tmp_path)] == [1795359792.5, None]


def test_the_process_that_makes_parquet_is_a_nice_one(tmp_path, monkeypatch):
    _segment(tmp_path, "_1-a-1.journal", 3)
    nice: list[int] = []
    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(sys, "argv", ["journal_parquet", str(tmp_path)])
    journal_parquet.main()
    assert [one.file for one in segments(tmp_path)] == ["1-a-1.parquet"]
    assert nice == [10]
