"""The unit: a bare listener on uvloop and httptools that answers every request with the same 600 bytes.

    python bench/bare.py                      # prints its port, serves until the end of standard input

The processor time of one of its requests is one unit. Other figures of the same run are given in this unit, because
other load on a machine slows both alike.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop

_BODY = b"x" * 600
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Type: text/xml\r\n\r\n%b" % (len(_BODY), _BODY)


class Listener(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Listener, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())
