"""A file that is read at any position. Covers positioned_file.py."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.positioned_file import PositionedFile

CONTENT = bytes(range(40))


class Slices(PositionedFile):
    """A content of which one read returns at most seven bytes."""

    def _read(self, start: int, size: int) -> bytes:
        return CONTENT[start : start + min(size, 7)]


@given(
    st.lists(
        st.tuples(st.integers(-60, 60), st.sampled_from([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END]), st.integers(0, 50))
    )
)
def test_it_reads_what_a_file_in_memory_reads_wherever_it_continues(moves: list[tuple[int, int, int]]) -> None:
    file, expected = io.BufferedReader(Slices(len(CONTENT)), 5), io.BytesIO(CONTENT)
    for offset, whence, count in moves:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: expected.tell(), io.SEEK_END: len(CONTENT)}[whence]
        expected.seek(max(0, base + offset))
        file.seek(max(0, base + offset))
        assert file.read(count) == expected.read(count)
        assert file.tell() == expected.tell()


@pytest.mark.parametrize(
    ("whence", "at"), [(io.SEEK_SET, 3), (io.SEEK_CUR, 8), (io.SEEK_END, 43)], ids=["start", "position", "end"]
)
def test_a_position_is_relative_to_the_start_the_position_or_the_end(whence: int, at: int) -> None:
    file = Slices(len(CONTENT))
    file.seek(5)
    assert file.seek(3, whence) == file.tell() == at
    assert file.seek(-100, whence) == 0


def test_the_end_of_a_file_of_unknown_size_is_refused() -> None:
    with pytest.raises(io.UnsupportedOperation, match="the end is not known"):
        Slices().seek(0, io.SEEK_END)
