"""HTTP/1.1 on bare asyncio streams, and the losses a script asks for."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(slots=True)
class Message:
    """One HTTP request or response as it came; header names in lower case."""

    start: str
    headers: dict[str, str]
    body: bytes
    head: bytes = b""

    @property
    def status(self) -> int:
        return int(self.start.split(" ", 2)[1])


async def read_message(reader: asyncio.StreamReader, *, response: bool) -> Message:
    """Reads one message. Raises asyncio.IncompleteReadError when the peer closes before its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    start, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif response and not start.split(" ")[1].startswith("1") and headers.get("connection", "").lower() == "close":
        body = await reader.read()
    else:
        body = b""
    encoding = headers.get("content-encoding", "").lower()
    if encoding == "gzip":
        body = gzip.decompress(body)
    elif encoding == "deflate":
        body = zlib.decompress(body)
    return Message(start, headers, body, head)


async def post(url: str, body: bytes, head: bytes) -> Message:
    """Sends one recorded request, its own head with it, to ``url`` on a fresh connection.

    Only the request line's path, Host and Content-Length are put right. Raises OSError or asyncio.IncompleteReadError
    when the connection dies without an answer.
    """
    location = urlsplit(url)
    lines = [f"POST {location.path or '/'} HTTP/1.1", f"Host: {location.netloc}"]
    kept = (line for line in head.decode("latin-1").split("\r\n")[1:] if line)
    lines += [line for line in kept if line.partition(":")[0].lower() not in ("host", "content-length", "connection")]
    lines += [f"Content-Length: {len(body)}", "", ""]
    reader, writer = await asyncio.open_connection(location.hostname, location.port or 80)
    try:
        writer.write("\r\n".join(lines).encode("latin-1") + body)
        return await read_message(reader, response=True)
    finally:
        writer.close()


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return body


class Losses:
    """Which requests and responses get lost.

    Args:
        requests, responses: Exchange numbers (from 1, in the order they began), or kinds such as "CreateSequence" or,
            with a message number, "Echo 2": a kind loses its first exchange only.
        rate: Chance of losing each request, and again each response, drawn from ``seed``.
    """

    def __init__(
        self,
        requests: Iterable[int | str] = (),
        responses: Iterable[int | str] = (),
        rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._requests, self._responses = set(requests), set(responses)
        self._rate = rate
        self._random = random.Random(seed)

    def loses_request(self, exchange: Exchange) -> bool:
        return self._lost(self._requests, exchange)

    def loses_response(self, exchange: Exchange) -> bool:
        return self._lost(self._responses, exchange)

    def _lost(self, plan: set[int | str], exchange: Exchange) -> bool:
        for kind in (exchange.kind, f"{exchange.kind} {exchange.message_number}"):
            if kind in plan:
                plan.remove(kind)
                return True
        return exchange.number in plan or (self._rate > 0 and self._random.random() < self._rate)


@dataclass(slots=True)
class Exchange:
    """One line of a transcript.

    ``outcome``: "answered", "request lost", "response lost", "no connection" (refused or cut), or at the server also
    "reset" (it cut the connection on purpose).
    """

    number: int
    kind: str
    request: bytes
    request_head: bytes = b""
    status: int = 0
    response: bytes = b""
    response_headers: dict[str, str] | None = None
    outcome: str = ""

    @property
    def message_number(self) -> str:
        """As the request has it; "" if it has none."""
        found = re.search(rb"MessageNumber>(\d+)<", self.request)
        return found.group(1).decode() if found else ""
