"""A source with tokens of WS-SecureConversation, to be killed: ``conversation_child.py URL DIRECTORY COUNT``.

It sends each number once, and ends the Sequence after the last one. It notes each stored message, so that it continues
after the last one if it is started again.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import holdfast

SOON = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.4))


async def main(url: str, directory: str, count: str) -> None:
    place = Path(directory)
    alice = holdfast.SecureConversation("alice", "secret", tokens=place / "tokens")
    versions = holdfast.Versions("1.1", "2005/08", "1.2")
    async with holdfast.Source(url, place / "outbox", versions=versions, processors=[alice], policy=SOON) as source:
        stored = place / "stored"
        done = len(stored.read_text().splitlines()) if stored.exists() else 0
        for number in range(done + 1, int(count) + 1):
            await source.send(f"<m><t>{number}</t></m>", action="urn:tell", message_id=f"urn:test:{number}")
            with stored.open("a") as lines:
                lines.write(f"{number}\n")
            await source.flush(60)
        await source.end(timeout=60)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
