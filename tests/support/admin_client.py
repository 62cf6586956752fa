"""A client of an admin listener, which holds every answer against what the listener says of itself."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from openapi import Described
from yarl import URL

from holdfast import Destination, Source

ACTION = "urn:test:submit"


class Client:
    """Asks one admin listener."""

    def __init__(self, session: aiohttp.ClientSession, url: str, service: Any) -> None:
        self.session = session
        self.url = url
        self.service = service
        self.app: Destination = service.app
        self.described = Described(service._admin)

    async def ask(self, path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
        """Every answer is as ``GET /openapi.json`` says."""
        async with self.session.request(method, URL(self.url + path, encoded=True), **options) as answer:
            data = await answer.read()
            kind = answer.headers.get("Content-Type", "").partition(";")[0]
            content = json.loads(data) if kind == "application/json" else data
        self.described.check(method, path, answer.status, kind, content)
        return answer.status, content

    async def send(self, count: int, key: str = "") -> None:
        async with Source(self.service.url, ":memory:") as source:
            for number in range(count):
                await source.send(f"<n>{number}</n>", action=ACTION, sequence_key=key)
            await source.flush(60)

    async def epoch(self) -> str:
        _, answer = await self.ask("/queues")
        return str(answer["queues"]["inbox"]["epoch"])

    async def put(self, name: str, offsets: dict[str, int], epoch: str | None = None) -> tuple[int, Any]:
        body = {"epoch": epoch or await self.epoch(), "offsets": offsets}
        return await self.ask(f"/queues/inbox/cursors/{name}", "PUT", json=body)
