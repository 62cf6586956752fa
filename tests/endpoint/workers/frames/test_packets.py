"""Packets of frames: what one side wrote is what the other reads, or the connection ends."""

from __future__ import annotations

import random

import pytest

from holdfast.endpoint.workers.frames.packets import (
    TOGETHER,
    FrameReader,
    FramesError,
    FrameWriter,
    answer_head,
    decode_answer,
    encode_answer,
)
from holdfast.endpoint.workers.node_proof import NodeProof
from holdfast.http.outcome import Response

KEY = b"k" * 32


def test_frames_arrive_in_whatever_pieces_the_network_makes() -> None:
    writer = FrameWriter(KEY)
    frames = [(number, bytes([number % 256]) * size) for number, size in enumerate((0, 1, 500, 70_000, TOGETHER, 7))]
    written = [frames[:1], [], frames[1:], frames]
    data = b"".join(writer.pack(some) for some in written)
    for seed in range(20):
        reader, random_, found, at = FrameReader(KEY, 1 << 20), random.Random(seed), [], 0
        while at < len(data):
            size = random_.choice((1, 35, 36, 37, 4096, 300_000, len(data)))
            found += reader.feed(data[at : at + size])
            at += size
        assert found == [frame for some in written for frame in some], seed


def test_what_the_other_side_did_not_write_ends_the_connection() -> None:
    writer = FrameWriter(KEY)
    first, second = writer.pack([(1, b"one"), (2, b"two")]), writer.pack([(3, b"three")])
    for position in range(4, len(first)):  # the length is what makes it wait for more
        changed = bytearray(first)
        changed[position] ^= 1
        with pytest.raises(FramesError):
            FrameReader(KEY, 1 << 20).feed(bytes(changed))
    for order in ([second], [first, first], [first, second, first], [first[:-1], second]):
        reader = FrameReader(KEY, 1 << 20)
        for packet in order[:-1]:
            reader.feed(packet)
        with pytest.raises(FramesError):
            reader.feed(order[-1])
    with pytest.raises(FramesError):
        FrameReader(b"of the other direction".ljust(32), 1 << 20).feed(first)


def test_no_more_than_the_largest_packet_is_kept() -> None:
    reader = FrameReader(KEY, TOGETHER)
    assert reader.feed(TOGETHER.to_bytes(4, "big") + bytes(32)) == []
    reader = FrameReader(KEY, TOGETHER)
    with pytest.raises(FramesError):
        reader.feed((TOGETHER + 1).to_bytes(4, "big") + bytes(32))


def test_each_connection_and_each_direction_has_another_key() -> None:
    proofs = NodeProof("a secret"), NodeProof("another"), NodeProof("a secret", is_encrypted=True)
    keys = [key for proof in proofs for stamp in ("c.a.1", "c.a.2", "d.a.1") for key in proof.frame_keys(stamp)]
    assert len(set(keys)) == 18
    assert NodeProof("a secret").frame_keys("c.a.1") == tuple(keys[:2])


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_an_answer_is_the_same_after_it_was_passed_on(size: int) -> None:
    answer = Response(202, {"x-one": "ä" * 10, "content-type": "text/plain", "long": "x" * 3000}, b"b" * size)
    for _ in range(2):  # the second time from memory
        assert decode_answer(encode_answer(answer)) == answer
        headers = ((b"X-One", b"\xe4" * 10), (b"Long", b"x" * 3000))
        assert decode_answer(answer_head(202, b"text/plain", headers) + answer.body) == answer
    assert decode_answer(answer_head(204, b"", ())) == Response(204, {}, b"")
