"""Programs that send, receive and check large attachments in processes of their own, to be killed and measured.

As a program: ``large_attachments.py URL FILE COUNT``. It sends ``COUNT`` messages with the file, half of them in MTOM,
and prints ``done`` and its peak of memory once all are acknowledged. Its outbox is in its working directory; started
again, it continues.
"""

from __future__ import annotations

import asyncio
import hashlib
import resource
import sys
from pathlib import Path

import holdfast
from holdfast import Attachment, RetransmissionPolicy, Source, SourcePolicy

ACTION = "urn:test:film"
BODIES = (
    '<film xmlns="urn:test"><x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:film@test"/></film>',
    '<film xmlns="urn:test"/>',
)
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.4))

app = holdfast.Destination("inbox")


@app.on(ACTION)
def film(message: holdfast.Message) -> None:
    """Note the digest of each attachment in the file ``delivered``."""
    for one in message.attachments:
        with one.open() as file, Path("delivered").open("a") as delivered:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            delivered.write(f"{message.message_id} {digest}\n")


async def main(url: str, path: Path, count: int) -> None:
    """Send the messages."""
    async with Source(url, "outbox", policy=QUICK, offer=False) as source:
        for number in range(source.next_offset(), count):
            given = [Attachment(path, "video/mp4", "film@test")]
            await source.send(BODIES[number % 2], action=ACTION, message_id=f"urn:film:{number}", attachments=given)
            print(number, flush=True)
        await source.flush()
    print("done", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
