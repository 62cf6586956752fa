"""The admin listener while a server starts: probes and metrics are answered, everything else has to wait.

So what watches over the process sees that it lives, however long the store takes to recover or the database to answer.
"""

from __future__ import annotations

from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast.endpoint.admin.guard import Guard
from holdfast.endpoint.admin.routes import Refused
from holdfast.endpoint.json_answers import json_answer
from holdfast.http.exchange import Exchange
from holdfast.http.retry_after import retry_after

STARTING: Final = "The server is starting: it is recovering its store, or waiting for its database."
REMEDY: Final = "Wait until the server is ready; its log shows what it is waiting for."
RETRY_AFTER: Final = 5


class StartingAdmin:
    """Answers until the destination has started."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        try:
            self._guard.check(request)
        except Refused as refused:
            json_answer(exchange, refused.status, {"error": refused.message, "remedy": refused.remedy}, refused.headers)
            return
        path = request.target.partition("?")[0]
        is_read = request.method in ("GET", "HEAD")
        if is_read and path == "/healthz":
            json_answer(exchange, 200, {"status": "ok", "trouble": STARTING})
        elif is_read and path == "/metrics":
            exchange.respond(200, b"", CONTENT_TYPE_LATEST.encode())
        else:
            json_answer(exchange, 503, {"error": STARTING, "remedy": REMEDY}, retry_after(RETRY_AFTER))
