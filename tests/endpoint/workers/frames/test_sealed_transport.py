"""Bytes between two nodes in packets: all of them, in order, from the other node only, and as fast as it reads.

Covers endpoint/workers/frames/sealed_transport.py.
"""

from __future__ import annotations

import asyncio

import pytest
from written import Written

from holdfast.endpoint.workers.frames.sealed_transport import PIECE, Pipe, SealedTransport

KEYS = (b"q" * 32, b"a" * 32)


class Heard(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.is_lost = self.is_paused = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True


class Side:
    """One side of a sealed connection."""

    def __init__(self, outgoing: bytes, incoming: bytes) -> None:
        self.protocol, self.plain = Heard(), Written()
        self.refused: list[str] = []
        self.sealed = SealedTransport(self.protocol, self.refused.append)
        self.sealed.use_keys(outgoing, incoming)
        self.sealed.connection_made(self.plain)


@pytest.fixture
def sides() -> tuple[Side, Side]:
    return Side(*KEYS), Side(*reversed(KEYS))


def test_all_bytes_arrive_in_both_directions(sides: tuple[Side, Side]) -> None:
    one, other = sides
    data = bytes(range(256)) * 2000
    one.sealed.write(data)
    packets = one.plain.taken()
    assert len(packets) == -(-len(data) // PIECE)
    stream = b"".join(packets)
    for start in range(0, len(stream), 70_001):
        other.sealed.data_received(stream[start : start + 70_001])
    assert other.protocol.data == data
    other.sealed.write(b"answer")
    one.sealed.data_received(b"".join(other.plain.taken()))
    assert one.protocol.data == b"answer"


@pytest.mark.parametrize("what", ["changed", "repeated", "left out", "of another connection"])
def test_a_packet_that_is_not_the_next_one_ends_the_connection(sides: tuple[Side, Side], what: str) -> None:
    one, other = sides
    for number in range(3):
        one.sealed.write(b"packet %d" % number)
    packets = one.plain.taken()
    other.sealed.data_received(packets[0])
    stranger = Side(b"x" * 32, b"y" * 32)
    stranger.sealed.write(b"packet 1")
    attack = {
        "changed": packets[1][:-1] + b"!",
        "repeated": packets[0],
        "left out": packets[2],
        "of another connection": stranger.plain.taken()[0],
    }[what]
    other.sealed.data_received(attack)
    assert other.protocol.data == b"packet 0"
    assert other.plain.is_aborted and len(other.refused) == 1


def test_what_the_transport_says_reaches_the_protocol(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    one.sealed.pause_writing()
    assert one.protocol.is_paused
    one.sealed.resume_writing()
    assert not one.protocol.is_paused
    one.sealed.pause_reading()
    assert one.plain.is_paused
    one.sealed.resume_reading()
    one.sealed.close()
    assert one.sealed.is_closing() and not one.sealed.can_write_eof()
    one.sealed.connection_lost(None)
    assert one.protocol.is_lost


def test_a_pipe_carries_both_directions_and_reads_no_faster_than_it_writes() -> None:
    there, here = Pipe(), Pipe()
    there.join(here)
    ends = [(there, Written()), (here, Written())]
    for pipe, transport in ends:
        pipe.connection_made(transport)
    for (pipe, transport), (other, far) in (ends, ends[::-1]):
        pipe.data_received(b"x")
        assert far.taken() == [b"x"]
        other.pause_writing()
        assert transport.is_paused
        other.resume_writing()
        assert not transport.is_paused
    there.connection_lost(None)
    assert ends[1][1].is_closing() and here.is_over.is_set()
