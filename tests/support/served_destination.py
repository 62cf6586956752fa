"""A destination at a socket, for tests that post to it what they wrote themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import httpx

from holdfast import Destination, Message, MessageContext
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service


class Served:
    """The destination, and a client of it.

    Args:
        app: The destination; :meth:`take` gets its messages.
        media: Content-Type of what is posted.
    """

    def __init__(self, app: Destination, media: str = "application/soap+xml; charset=utf-8") -> None:
        self.got: list[Message] = []
        self.app = app
        self.app.on()(self.take)
        self.service = Service(self.app, Listeners(port=0))
        self._media = media

    def take(self, message: Message) -> None:
        self.got.append(message)

    async def __aenter__(self) -> Self:
        await self.service.start()
        self.client = httpx.AsyncClient(timeout=240, verify=False)  # making a context for TLS takes long
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.aclose()
        await self.service.close()

    @property
    def url(self) -> str:
        return self.service.url

    @property
    def sequences(self) -> list[str]:
        return list(self.app.running.engine.protocol.inbound.destinations)

    async def post(self, body: bytes | str, headers: dict[str, str] | None = None, to: str = "") -> httpx.Response:
        return await self.client.post(to or self.url, content=body, headers=headers or {"Content-Type": self._media})


class Doubting:
    """Before the class of a source's processor: for it, the first three answers are a day old, as replayed ones are."""

    left = 3
    _clock: Callable[[], float]

    def inbound(self: Any, context: MessageContext) -> None:
        usual = self._clock
        self.left -= 1
        if self.left >= 0:
            self._clock = lambda: usual() + 86_400
        try:
            super().inbound(context)  # type: ignore[misc]
        finally:
            self._clock = usual
