"""Large answers to another node: what it asked in a frame brings a ticket, with which it fetches the answer.

The answer is not read before that. It goes over a sealed connection, as fast as the other node writes it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from holdfast.http.exchange import Exchange, Headers

LARGE: Final = 209
"""Status of an answer that has the ticket of a large answer as its content. Only nodes use it."""
MOST_WAITING: Final = 64
"""Answers that wait at a time; with one more, the first one expires."""
PATIENCE: Final = 30.0
"""Seconds until an unused ticket expires: the request may be sent again."""


class LargeAnswers:
    """The large answers of a process that wait for other nodes."""

    def __init__(self) -> None:
        self._waiting: dict[str, TicketExchange] = {}

    def add(self, exchange: TicketExchange) -> str:
        if len(self._waiting) >= MOST_WAITING:
            self._expire(next(iter(self._waiting)))
        ticket = secrets.token_hex(16)
        self._waiting[ticket] = exchange
        asyncio.get_running_loop().call_later(PATIENCE, self._expire, ticket)
        return ticket

    def fetch(self, ticket: str, exchange: Exchange) -> bool:
        """Send the answer with a ticket; return whether there is one."""
        answer = self._waiting.pop(ticket, None)
        if answer is not None:
            answer.fetched(exchange)
        return answer is not None

    def close(self) -> None:
        for ticket in list(self._waiting):
            self._expire(ticket)

    def _expire(self, ticket: str) -> None:
        answer = self._waiting.pop(ticket, None)
        if answer is not None:
            answer.expire()


class TicketExchange(Exchange):
    """A request of another node. Small answers go back at once."""

    def __init__(self, asked: Exchange, answers: LargeAnswers) -> None:
        self.request = asked.request
        self._asked = asked
        self._answers = answers
        self._target: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []
        self._is_finished = False
        asked.on_close = self._lose

    def respond(self, status: int, body: bytes = b"", content_type: bytes | None = None, headers: Headers = ()) -> None:
        self._asked.respond(status, body, content_type, headers)

    def start(self, status: int, content_type: bytes | None = None, headers: Headers = ()) -> None:
        self._head = (status, content_type, headers)
        # Its connection has its answer, the ticket; the large answer comes on another one.
        self._asked.on_close = None
        self._asked.respond(LARGE, self._answers.add(self).encode())

    def write(self, data: bytes) -> bool:
        """Send a piece, or keep it until the answer is fetched."""
        if self._target.done() and not self.closed:
            return self._target.result().write(data)
        self._pieces.append(data)
        return False

    async def drain(self) -> None:
        """Wait until the answer is fetched and there is room for more, or the ticket expires."""
        await asyncio.wait({self._target})
        if not self.closed:
            await self._target.result().drain()

    def finish(self) -> None:
        # A content that cannot be read ends before it is fetched.
        self._is_finished = True
        if self._target.done() and not self.closed:
            self._target.result().finish()

    def fetched(self, exchange: Exchange) -> None:
        exchange.on_close = self._lose
        exchange.start(*self._head)
        for piece in self._pieces:
            exchange.write(piece)
        self._pieces.clear()
        self._target.set_result(exchange)
        if self._is_finished:
            exchange.finish()

    def expire(self) -> None:
        """Send it nowhere."""
        self._pieces.clear()
        self._lose()
        self._target.cancel()

    def _lose(self) -> None:
        self.closed = True
        if self.on_close is not None:
            self.on_close()
