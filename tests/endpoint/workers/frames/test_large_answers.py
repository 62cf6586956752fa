"""Large answers to another node wait for it, and expire.

Covers endpoint/workers/frames/large_answers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.endpoint.workers.frames import large_answers
from holdfast.endpoint.workers.frames.large_answers import LARGE, LargeAnswers, TicketExchange
from holdfast.http.direct import WholeExchange
from holdfast.http.exchange import Request


class Asked(WholeExchange):
    def __init__(self) -> None:
        super().__init__(Request("POST", "/message", {}, b"", None, False))
        self.answers: list[tuple[int, bytes, bytes]] = []

    def answer(self, status: int, body: bytes, content_type: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.answers.append((status, body, content_type))


async def stream(exchange: TicketExchange, pieces: list[bytes]) -> None:
    exchange.start(200, b"multipart/related")
    for piece in pieces:
        if not exchange.closed and not exchange.write(piece):
            await exchange.drain()
    exchange.finish()


async def test_a_small_answer_goes_back_at_once() -> None:
    asked = Asked()
    TicketExchange(asked, LargeAnswers()).respond(202, b"", None)
    assert asked.answers == [(202, b"", b"")]


async def test_a_large_answer_is_read_only_when_it_is_fetched() -> None:
    answers, asked, fetching = LargeAnswers(), Asked(), Asked()
    exchange = TicketExchange(asked, answers)
    writing = asyncio.create_task(stream(exchange, [b"one", b"two", b"three"]))
    await asyncio.sleep(0)
    ((status, ticket, _),) = asked.answers
    assert status == LARGE and not writing.done()
    assert not answers.fetch("another", fetching)
    assert answers.fetch(ticket.decode(), fetching)
    await writing
    assert fetching.answers == [(200, b"onetwothree", b"multipart/related")]
    assert not answers.fetch(ticket.decode(), Asked())  # it counts once


async def test_an_answer_that_breaks_off_before_it_is_fetched_ends_when_it_is() -> None:
    answers, asked, fetching = LargeAnswers(), Asked(), Asked()
    await stream(TicketExchange(asked, answers), [])  # its content could not be read
    assert answers.fetch(asked.answers[0][1].decode(), fetching)
    assert fetching.answers == [(200, b"", b"multipart/related")]


async def test_an_answer_that_nobody_fetches_expires(monkeypatch) -> None:
    monkeypatch.setattr(large_answers, "PATIENCE", 0.0)
    asked, lost = Asked(), list[bool]()
    exchange = TicketExchange(asked, LargeAnswers())
    exchange.on_close = lambda: lost.append(True)
    await stream(exchange, [b"one", b"two"])
    assert exchange.closed and lost == [True] and len(asked.answers) == 1


async def test_a_node_that_goes_while_it_fetches_gets_no_more() -> None:
    answers, asked, fetching = LargeAnswers(), Asked(), Asked()
    exchange = TicketExchange(asked, answers)
    exchange.start(200)
    assert not exchange.write(b"one")
    assert answers.fetch(asked.answers[0][1].decode(), fetching)
    await exchange.drain()
    fetching.lose()
    assert exchange.closed
    exchange.finish()
    assert not fetching.answers


async def test_a_node_that_goes_before_the_answer_is_reported() -> None:
    asked, lost = Asked(), list[bool]()
    exchange = TicketExchange(asked, LargeAnswers())
    exchange.on_close = lambda: lost.append(True)
    asked.lose()
    assert exchange.closed and lost == [True]


async def test_what_waits_when_the_process_ends_is_closed() -> None:
    answers = LargeAnswers()
    exchange = TicketExchange(Asked(), answers)
    exchange.start(200)
    exchange.write(b"one")
    answers.close()
    await exchange.drain()
    assert exchange.closed
