"""What the HTTP client keeps of many addresses that each got one request. Covers http/client/client.py."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from growth import entries
from waiting import until

from holdfast.http.client.client import HTTPClient
from holdfast.http.server.server import Exchange, HTTPServer


async def test_unused_addresses_are_forgotten_although_another_is_always_in_use() -> None:
    unanswered: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        if exchange.request.target == "/slow":
            unanswered.append(exchange)
        else:
            exchange.respond(202)

    async with AsyncExitStack() as stack:
        servers = [HTTPServer() for _ in range(4)]
        for server in servers:
            await server.start(handler, "127.0.0.1", 0)
            stack.push_async_callback(server.close)
        busy, *others = [f"http://127.0.0.1:{server.port}" for server in servers]
        client = await stack.enter_async_context(HTTPClient(keep_alive=0.01))
        slow = asyncio.create_task(client.fetch("POST", f"{busy}/slow", b"", {}))
        await until(lambda: bool(unanswered))
        for other in others:
            await client.fetch("POST", f"{other}/", b"", {})
        await until(lambda: entries(client)["HTTPClient._pools"] == 1)
        assert entries(client)["HTTPClient._heads"] <= 1
        unanswered[0].respond(202)
        assert (await slow).status == 202
        await until(lambda: not entries(client)["HTTPClient._pools"])
