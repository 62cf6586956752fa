"""SealedTransport: any bytes between two nodes, in packets with a proof each. Messages too large for memory use it.

Such a connection begins as one with frames does, and has one direction's key for each side. What it carries is HTTP, as
between the workers of a host: so a large message is sent, written and answered in the same way wherever its owner is.
A :class:`Pipe` connects it with the socket of the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from holdfast.endpoint.workers.frames.packets import FrameReader, FramesError, FrameWriter

PIECE: Final = 128 * 1024
"""Bytes of a packet."""
MOST_BYTES: Final = PIECE + 1024
"""Bytes of a packet, with what belongs to it."""


class SealedTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of a protocol, and the protocol of a plain or TLS transport.

    Args:
        protocol: Receives the bytes that the other node has sent.
        refused: Called with the reason if a packet is not the next one of that node; then the connection ends.
        place: The URL of the worker at its node; "" where the worker is.
    """

    _transport: asyncio.Transport

    def __init__(self, protocol: asyncio.Protocol, refused: Callable[[str], None], place: str = "") -> None:
        super().__init__()
        self.place = place
        self._protocol = protocol
        self._refused = refused

    def use_keys(self, outgoing: bytes, incoming: bytes) -> None:
        """Set the keys of what this side sends, and of what it receives."""
        self._writer, self._reader = FrameWriter(outgoing), FrameReader(incoming, MOST_BYTES)

    # --- the transport's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._reader.feed(data)
        except FramesError as error:
            self._transport.abort()
            self._refused(str(error))
            return
        for _, content in frames:
            if not self._transport.is_closing():
                self._protocol.data_received(content)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    # --- the protocol's side --------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for start in range(0, len(data), PIECE):
            self._transport.write(self._writer.pack(((0, bytes(data[start : start + PIECE])),)))

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def can_write_eof(self) -> bool:
        """Return False: a side that has nothing more to say closes the connection."""
        return False

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class Pipe(asyncio.Protocol):
    """One of two connections. Each gets what comes on the other one, as fast as it accepts it.

    Attributes:
        is_over: Set when either of them has ended.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._other = self
        self.is_over = asyncio.Event()

    def join(self, other: Pipe) -> None:
        """Let both be one connection. Call it before either is open."""
        self._other, other._other = other, self
        other.is_over = self.is_over

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._other._transport is not None and not self._other._transport.is_closing():
            self._other._transport.write(data)

    def pause_writing(self) -> None:
        if self._other._transport is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other._transport is not None and not self._other._transport.is_closing():
            self._other._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._other.close()
        self.is_over.set()
