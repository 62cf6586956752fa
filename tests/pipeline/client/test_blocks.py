"""Blocks of records, as a client of the data plane takes them apart and joins them.

Covers client/blocks.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.blocks import Block, BlockReader, joined
from holdfast.client.errors import IncompleteRead
from holdfast.endpoint.record_blocks import HEAD, MAX_BLOCK, TRAILER_OFFSET, encode_block, encode_trailer

blocks_of_records = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=5)


def stream(start: int, blocks: list[list[bytes]]) -> bytes:
    """What a server sends of records, cut into these blocks."""
    data, at = b"", start
    for records in blocks:
        data += encode_block(at, records)
        at += len(records)
    return data + encode_trailer(at - start)


def reading(data: bytes) -> Callable[[int], bytes]:
    return io.BytesIO(data).read


@given(blocks_of_records, st.integers(0, 2**40))
def test_records_come_out_as_they_went_in_however_they_were_cut_into_blocks(blocks: list[list[bytes]], start: int):
    records = [record for some in blocks for record in some]
    reader = BlockReader(reading(stream(start, blocks)), start, start + len(records), "q")
    came = list(reader)
    assert [list(dict(block).values()) for block in came] == blocks
    assert [one for block in came for one in block] == list(enumerate(records, start))
    assert reader.next == start + len(records)
    if came:
        whole = joined(came)
        assert (whole.first, len(whole), list(whole)) == (start, len(records), list(enumerate(records, start)))
        assert whole.begin >= 4
        assert all(block.begin >= 4 for block in came)


@given(blocks_of_records, st.integers(0, 10_000))
def test_a_stream_that_is_cut_off_anywhere_ends_in_an_error_behind_whole_blocks(blocks: list[list[bytes]], cut: int):
    data = stream(4, blocks)
    count = sum(map(len, blocks))
    reader = BlockReader(reading(data[: cut % len(data)]), 4, 4 + count, "q")
    came: list[Block] = []
    with pytest.raises(EOFError):
        came.extend(reader)
    assert [[record for _, record in block] for block in came] == blocks[: len(came)]
    assert reader.next == 4 + sum(map(len, blocks[: len(came)]))


@given(blocks_of_records, st.data())
def test_of_a_stream_with_octets_changed_no_more_records_come_than_were_asked_for(
    blocks: list[list[bytes]], data: st.DataObject
):
    whole = bytearray(stream(4, blocks))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    count = sum(map(len, blocks))
    came: list[int] = []
    try:
        for block in BlockReader(reading(bytes(whole)), 4, 4 + count, "q"):
            came += [offset for offset, _ in block]
    except (IncompleteRead, EOFError):
        assert came == list(range(4, 4 + len(came)))
    else:
        assert came == list(range(4, 4 + count))


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_ends_too_early(data: bytes):
    with pytest.raises((IncompleteRead, EOFError)):
        list(BlockReader(reading(data), 0, 5, "q"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (encode_block(5, [b"x"]), "offset 5 instead of 4"),
        (encode_block(4, [b"x"]) + encode_block(4, [b"x"]), "offset 4 instead of 5"),
        (encode_block(4, [b"x"]) + encode_trailer(1), "a trailer for 1 records after 1"),
        (stream(4, [[b"", b""]])[:-1] + b"\x03", "a trailer for 3 records after 2"),
        (encode_block(4, [b"", b"", b""]), "a block of 3 records with 2 remaining"),
        (encode_block(4, [b"", b""]) + encode_block(6, [b""]), "offset 6 instead of the trailer"),
        (encode_block(4, []), "a block of 0 records with 2 remaining"),
        (stream(4, [[b"", b""]]) + b"x", "data after the trailer"),
        (HEAD.pack(TRAILER_OFFSET, 1, 8), "a trailer of 1 records and 8 bytes"),
        (HEAD.pack(TRAILER_OFFSET, 0, 9), "a trailer of 0 records and 9 bytes"),
        (HEAD.pack(4, 1, MAX_BLOCK - 3), f"a block of {MAX_BLOCK - 3} bytes"),
        (HEAD.pack(4, 1, 2) + b"\0\0\0\1xx", "a block of 2 bytes with 1 in its records"),
    ],
)
def test_anything_but_the_range_that_was_asked_for_is_refused(data: bytes, says: str):
    with pytest.raises(IncompleteRead, match=f"queue 'q' partition 0: .* requested the records 4 to 6, .*{says}"):
        list(BlockReader(reading(data), 4, 6, "queue 'q' partition 0"))


def test_what_claims_to_be_very_long_is_not_waited_for():
    asked: list[int] = []

    def read(size: int) -> bytes:
        asked.append(size)
        return HEAD.pack(0, 2**32 - 1, 0)[:size]

    with pytest.raises(IncompleteRead, match="a block of 0 bytes"):
        list(BlockReader(read, 0, 2**40, "q"))
    assert asked == [HEAD.size]
