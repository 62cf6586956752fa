"""The lifespan protocol of ASGI: a destination starts and closes with the server that hosts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol


class Living(Protocol):
    """An application that starts and closes."""

    async def start(self) -> None:
        """Begin to accept requests."""
        ...

    async def close(self) -> None:
        """Close everything."""
        ...


async def serve_lifespan(
    app: Living,
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    """Start and close an application as its server asks.

    Raises:
        HoldfastError: The application cannot start; the server has been told.
    """
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await app.start()
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
            await send({"type": "lifespan.startup.complete"})
        else:
            await app.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
