"""Programs that reply with large attachments, and that receive such replies, in processes of their own, to be measured.

As a program: ``large_replies.py URL``. It sends a request from an outbox in its working directory, and prints the
digest of the reply's attachment, and its peak of memory before and after.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import sys
from pathlib import Path

import holdfast
from holdfast import Attachment, RetransmissionPolicy, Source, SourcePolicy

ACTION = "urn:test:film"
BODY = '<film xmlns="urn:test"/>'
REPLY = (
    '<film xmlns="urn:test"><x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:film@test"/></film>'
)
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.4))

app = holdfast.Destination("inbox")


def write_film(path: Path, size: int) -> None:
    """Write a file of random blocks."""
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        for number in range(size >> 20):
            file.write(number.to_bytes(8, "big") + block[8:])


def digest(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reply_with(path: Path) -> holdfast.WithAttachments:
    """Return a reply with a file."""
    return holdfast.WithAttachments(REPLY, [Attachment(path, "video/mp4", "film@test")])


@app.on(ACTION)
def film(_message: holdfast.Message) -> holdfast.WithAttachments:
    """Reply with the file ``film``."""
    return reply_with(Path("film"))


def peak() -> int:
    """Return the peak of memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def main(url: str) -> None:
    """Send the request, and read the reply."""
    async with Source(url, "outbox", policy=QUICK) as source:
        before = peak()
        async with await source.request(BODY, action=ACTION, timeout=600) as reply:
            with reply.attachments[0].open() as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
    print(found, before, peak())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
