"""ASGIApplication: a destination as an ASGI application, which starts and closes with the server that hosts it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from holdfast.endpoint.destination.running_destination import DestinationSettings
from holdfast.endpoint.destination.start_signals import StartInterrupted, StartSignals
from holdfast.endpoint.envelopes.envelopes import Elsewhere, refuse_as_soap
from holdfast.http.exchange import Exchange, Spooling
from holdfast.http.server.asgi import Buffered, serve_asgi
from holdfast.settings import check_seconds

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


GRACE: Final = 10.0
"""Seconds that running handlers have to end."""


class ASGIApplication(ABC):
    """The part of a Destination that a host calls."""

    settings: DestinationSettings
    _buffered: Buffered
    _start_signals: StartSignals

    @abstractmethod
    def _spooling(self) -> Spooling:
        """Return what writes large requests to the store, after ``start``."""

    @property
    @abstractmethod
    def _was_closed(self) -> bool:
        """Whether it was closed, and not started again."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to accept requests."""

    @abstractmethod
    async def close(self, grace: float = GRACE) -> None:
        """Close everything."""

    @abstractmethod
    def handle(self, exchange: Exchange, is_elsewhere: Elsewhere | None = None) -> None:
        """Accept one request."""

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        """The ASGI application: ``lifespan`` and ``http``."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "http" and self._was_closed:
            # A start would open the store again, and no shutdown would follow. A reliable source retries.
            await _refuse(send, b"The destination was closed.")
        elif scope["type"] == "http":
            try:
                await self._start_signals.run(self.start)
            except StartInterrupted:
                await _refuse(send, b"The destination is being closed.")
                return
            limits, spooling = self.settings.http.limits, self._spooling()
            await serve_asgi(self.handle, scope, receive, send, limits, self._buffered, refuse_as_soap, spooling)
        else:
            await send({"type": "websocket.close", "code": 1003})

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None, *, grace: float = GRACE) -> Any:
        """Start and close the destination with a host that does not forward its lifespan to mounted applications.

        For example: ``FastAPI(lifespan=app.lifespan)``. SIGINT and SIGTERM also end the start, even while it waits for
        a database, if the host handles them and its event loop runs in the main thread.

        Args:
            grace: Seconds that running handlers have at the close; see :meth:`close`. To set it:
                ``FastAPI(lifespan=functools.partial(app.lifespan, grace=25))``.

        Raises:
            StoreError: The store cannot be opened, or a signal ended the start.
        """
        check_seconds("grace", grace, endless=False)
        await self._start_signals.run(self.start)
        try:
            yield
        finally:
            await self.close(grace)

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._start_signals.run(self.start)
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _refuse(send: Send, why: bytes) -> None:
    await send({"type": "http.response.start", "status": 503, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": why})
