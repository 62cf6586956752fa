"""Frames: requests and answers of two nodes on one connection, with one proof for each write.

A connection between nodes begins with a request in HTTP. Its stamp and proof show that it is new and of a node
(``node_proof``). After that, each side writes packets: a length, a keyed digest, and any number of frames. The key is
made from the cluster's secret and that stamp, so it is a new one for each connection and each direction. The digest
covers the number of the packet. So no packet can be changed, left out, repeated, or sent on another connection.

    packet = length of the frames (4 bytes)  digest (32 bytes)  frames
    frame  = number of the request (8 bytes)  length (4 bytes)  content

Knows no socket and no message.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.http.direct import response_headers
from holdfast.http.outcome import Response

DIGEST_BYTES: Final = 32
MOST_ANSWERS: Final = 17 * 1024 * 1024
"""Bytes of a packet with answers: one answer of the largest size, or smaller ones together."""
MOST_REQUESTS: Final = 512 * 1024
"""Bytes of a packet with requests."""
TOGETHER: Final = 256 * 1024
"""Bytes of frames above which the next frame begins another packet."""
SMALL_HEAD: Final = 2048
"""Bytes of a head that is remembered."""

_LENGTH = struct.Struct(">I")
_FRAME = struct.Struct(">QI")
_COUNT = struct.Struct(">Q")
_BEGIN: Final = _LENGTH.size + DIGEST_BYTES


class FramesError(Exception):
    """What arrived was not written by the other node, or not in this order."""


class FrameWriter:
    """Makes the packets of one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def pack(self, frames: Sequence[tuple[int, bytes]]) -> bytes:
        """Return the packets with these frames; without any, an empty packet."""
        packets, parts, size = list[bytes](), list[bytes](), 0
        for number, content in frames:
            if size > TOGETHER:
                packets.append(self._packet(parts))
                parts, size = [], 0
            parts += (_FRAME.pack(number, len(content)), content)
            size += len(content)
        packets.append(self._packet(parts))
        return packets[0] if len(packets) == 1 else b"".join(packets)

    def _packet(self, parts: list[bytes]) -> bytes:
        content = b"".join(parts)
        self._count += 1
        return b"%b%b%b" % (_LENGTH.pack(len(content)), _digest(self._key, self._count, content), content)


class FrameReader:
    """Reads the packets of one direction of a connection.

    Args:
        most: Bytes of the largest packet.
    """

    def __init__(self, key: bytes, most: int) -> None:
        self._key = key
        self._most = most
        self._count = 0
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the frames that are complete with these bytes.

        Raises:
            FramesError: They are not what the other node wrote. Close the connection.
        """
        if self._rest:
            self._rest += data
            if not self._is_whole(self._rest):
                return []
            data = bytes(self._rest)
            self._rest.clear()
        frames, start = list[tuple[int, bytes]](), 0
        while start + _BEGIN <= len(data):
            (length,) = _LENGTH.unpack_from(data, start)
            # Before the digest can be checked, the length is only a claim.
            if length > self._most:
                raise FramesError(f"a packet of {length} bytes")
            end = start + _BEGIN + length
            if end > len(data):
                break
            content = data[start + _BEGIN : end]
            self._count += 1
            if not hmac.compare_digest(_digest(self._key, self._count, content), data[start + 4 : start + _BEGIN]):
                raise FramesError("a packet without the proof of its sender")
            _split(content, frames)
            start = end
        if start < len(data):
            self._rest += data[start:]
        return frames

    def _is_whole(self, data: bytearray) -> bool:
        return len(data) >= _BEGIN and len(data) >= _BEGIN + min(self._most, _LENGTH.unpack_from(data)[0])


def _digest(key: bytes, count: int, content: bytes) -> bytes:
    return hmac.digest(key, _COUNT.pack(count) + content, "sha256")


def _split(content: bytes, frames: list[tuple[int, bytes]]) -> None:
    at = 0
    while at < len(content):
        number, length = _FRAME.unpack_from(content, at)
        at += _FRAME.size + length
        frames.append((number, content[at - length : at]))


# --- answers ----------------------------------------------------------------------------------------------------------


def encode_answer(response: Response) -> bytes:
    """Return an answer as bytes: its head, and its content."""
    head = _encode((response.status, dict(response.headers)))
    return b"%b%b%b" % (_LENGTH.pack(len(head)), head, response.body)


@lru_cache(256)
def answer_head(status: int, content_type: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Return what :func:`encode_answer` puts before the content."""
    return encode_answer(Response(status, response_headers(content_type, headers), b""))


def decode_answer(content: bytes) -> Response:
    """Return the answer in the bytes that :func:`encode_answer` made."""
    end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    head = content[_LENGTH.size : end]
    status, headers = _known_head(head) if len(head) <= SMALL_HEAD else _decode(head)
    return Response(status, headers, content[end:])


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, dict[str, str]]).decode
_known_head = lru_cache(256)(_decode)
