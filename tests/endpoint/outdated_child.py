"""A source that dies with its Sequence open: outdated_child.py STORE URL TEXT COUNT RM. It says what it has come to."""

from __future__ import annotations

import asyncio
import os
import sys

from holdfast import Source, Versions


async def main(store: str, url: str, text: str, count: str, rm: str) -> None:
    async with Source(url, store, versions=Versions(rm)) as source:
        for number in range(int(count)):
            await source.send(f"<c>{text}{number}</c>", action="urn:test:submit")
        await source.flush(60)
        print(source.incidents["sequence.outdated"], source.progress.problem, flush=True)
        os._exit(0)


asyncio.run(main(*sys.argv[1:]))
