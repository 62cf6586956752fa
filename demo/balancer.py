"""A load balancer in a few lines: it needs to know nothing about HTTP or Sequences."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress


class Balancer:
    """Pass each TCP connection to the next broker that accepts it, without stickiness.

    Args:
        ports: The ports of the brokers on this machine.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._count, self._next = len(ports), itertools.cycle(ports)

    async def start(self) -> str:
        """Listen, and return the URL."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    def close(self) -> None:
        """Stop accepting connections."""
        self._server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in itertools.islice(self._next, self._count):
            with suppress(OSError):
                from_broker, to_broker = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            writer.close()
            return
        await asyncio.gather(self._copy(reader, to_broker), self._copy(from_broker, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (data := await reader.read(65_536)) and not writer.is_closing():  # a killed broker closes it
                writer.write(data)
                await writer.drain()
        writer.close()
