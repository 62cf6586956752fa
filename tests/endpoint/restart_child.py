"""The processes that the restart tests kill with SIGKILL: a destination, and a source.

    restart_child.py destination STORE PORT ADMIN_PORT JOURNAL
    restart_child.py source STORE URL FIRST COUNT

The destination has a handler for requests, one that notes each message in JOURNAL, or none at all (JOURNAL "-").
The source sends messages FIRST to COUNT - 1 and says each one's number once it is durable. LONGEST_WAIT in the
environment is how many seconds the loop waits for a commit.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

from holdfast import Destination, HandlingPolicy, Message, RetransmissionPolicy, Source, SourcePolicy
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.store import writer

NOTE = "urn:test:note"
PRICE = "urn:test:price"
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))
"""For a local network that loses: a message is sent again soon."""


def destination(store: str, journal: str) -> Destination:
    app = Destination(store, partitions=2, handling=HandlingPolicy())
    if journal == "-":
        return app
    notes = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(notes, b"start\n")

    @app.on(NOTE)
    async def note(message: Message) -> None:
        os.write(notes, f"{message.sequence} {message.message_number}\n".encode())

    @app.on(PRICE)
    async def price(message: Message) -> str:
        # Another text in every call, so that a reply made twice can be told from one sent twice.
        return f"<price of='{message.body.text}'>{uuid.uuid4().hex}</price>"

    return app


async def serve(store: str, port: str, admin_port: str, journal: str) -> None:
    service = Service(destination(store, journal), Listeners(port=int(port), admin=AdminListener(port=int(admin_port))))
    await service.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


async def send(store: str, url: str, first: str, count: str) -> None:
    async with Source(url, store, policy=QUICK) as source:
        print("ready", flush=True)
        numbers = range(int(first), int(count))
        for start in range(0, len(numbers), 8):

            async def send_one(number: int) -> None:
                await source.send(f"<m xmlns='urn:test'>{number}</m>", action=NOTE)
                print(number, flush=True)

            await asyncio.gather(*map(send_one, numbers[start : start + 8]))
        await source.flush()
    print("done", flush=True)


if __name__ == "__main__":
    writer.LONGEST_WAIT = float(os.environ.get("LONGEST_WAIT", writer.LONGEST_WAIT))
    asyncio.run({"destination": serve, "source": send}[sys.argv[1]](*sys.argv[2:]))
