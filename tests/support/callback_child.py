"""A source whose handler never returns, to be killed: ``callback_child.py STORE URL PORT``."""

from __future__ import annotations

import asyncio
import sys

import holdfast

NEWS = "urn:test:news"


async def main(store: str, url: str, port: str) -> None:
    source = holdfast.Source(url, store, offer=True, http=holdfast.SourceHTTP(listen=("127.0.0.1", int(port))))

    @source.on(NEWS)
    async def news(message: holdfast.Message) -> None:
        print(message.body.text, flush=True)
        await asyncio.Event().wait()

    async with source:
        await source.send("<subscribe/>", action="urn:test:subscribe")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
