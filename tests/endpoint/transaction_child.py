"""The process that the tests of transactions kill: a destination whose handler works in the database's transaction.

transaction_child.py inbox URL TABLE PORT DIES      DIES: "", "before" or "after" the commit, of the first message
transaction_child.py outbox URL TO                  a source that sends what others put into its database
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from sqlalchemy import Connection, text

from holdfast import Destination, Message, RetransmissionPolicy, Source, SourcePolicy
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.store.sql import store as sql

NOTE = "urn:test:note"
PRICE = "urn:test:price"
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))
sql.LOCK_SECONDS = 60.0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def destination(store: str, table: str, dies: str = "") -> Destination:
    app = Destination(store)

    @app.on(NOTE)
    def note(message: Message, connection: Connection) -> None:
        # No key: done twice, it is there twice.
        connection.execute(
            text(f"INSERT INTO {table} VALUES (:body, :thread)"),
            {"body": message.body.text, "thread": os.getpid()},
        )
        if dies == "before":
            die()

    @app.on(PRICE)
    def price(message: Message, connection: Connection) -> str:
        note(message, connection)
        return f"<price>{message.body.text}</price>"

    return app


async def inbox(url: str, table: str, port: str, dies: str) -> None:
    if dies == "after":
        commit = sql.Transaction.commit

        def commit_and_die(self: sql.Transaction, batch: object) -> None:
            commit(self, batch)  # type: ignore[arg-type]
            die()

        sql.Transaction.commit = commit_and_die  # type: ignore[assignment,method-assign]
    service = Service(destination(url, table, dies), Listeners(port=int(port), admin=AdminListener(port=0)))
    await service.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


async def outbox(url: str, to: str) -> None:
    async with Source(to, url, policy=QUICK):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run({"inbox": inbox, "outbox": outbox}[sys.argv[1]](*sys.argv[2:]))
