"""Holdfast's destination with the contract of the recordings, in this process or as one of its own to be killed.

As a program: ``destination.py STORE PORT LOG``. It writes a line for each message it handles, with the sequence and the
number; with "-" for LOG it has no handlers, and messages stay in the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service

CONTRACT = "urn:holdfast:interop"


@contextlib.asynccontextmanager
async def running_destination(app: holdfast.Destination, port: int = 0) -> AsyncIterator[str]:
    """Serves ``app`` on 127.0.0.1 with Holdfast's own server; gives its URL."""
    service = Service(app, Listeners(port=port))
    await service.start()
    try:
        yield service.url
    finally:
        await service.close(0.0)


def contract_app(store: str | Path, handled: Callable[[holdfast.Message], Any], **options: Any) -> holdfast.Destination:
    """A destination with Notify and Echo; ``handled`` is called (and awaited, if it is async) with each message.

    Echo answers with what it was asked. A body of "fault" is answered by a fault of the application's.
    """
    app = holdfast.Destination(store, **options)

    @app.on(f"{CONTRACT}/Notify")
    async def notify(message: holdfast.Message) -> None:
        await _call(handled, message)

    @app.on(f"{CONTRACT}/Echo")
    async def echo(message: holdfast.Message) -> bytes:
        await _call(handled, message)
        if text_of(message) == "fault":
            raise holdfast.ApplicationFault("the application says no")
        return message.body_bytes.replace(b"<echo", b"<echoResponse").replace(b"</echo>", b"</echoResponse>")

    return app


async def _call(handled: Callable[[holdfast.Message], Any], message: holdfast.Message) -> None:
    waiting = handled(message)
    if waiting is not None:
        await waiting


def text_of(message: holdfast.Message) -> str:
    """The text of the contract's body element."""
    return message.body.findtext(f"{{{CONTRACT}}}body", "")


def key_of(message: holdfast.Message) -> str:
    """The contract's key and number."""
    return f"{message.body.findtext(f'{{{CONTRACT}}}key')} {message.body.findtext(f'{{{CONTRACT}}}number')}"


async def _run(store: str, port: int, log: str) -> None:
    if log == "-":
        app = holdfast.Destination(store)
    else:
        with open(log, "a", buffering=1) as lines:

            def write(message: holdfast.Message) -> None:
                lines.write(f"{message.sequence} {message.message_number} {key_of(message)}\n")

            await Service(contract_app(store, write), Listeners(port=port)).run()
            return
    await Service(app, Listeners(port=port)).run()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
