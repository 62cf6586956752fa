from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.errors import IncompleteRead
from holdfast.pipeline.frames import HEADER, MAX_RECORD, TRAILER_OFFSET, FrameParser, encode_frame, encode_trailer


def stream(start: int, bodies: list[bytes]) -> bytes:
    frames = [encode_frame(start + i, body) for i, body in enumerate(bodies)]
    return b"".join(frames) + encode_trailer(len(bodies))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=12), st.lists(st.integers(1, 30)), st.integers(0, 2**40))
def test_records_come_out_whole_whatever_the_pieces_they_came_in(bodies: list[bytes], sizes: list[int], start: int):
    data = stream(start, bodies)
    parser = FrameParser(start, start + len(bodies), "q")
    records = []
    for size in [*sizes, len(data)]:
        records += parser.feed(data[:size])
        data = data[size:]
    assert parser.complete
    assert records == [(start + i, body) for i, body in enumerate(bodies)]


@given(st.integers(0, 10_000))
def test_a_stream_that_is_cut_off_anywhere_is_not_complete_and_gives_whole_records_only(cut: int):
    bodies = [b"a" * 30, b"", b"c" * 7]
    data = stream(4, bodies)
    parser = FrameParser(4, 7, "q")
    records = parser.feed(data[: cut % len(data)])
    assert not parser.complete
    assert records == [(4 + i, body) for i, body in enumerate(bodies)][: len(records)]
    assert parser.next == 4 + len(records)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (encode_frame(5, b"x"), "offset 5 where 4 was due"),
        (encode_frame(4, b"x") + encode_frame(4, b"x"), "offset 4 where 5 was due"),
        (encode_frame(4, b"x") + encode_trailer(1), "a trailer that counts 1 records, after 1"),
        (stream(4, [b"", b""])[:-1] + b"\x03", "a trailer that counts 3 records, after 2"),
        (stream(4, [b"", b"", b""]), "offset 6 where the trailer was due"),
        (stream(4, [b"", b""]) + b"x", "bytes after the trailer"),
        (stream(4, [b"", b""]) + encode_frame(6, b""), "a frame after the trailer"),
        (HEADER.pack(TRAILER_OFFSET, 9), "a trailer of 9 bytes"),
        (HEADER.pack(4, MAX_RECORD + 1), f"a record of {MAX_RECORD + 1} bytes"),
    ],
)
def test_anything_but_the_range_that_was_asked_for_is_refused(data: bytes, says: str):
    with pytest.raises(IncompleteRead, match=says):
        FrameParser(4, 6, "queue 'q' partition 0").feed(data)
