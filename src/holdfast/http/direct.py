"""Exchanges without a connection: for code that calls a handler in the same process, or answers in another way."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from holdfast.http.exchange import Exchange, Headers, Request
from holdfast.http.outcome import Response


class WholeExchange(Exchange):
    """One request. Its answer is kept in memory until it is whole. Only the first answer counts."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._is_answered = False

    @abstractmethod
    def answer(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        """Process the whole answer."""

    def respond(self, status: int, body: bytes = b"", content_type: bytes | None = None, headers: Headers = ()) -> None:
        # A handler that answers after its caller has gone on must not raise.
        if not self._is_answered:
            self._is_answered = True
            self.answer(status, body, content_type or b"", headers)

    def start(self, status: int, content_type: bytes | None = None, headers: Headers = ()) -> None:
        self._begun = (status, content_type, headers)
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> bool:
        """Keep a piece of the answer."""
        self._pieces.append(data)
        return True

    async def drain(self) -> None:
        """Return at once: there is room."""

    def finish(self) -> None:
        status, content_type, headers = self._begun
        self.respond(status, b"".join(self._pieces), content_type, headers)

    def lose(self) -> None:
        """Note that the peer has gone."""
        self.closed = True
        if self.on_close is not None and not self._is_answered:
            self.on_close()


class DirectExchange(WholeExchange):
    """One request. A task awaits its answer.

    Attributes:
        response: The answer, header names in lower case.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def answer(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        """Make the answer the future's result."""
        if not self.response.done():  # its task may have given up
            self.response.set_result(Response(status, response_headers(content_type, headers), body))


def response_headers(content_type: bytes, headers: Headers) -> dict[str, str]:
    """Return the headers of an answer as a client gets them, with names in lower case."""
    told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
    if content_type:
        told["content-type"] = content_type.decode("latin-1")
    return told
