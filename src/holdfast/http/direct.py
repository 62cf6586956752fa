"""DirectExchange: a request without a connection, for code that calls a handler in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.http.exchange import Exchange, Request
from holdfast.http.outcome import Response


class DirectExchange(Exchange):
    """One request. Its answer is kept in memory until it is whole.

    Attributes:
        response: The answer, header names in lower case. Only the first counts.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Answer whole."""
        self.start(status, content_type, headers)
        self.write(body)
        self.finish()

    def start(
        self, status: int, content_type: bytes | None = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Begin an answer."""
        self._status = status
        self._headers = {name.decode().lower(): value.decode() for name, value in headers}
        self._headers["content-type"] = (content_type or b"").decode()
        self._pieces = []

    def write(self, data: bytes) -> bool:
        """Keep a piece of the answer."""
        self._pieces.append(data)
        return True

    async def drain(self) -> None:
        """Return at once: there is room."""

    def finish(self) -> None:
        """End the answer."""
        if not self.response.done():
            self.response.set_result(Response(self._status, self._headers, b"".join(self._pieces)))
