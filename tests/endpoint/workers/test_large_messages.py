"""Messages larger than memory to several workers, and their replies: any worker may receive one, and its owner gets it.

Covers endpoint/workers/relays.py and endpoint/workers/routing.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import large_replies
import pytest
from crew import Crew

import holdfast
from holdfast import Attachment, SourcePolicy

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

ECHO = """
import holdfast
app = holdfast.Destination(store="inbox")
@app.on()
def echo(message):
    return holdfast.WithAttachments("<reply/>", message.attachments)
"""
MOST_MEMORY = 200_000_000


def peaks(server: Crew) -> list[int]:
    """Return the peak of memory of each worker."""
    found = []
    for pid in server.pids:
        status = Path(f"/proc/{pid}/status").read_text()
        found.append(1024 * int(status.split("VmHWM:")[1].split()[0]))
    return found


async def echo(url: str, directory: Path, count: int, size: int) -> None:
    """Send several large requests at a time, over connections to all workers, and check their replies."""
    film = directory / "film"
    large_replies.write_film(film, size)
    wanted = large_replies.digest(film)
    policy = SourcePolicy(window=count, initial_window=count)
    async with holdfast.Source(url, directory / "outbox", policy=policy) as source:

        async def one() -> str:
            given = [Attachment(film, "video/mp4", "film@test")]
            async with await source.request("<a/>", action="urn:a", attachments=given, timeout=300) as reply:
                with reply.attachments[0].open() as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()

        assert await asyncio.gather(*(one() for _ in range(count))) == [wanted] * count


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("count", "size"), [(3, 17 << 20), pytest.param(6, 40 << 20, marks=pytest.mark.nightly)], ids=["few", "many"]
)
async def test_large_messages_and_replies_pass_between_workers(count: int, size: int, tmp_path: Path) -> None:
    server = Crew(tmp_path, "--port", "0", "--workers", "3", module=ECHO)
    try:
        url = await asyncio.to_thread(server.url)
        await echo(url, tmp_path, count, size)
        most = peaks(server)
    finally:
        server.clean()
    assert len(most) == 3 and max(most) < MOST_MEMORY, most
