"""A destination in this process whose exchanges a test notes, changes and repeats; and what its answers may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Destination, Message, Processor
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Exchange, Request
from holdfast.http.outcome import Response


class Tap:
    """A destination whose exchanges are noted, and whose answers a test may change."""

    def __init__(self, processors: list[Processor]) -> None:
        self.got: list[str] = []
        self.app = Destination(":memory:", processors=processors, assurance="exactly-once in-order")
        self.app.on()(self._take)
        self.requests: list[Request] = []
        self.answers: list[Response] = []
        self.change: Callable[[Response], Response] = lambda response: response
        self._handle = self.app.handle
        self.app.handle = self._noted  # type: ignore[method-assign]
        self._tasks: set[asyncio.Task[None]] = set()

    def _take(self, message: Message) -> str:
        self.got.append(message.body.text or "")
        return "<taken/>"

    def _noted(self, exchange: Exchange, is_elsewhere: Any = None) -> None:
        self.requests.append(replace(exchange.request))  # its body becomes that of the root part
        ours = DirectExchange(exchange.request)
        self._handle(ours, is_elsewhere)

        async def answer() -> None:
            response = await ours.response
            self.answers.append(response)
            response = self.change(response)
            exchange.respond(response.status, response.body, response.headers.get("content-type", "").encode())

        task = asyncio.ensure_future(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def post(self, request: Request, data: bytes, headers: dict[bytes, bytes] | None = None) -> Response:
        made = Request("POST", "/", headers or request.headers, data, "stranger.test", False)
        exchange = DirectExchange(made)
        self._handle(exchange)
        return await asyncio.wait_for(exchange.response, 300)


def assert_refused_or_answered(response: Response, told: str) -> None:
    """A fault with a reason, or an HTTP answer with a sentence; nothing that says that the endpoint itself failed."""
    assert response.status in (200, 202, 400, 413, 415, 500, 503), (told, response)
    if response.status == 500:
        assert b"Fault" in response.body or b"EncryptedData" in response.body, (told, response)
    elif response.status >= 400:
        assert response.body.strip(), (told, response)


def assert_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    wrong = [one for one in caplog.records if one.exc_info or one.levelname in ("ERROR", "CRITICAL")]
    assert not wrong, wrong[0].getMessage()
