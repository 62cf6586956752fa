"""Move messages that other transactions put into a source's database into its outbox, once each.

One round at a time: a round reads the waiting messages, submits them, and waits until they are durable, because the
batch that gives a message its place in the outbox also removes it from the waiting ones. A second, concurrent round
would find it again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

from holdfast.core.records import Record
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.logs import log
from holdfast.exceptions import StoreAway
from holdfast.outages import Outage, Trouble
from holdfast.store import Transactional

AT_ONCE = 500
"""Messages of one round's batch."""
ROUND_BYTES = 1 << 20
"""Bytes of them, and one message more."""
PAUSE_SECONDS = 0.2
"""After a round that found nothing."""
KEEPING_ROUNDS = 300
"""Rounds between two deletions of old MessageIDs: about a minute."""
_IN_THE_WAY = "End transactions that your application keeps open, or check the database. The source tries again soon."


class EnqueuedMessages:
    """The rounds of one source."""

    def __init__(self, engine: Engine, store: Transactional, submit: Callable[[Record], object]) -> None:
        self._engine = engine
        self._store = store
        self._submit = submit
        self._round: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._outage = Outage(time.monotonic)
        self._is_over = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def collect(self) -> None:
        """Move every message committed before this call into the outbox, unless the store fails."""
        for _ in range(2):  # the round in progress may have read the table already
            if self._round is None or self._round.done():
                if self._is_over.is_set():
                    return
                self._round = asyncio.create_task(self._collect())
            await asyncio.wait([self._round])  # the round continues if the caller is cancelled

    async def _collect(self) -> None:
        try:
            while self._engine.failure is None and not self._is_over.is_set():
                records = await asyncio.to_thread(self._store.enqueued, AT_ONCE, ROUND_BYTES)
                if not records:
                    return
                for record in records:
                    self._submit(record)
                await self._engine.durable()
        except Exception as error:
            self._engine.fail(error)

    async def _keep_message_ids(self) -> None:
        """Keep the table of MessageIDs; a failure ends nothing, because the source itself does not use it."""
        try:
            await asyncio.to_thread(self._store.keep_message_ids)
        except Exception as error:
            remedy = _IN_THE_WAY if isinstance(error, StoreAway) else getattr(error, "remedy", "")
            trouble = Trouble(getattr(error, "message", repr(error)), remedy)
            if self._outage.go_on(trouble) and not self._is_over.is_set():
                log.warning("message_ids.away", what=trouble.what, remedy=trouble.remedy)
        else:
            if (seconds := self._outage.end()) is not None:
                log.info("message_ids.back", seconds=seconds)

    async def _run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set() or self._engine.failure is not None:
                return
            # Not awaited: it may wait for a lock. After a minute, it has ended.
            if number % KEEPING_ROUNDS == 0 and (self._keeping is None or self._keeping.done()):
                self._keeping = asyncio.create_task(self._keep_message_ids())
            await self.collect()
            try:
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._is_over.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Begin no further round, and wait for the round in progress."""
        self._is_over.set()
        if self._keeping is not None:
            self._keeping.cancel()  # its thread has its own connection, and ends within seconds
        await asyncio.wait([self._running])
