"""The admin listener's part for sinks: writers outside, such as a Spark query, stage rows and publish them; operators
look at sinks, bind them and forget them.

What a sink is, what becomes of its rows, and when, is the core's (:mod:`holdfast.core.sinks.staging`).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.core.sinks.sink import Batch, NoRoomToStage, NoSuchSink, NotStaged
from holdfast.core.sinks.staging import Sinks
from holdfast.core.staged_blocks import Block
from holdfast.endpoint.admin.data_plane.rows import MEDIA_TYPE, CutOff, PartRead, RowReader, RowRefused
from holdfast.endpoint.admin.paging import page_of
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, route
from holdfast.endpoint.admin.shapes.answers import PartTaken, PublishedShown, SinkList, SinkShown
from holdfast.endpoint.admin.shapes.requests import Bind, Page, PartQuery, Publish, Tokens
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.exceptions import ConfigurationError
from holdfast.http.retry_after import retry_after

AT_ONCE = 2
"""Parts that are looked at or stored at a time: one of each. What others sent waits as it came."""
LARGEST_TOKENS = 16 << 20
"""Bytes of JSON that name parts: 300,000 of them, 1 TB of rows."""
LONGEST_REASON = 500
"""Characters of what is wrong with a row."""


class SinkRoutes:
    """Answers for one destination."""

    def __init__(self, app: RunningDestination) -> None:
        self._app = app
        self._thread: ThreadPoolExecutor | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)

    @property
    def _staging(self) -> Sinks:
        return self._app.engine.protocol.staging

    # --- looking --------------------------------------------------------------------------------------------------

    @route("GET", "sinks", SinkList, Page, joined=Joined.PAGES)
    async def _list(self, asked: Asked) -> object:
        """List the sinks."""
        sinks = self._staging.sinks
        shown, following = page_of([((name,), sinks[name]) for name in sorted(sinks)], asked.query)
        return {"sinks": [one.describe() for one in shown], "count": len(sinks), "next": following}

    @route("GET", "sinks/{sink}", SinkShown, errors=(404,), joined=Joined.SINK)
    async def _show(self, asked: Asked, sink: str) -> object:
        """Show a sink."""
        try:
            return self._staging.sink(sink).describe()
        except NoSuchSink as error:
            raise _refused(error) from None

    # --- what tasks ask -------------------------------------------------------------------------------------------

    @route(
        "POST",
        "sinks/{sink}/parts",
        PartTaken,
        PartQuery,
        body=MEDIA_TYPE,
        errors=(409, 422, 507),
        is_told=False,
        joined=Joined.SINK,
    )
    async def _stage(self, asked: Asked, sink: str) -> object:
        """Stage a part of a batch: it is durable, but in no queue until the batch is published."""
        self._check_store()
        query = asked.query
        batch = Batch(sink, query.query, query.batch, bool(query.jump))
        try:
            if self._staging.is_published(batch):
                return await self._already(batch)
            # Released only once the rows are durable, so that what waits for the store stays bounded.
            async with self._turns:
                part = await self._read(asked.body, query.queue)
                if part.refused and query.refused != "tell":
                    raise _row_refused(part.refused)
                if not await self._keep(batch, query.token, part.blocks):
                    return await self._already(batch)
        except ConfigurationError as error:
            raise _refused(error) from None
        return {"rows": part.rows, "already": False, "refused": _shown(part.refused)}

    async def _already(self, batch: Batch) -> object:
        """Respond only once the state is durable: otherwise the other parts' rows could be published without these."""
        known = self._staging.sink(batch.sink).became_of(batch)
        await self._app.engine.durable()
        return {"rows": 0, "already": True, "attempt": known.attempt}

    async def _keep(self, batch: Batch, token: str, blocks: list[Block]) -> bool:
        """Stage the rows of a part, all or none; False: the batch is published."""
        start = 0
        try:
            for block in blocks:
                if not self._staging.stage(batch, token, start, block, self._app.engine.clock()):
                    return False
                start += block.rows
                await self._app.engine.durable()
        except BaseException:
            if start:  # a rejected writer stages again with a new token: forgotten rows would take up space
                self._staging.discard(batch.sink, [token])
            raise
        return True

    def _check_store(self) -> None:
        if (trouble := self._app.store.trouble) is not None:
            raise Refused(503, f"No row was staged. {trouble.what}", trouble.remedy, retry_after(5))

    async def _read(self, data: bytes, queue: str) -> PartRead:
        app = self._app
        reader = RowReader(app.queues, app.settings.addresses(), app.settings.http.envelopes, queue)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-rows")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, reader.read, data, app.engine.clock())
        except CutOff as error:
            raise Refused(400, error.message, error.remedy) from None

    @route("POST", "sinks/{sink}/discard", None, body=Tokens, largest=LARGEST_TOKENS, is_told=False, joined=Joined.SINK)
    async def _discard(self, asked: Asked, sink: str) -> None:
        """Discard staged parts; published parts remain."""
        self._staging.discard(sink, asked.body.tokens)
        await self._app.engine.durable()

    # --- what drivers and operators ask ---------------------------------------------------------------------------

    @route(
        "POST",
        "sinks/{sink}/batches/{batch}",
        PublishedShown,
        body=Publish,
        largest=LARGEST_TOKENS,
        errors=(404, 409, 507),
        is_told=False,
        joined=Joined.SINK,
    )
    async def _publish(self, asked: Asked, sink: str, batch: str) -> object:
        """Publish a batch: all of its rows go into their queues exactly once."""
        if not batch.isascii() or not batch.isdecimal() or len(batch) > 15:
            raise Refused(404, f"{batch[:40]!r} is not the number of a batch", "Batches are numbered from 0.")
        asks = asked.body
        one = Batch(sink, asks.query, int(batch), asks.jump)
        try:
            published = self._staging.publish(
                one, asks.tokens, asks.rows, self._app.engine.clock(), asks.attempt, is_final=asks.final
            )
        except ConfigurationError as error:
            raise _refused(error) from None
        await self._app.engine.durable()
        return {"published": published.is_new, "rows": published.rows, "attempt": published.attempt}

    @route("POST", "sinks/{sink}/bind", SinkShown, body=Bind, errors=(404, 507), joined=Joined.SINK)
    async def _bind(self, asked: Asked, sink: str) -> object:
        """Bind a sink to another query; or to its own, although batches are missing."""
        try:
            bound = self._staging.bind(sink, asked.body.query, asked.body.after)
        except ConfigurationError as error:
            raise _refused(error) from None
        await self._app.engine.durable()
        return bound.describe()

    @route("DELETE", "sinks/{sink}", None, errors=(404,), joined=Joined.SINK)
    async def _forget(self, asked: Asked, sink: str) -> None:
        """Forget a sink and discard its staged rows; published rows still reach their queues."""
        try:
            self._staging.forget(sink)
        except NoSuchSink as error:
            raise _refused(error) from None
        await self._app.engine.durable()

    async def close(self) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self._thread.shutdown)


_STATUS = {NotStaged: 409, NoSuchSink: 404, NoRoomToStage: 507}


def _refused(error: ConfigurationError) -> Refused:
    more = {"why": error.why.value} if isinstance(error, NotStaged) else {}
    return Refused(_STATUS.get(type(error), 400), error.message, error.remedy, detail=more)


def _shown(bad: list[tuple[int, RowRefused]]) -> list[dict[str, Any]]:
    return [
        {"row": number, "column": one.column, "error": one.message[:LONGEST_REASON], "remedy": one.remedy}
        for number, one in bad
    ]


def _row_refused(bad: list[tuple[int, RowRefused]]) -> Refused:
    row, first = bad[0]
    others = f" ({len(bad):,} rows of this part cannot be sent)" if len(bad) > 1 else ""
    return Refused(
        422,
        f"{first.message}{others}",
        first.remedy or "Fix the row, or omit it. No row of this part was stored.",
        detail={"row": row, "column": first.column},
    )
