"""Parquet of a journal: whatever bit of a file is another one, the file is called damaged or says the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast.endpoint.journal.events import ROWS
from holdfast.endpoint.journal.files import HEADER, Segment, frames_of, rows_of, segments
from holdfast.endpoint.journal.parquet import damage_of, to_parquet_all

ROW = (1.5, "delivered", "urn:ä", 7, 1, "orders", 0, 12, 1.25, "peer", None, None, None)


def segment(directory: Path, name: str, *, frames: int = 3, rows: int = 4) -> Segment:
    data = b"".join(frames_of("run", None, number * rows, [(ROWS, [ROW] * rows)])[0] for number in range(frames))
    (directory / name).write_bytes(HEADER + data)
    return next(one for one in segments(directory) if one.path.name == name)


def one_byte_of(path: Path, place: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << place % 8
    return bytes(data)


def test_every_flipped_byte_of_parquet_is_damage_or_changes_nothing(tmp_path: Path) -> None:
    segment(tmp_path, "_1.journal")
    to_parquet_all(tmp_path)
    (one,) = segments(tmp_path)
    assert damage_of(one) == ""
    told, whole = pq.read_table(one.path), one.path.read_bytes()
    named = 0
    for place in range(len(whole)):
        one.path.write_bytes(one_byte_of(one.path, place))
        if damage_of(one):
            named += 1
        else:
            assert pq.read_table(one.path).equals(told), place
        one.path.write_bytes(whole)
    assert named > len(whole) - 30  # the others are in the name of the checksum


def test_every_flipped_byte_of_a_segment_is_damage(tmp_path: Path) -> None:
    one = segment(tmp_path, "_1.journal")
    assert damage_of(one) == ""
    whole = one.path.read_bytes()
    for place in range(len(whole)):
        one.path.write_bytes(one_byte_of(one.path, place))
        assert damage_of(one), place
        one.path.write_bytes(whole)


@pytest.mark.parametrize("left", [0, 5, len(HEADER), len(HEADER) + 3, -1, -20])
def test_a_file_that_is_being_written_may_end_anywhere_and_a_complete_one_may_not(tmp_path: Path, left: int) -> None:
    for name, is_damaged in (("_live-1.journal", False), ("_2.journal", left not in (0, len(HEADER)))):
        path = segment(tmp_path, name).path
        path.write_bytes(path.read_bytes()[:left])
        assert bool(damage_of(next(one for one in segments(tmp_path) if one.path == path))) == is_damaged


def test_zeros_that_a_power_cut_left_are_no_damage_of_a_file_that_was_being_written(tmp_path: Path) -> None:
    one = segment(tmp_path, "_live-1.journal")
    one.path.write_bytes(one.path.read_bytes() + bytes(5_000))
    assert damage_of(one) == ""


def test_a_damaged_segment_stays_as_it_is_and_the_others_become_parquet(tmp_path: Path) -> None:
    """Parquet of it would hide what is wrong."""
    one = segment(tmp_path, "_1.journal")
    segment(tmp_path, "_2.journal")
    one.path.write_bytes(one_byte_of(one.path, one.size - 5))
    assert to_parquet_all(tmp_path) == 1
    assert [file.path.name for file in segments(tmp_path)] == ["_1.journal", "2.parquet"]
    with one.path.open("rb") as file:
        assert len(rows_of(file)) == 8


def test_parquet_that_another_program_wrote_is_damaged(tmp_path: Path) -> None:
    segment(tmp_path, "_1.journal")
    to_parquet_all(tmp_path)
    (one,) = segments(tmp_path)
    pq.write_table(pq.read_table(one.path), one.path, write_page_checksum=True)
    assert "it has no checksum" in damage_of(one)
