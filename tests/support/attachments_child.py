"""A source that sends messages with attachments, to be killed: ``attachments_child.py STORE URL COUNT``.

Every life continues where the one before stopped, and prints ``done`` once all are acknowledged.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys

from holdfast import Attachment, RetransmissionPolicy, Source, SourcePolicy

ACTION = "urn:test:claim"
INCLUDE = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:photo@test"/>'
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.4))


def contents(number: int) -> bytes:
    """Return the attachment of a message: from 4 to 200 KB, and different for each."""
    return hashlib.sha256(b"%d" % number).digest() * (128 + 1_500 * (number % 5))


def body(number: int) -> str:
    return f"<claim xmlns='urn:test'><n>{number}</n><photo>{INCLUDE}</photo></claim>"


async def main(store: str, url: str, count: int) -> None:
    async with Source(url, store, policy=QUICK, offer=False) as source:
        print("ready", flush=True)
        for number in range(source.next_offset(), count):
            photo = Attachment(contents(number), "image/png", "photo@test")
            await source.send(body(number), action=ACTION, message_id=f"urn:claim:{number}", attachments=[photo])
            print(number, flush=True)
        await source.flush()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
