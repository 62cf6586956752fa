"""DirectExchange: the answers of a handler that is called without a connection."""

from __future__ import annotations

from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Request


def exchange() -> DirectExchange:
    return DirectExchange(Request("GET", "/", {}, b"", None, secure=False))


async def test_an_answer_in_pieces_is_whole_once_it_is_finished() -> None:
    asked = exchange()
    asked.start(200, b"text/plain", ((b"X-A", b"1"),))
    assert asked.write(b"a")
    await asked.drain()
    assert asked.write(b"b")
    assert not asked.response.done()
    asked.finish()
    answer = await asked.response
    assert (answer.status, answer.body) == (200, b"ab")
    assert answer.headers == {"x-a": "1", "content-type": "text/plain"}


async def test_only_the_first_answer_counts() -> None:
    asked = exchange()
    asked.respond(202)
    asked.respond(500, b"late")
    assert ((await asked.response).status, (await asked.response).body) == (202, b"")
