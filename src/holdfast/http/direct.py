"""DirectExchange: a request without a connection, for code that calls a handler in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.http.exchange import Exchange, Request
from holdfast.http.outcome import Response

_WHOLE = "a direct exchange has one complete answer"


class DirectExchange(Exchange):
    """One request, to be answered whole.

    Args:
        request: The request.

    Attributes:
        response: The answer, header names in lower case. Only the first counts.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Answer whole."""
        named = {name.decode().lower(): value.decode() for name, value in headers}
        named["content-type"] = (content_type or b"").decode()
        if not self.response.done():
            self.response.set_result(Response(status, named, body))

    def start(
        self, status: int, content_type: bytes | None = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Not here."""
        raise NotImplementedError(_WHOLE)

    def write(self, data: bytes) -> bool:
        """Not here."""
        raise NotImplementedError(_WHOLE)

    async def drain(self) -> None:
        """Not here."""
        raise NotImplementedError(_WHOLE)

    def finish(self) -> None:
        """Not here."""
        raise NotImplementedError(_WHOLE)
