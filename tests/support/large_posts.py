"""Posts of strangers that announce or send more than a listener receives from them."""

from __future__ import annotations

import asyncio
import uuid
from urllib.parse import urlsplit

from holdfast.core.origin import secret_in, with_secret

MEDIA = ("application/soap+xml", "multipart/related; boundary=b")
GIB = 1 << 30


def forged(address: str) -> list[str]:
    """Return addresses that were never given to a peer, like one that was."""
    secret = secret_in(address)
    bare = address.partition("?")[0]
    further = secret[:-1], f"{secret}0", secret.upper() + "A", str(uuid.uuid4()), "x", "0" * 4000
    made = [with_secret(bare, one) for one in further]
    return [bare, f"{bare}?holdfast=", with_secret(with_secret(bare, "x"), secret), *made]


async def announced(address: str, media: str, size: int = 3 * GIB) -> int:
    """Announce a message of that size, and return the status before its content: 100 if the listener wants it."""
    reader, writer = await _begin(address, media, f"Content-Length: {size}\r\nExpect: 100-continue")
    status = await _status(reader)
    writer.close()
    return status


async def sent(address: str, media: str, most: int = 64 << 20) -> int | None:
    """Send a message in chunks until the listener answers, and return the status; None: it received so many bytes."""
    reader, writer = await _begin(address, media, "Transfer-Encoding: chunked")

    async def send() -> None:
        for _ in range(0, most, 0x10000):
            writer.write(b"10000\r\n<" + bytes(0xFFFF) + b"\r\n")
            await writer.drain()

    sending, answered = asyncio.ensure_future(send()), asyncio.ensure_future(_status(reader))
    await asyncio.wait([sending, answered], return_when=asyncio.FIRST_COMPLETED)
    is_received = sending.done() and sending.exception() is None and not answered.done()
    sending.cancel()
    await asyncio.wait([sending])
    if is_received:
        answered.cancel()
    writer.close()
    return None if is_received else await answered


async def _begin(address: str, media: str, fields: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    split = urlsplit(address)
    reader, writer = await asyncio.open_connection(split.hostname, split.port)
    target = f"{split.path}?{split.query}" if split.query else split.path
    writer.write(f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Type: {media}\r\n{fields}\r\n\r\n".encode())
    return reader, writer


async def _status(reader: asyncio.StreamReader) -> int:
    return int((await reader.readline()).split()[1])
