"""A source's transport to an ASGI application in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from holdfast.http.outcome import Done, Response


class ToASGI:
    """Carries the requests of a source to an ASGI application."""

    def __init__(self, app: Any) -> None:
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app))
        self._tasks: set[asyncio.Task[None]] = set()

    def request(self, method: str, url: str, body: Any, headers: Mapping[str, str], done: Done) -> None:
        async def send() -> None:
            content = body if isinstance(body, bytes) else b"".join(body)
            told = await self._client.request(method, url, content=content, headers=dict(headers))
            done(Response(told.status_code, dict(told.headers), told.content))

        self._tasks.add(task := asyncio.create_task(send()))
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks)
        await self._client.aclose()
