"""The admin listener's part for queues and cursors: to show one, look into it, purge it; to list cursors, move one.

What readers read and how they move their own cursors is the data plane's (``endpoint.admin.data_plane.readers``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.queues.cursors import HANDLER, OUTBOUND
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.steering import Loss, Steering
from holdfast.endpoint.admin.inspected import Inspected, describe_queue
from holdfast.endpoint.admin.numbering import Numbering, numbering_of
from holdfast.endpoint.admin.paging import page_of
from holdfast.endpoint.admin.places import asked_partitions, check_one_partition, find_offsets, pass_over, within
from holdfast.endpoint.admin.resources.rates import Rates
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, route
from holdfast.endpoint.admin.shapes.answers import CursorList, Messages, Moved, Purged, QueueShown
from holdfast.endpoint.admin.shapes.requests import Page, Peek, Purge, Reset
from holdfast.endpoint.admin.shapes.values import MOST_LISTED
from holdfast.endpoint.envelopes.attachments import describe_attachments
from holdfast.endpoint.inspection import ages, oldest
from holdfast.exceptions import counted
from holdfast.settings import suggestion

PEEKED_BYTES = 8 << 20
"""Approximate bytes of bodies and header blocks in one response."""


class QueueRoutes:
    """Answers for the queues of one destination.

    Args:
        app: The destination, started; or a stopped store.
        rates: How fast its queues and cursors move.
    """

    def __init__(self, app: Inspected, rates: Rates) -> None:
        self._app = app
        self._rates = rates

    @property
    def _queues(self) -> Mapping[str, Queue]:
        return self._app.queues

    def _queue(self, name: str) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            hint = suggestion(name, self._queues, f"The queues are {', '.join(self._queues)}.")
            raise Refused(404, f"the queue {name[:200]!r} does not exist", hint)
        return queue

    def _numbers(self, queue: Queue) -> Numbering:
        return numbering_of(self._app).of(queue)

    @route("GET", "queues/{name}", QueueShown, errors=(404,))
    async def _show(self, asked: Asked, name: str) -> object:
        """Show a queue with its cursors."""
        return await self._described(self._queue(name))

    async def _described(self, queue: Queue) -> dict[str, Any]:
        shown = await describe_queue(self._app, queue)
        shown["bytes"] = queue.records.bytes_held
        shown["age"] = await oldest(self._app.engine, queue)
        shown["rate_in"] = self._rates.of_queue(queue)
        numbers = self._numbers(queue)
        for cursor in shown["cursors"]:
            cursor["rate"] = self._rates.of_cursor(queue, numbers.own_cursor(cursor["name"]) or "")
        return shown

    # --- looking --------------------------------------------------------------------------------------------------

    @route(
        "GET",
        "queues/{name}/{partition}/messages",
        Messages,
        Peek,
        errors=(404, 410, 416),
        joined=Joined.PARTITION,
        is_large=True,
    )
    async def _peek(self, asked: Asked, name: str, partition: str) -> object:
        """Show records without moving a cursor."""
        queue, query = self._queue(name), asked.query
        numbers = self._numbers(queue)
        own = numbers.find(partition)
        one, number = queue.partitions[own], numbers.partition(own)
        start = one.first if query.start is None else query.start
        if start < one.first:
            raise Refused(
                410, f"records below {one.first} are deleted", f"The queue's retention is {queue.deletion.keeps}."
            )
        if start > one.durable_end:
            raise Refused(416, f"partition {number} ends at {one.durable_end}", "Start at an earlier offset.")
        limit, size = min(query.limit, MOST_LISTED), 0
        shown: list[dict[str, Any]] = []
        position = start
        while position < one.durable_end and len(shown) < limit and size < PEEKED_BYTES:
            found = await self._app.engine.records(name, own, position, min(one.durable_end, start + limit))
            if not found:
                break
            for offset, record in found[: limit - len(shown)]:
                shown.append(describe_record(offset, record, query.body_bytes))
                size += len(shown[-1]["body"]) + len(record.headers)
                position = offset + 1
                if size >= PEEKED_BYTES:
                    break
        following = position if position < one.durable_end else None
        bounds = {"first": one.first, "end": one.durable_end}
        return {"queue": name, "partition": number, **bounds, "messages": shown, "next": following}

    # --- purging --------------------------------------------------------------------------------------------------

    @route("POST", "queues/{name}/purge", Purged, body=Purge, errors=(404, 409))
    async def _purge(self, asked: Asked, name: str) -> object:
        """Delete the oldest records, or all."""
        queue, purge, engine = self._queue(name), asked.body, self._app.engine
        numbers = self._numbers(queue)
        partitions = asked_partitions(queue, purge.partition, numbers)
        if purge.below is not None:
            check_one_partition(partitions, purge.partition, numbers)
        steering = Steering(engine.protocol)
        below = {
            one: queue.records.ends[one] if purge.below is None else min(purge.below, queue.records.ends[one])
            for one in partitions
        }
        losses = [
            (numbers.partition(one), replace(loss, cursor=numbers.cursor(loss.cursor)))
            for one, end in below.items()
            for loss in steering.would_drop(queue, one, end)
        ]
        count = sum(max(0, end - queue.records.firsts[one]) for one, end in below.items())
        answer = {"queue": name, "records": count, "left": 0, "unread": _unread(losses), "dry_run": purge.dry_run}
        if purge.dry_run:
            return answer
        owed = [
            f"{loss.cursor} still needs {counted(loss.records, 'record')} of partition {number}"
            for number, loss in losses
            if loss.is_owed
        ]
        if owed and not purge.force:
            raise Refused(
                409,
                f"the purge would delete records that are still needed: {', '.join(owed[:20])}",
                'Wait until they are processed. To delete them anyway, set "force".',
            )
        for one, end in below.items():
            # Handlers and forwarders first: they hold the trim back, and their requesters get a fault.
            if purge.force:
                await self._give_up(steering, queue, one, end)
                for outbox in steering.forwarders_behind(queue, one, end):
                    await pass_over(engine, outbox, end)
        steering.purge(queue, below)
        engine.touch()
        await engine.durable()
        await engine.caught_up()  # the last record that goes is read before, for its fingerprint
        await engine.durable()
        left = sum(max(0, end - queue.records.firsts[one]) for one, end in below.items())
        return answer | {"records": count - left, "left": left}

    async def _give_up(self, steering: Steering, queue: Queue, partition: int, end: int) -> None:
        """Discard the handlers' unfinished records below ``end``. Requesters that wait for a reply receive a fault."""
        handler = queue.cursors.get(HANDLER)
        position = end if handler is None else max(handler.offsets[partition], queue.records.firsts[partition])
        while position < end:
            found = await self._app.engine.records(queue.name, partition, position, end)
            if not found:
                return
            steering.give_up(queue, partition, found, self._app.engine.clock())
            self._app.engine.touch()
            position = found[-1][0] + 1

    # --- cursors --------------------------------------------------------------------------------------------------

    @route("GET", "cursors", CursorList, Page, joined=Joined.WHOLE)
    async def _cursors(self, asked: Asked) -> object:
        """List the cursors of all queues."""
        every = [(queue.name, name) for queue in self._queues.values() for name in queue.cursors]
        shown, following = page_of([(one, one) for one in every], asked.query)
        engine, now = self._app.engine, self._app.engine.clock()
        old = {name: await ages(engine, self._queues[name]) for name in {name for name, _ in shown}}
        described = []
        for name, cursor in shown:
            queue = self._queues[name]
            if cursor in queue.cursors:  # not deleted meanwhile
                one = queue.cursors.shown(queue.cursors[cursor], now, old[name].get(cursor, 0.0))
                one = self._numbers(queue).describe_cursor(one)
                described.append(one | {"queue": name, "rate": self._rates.of_cursor(queue, cursor)})
        return {"cursors": described, "count": len(every), "next": following}

    @route("POST", "queues/{name}/cursors/{cursor}/reset", Moved, body=Reset, errors=(404, 409))
    async def _reset(self, asked: Asked, name: str, cursor: str) -> object:
        """Move a cursor forward or back: to an offset, to an end, or to a time."""
        queue, engine = self._queue(name), self._app.engine
        numbers = self._numbers(queue)
        there = numbers.find_cursor(queue, cursor)
        places = await find_offsets(engine, queue, asked.body, numbers, list(there.offsets))
        own, steering = there.name, Steering(engine.protocol)
        before = {partition: steering.position(queue, own, partition) for partition in places}
        if asked.body.dry_run:
            return {"offsets": numbers.numbered(within(queue, places)), "before": numbers.numbered(before)}
        stands = {}
        try:
            for partition, offset in places.items():
                stands[partition] = await self._move(steering, queue, own, partition, offset)
        finally:
            engine.touch()  # the cursor has moved in the partitions before the one where the move failed
        await engine.durable()
        return {"offsets": numbers.numbered(stands), "before": numbers.numbered(before)}

    async def _move(self, steering: Steering, queue: Queue, cursor: str, partition: int, offset: int) -> int:
        now = self._app.engine.clock()
        if cursor == HANDLER:
            return steering.replay(queue, partition, offset, now)
        if cursor.startswith(OUTBOUND):
            outbox = self._app.engine.protocol.outbound.outboxes[cursor.removeprefix(OUTBOUND)]
            return await pass_over(self._app.engine, outbox, offset)
        return steering.reset_reader(queue, cursor, partition, offset, now)


def describe_record(offset: int, record: Record, body_bytes: int) -> dict[str, Any]:
    """Return the report on a record, with the first bytes of its body."""
    attachments = {"attachments": describe_attachments(record.attachments)} if record.attachments else {}
    return attachments | {
        "offset": offset,
        "sequence": record.sequence,
        "message_number": record.message_number,
        "action": record.action,
        "message_id": record.message_id,
        "to": record.to,
        "reply_to": record.reply_to,
        "relates_to": record.relates_to,
        "soap": record.soap,
        "received_at": record.received_at,
        "wants_reply": record.wants_reply,
        "headers": record.headers[:body_bytes].decode("utf-8", "replace"),
        "body": record.body[:body_bytes].decode("utf-8", "replace"),
        "bytes": len(record.body),
    }


def _unread(losses: list[tuple[int, Loss]]) -> list[dict[str, Any]]:
    return [
        {"partition": partition, "cursor": loss.cursor, "kind": loss.kind, "records": loss.records}
        for partition, loss in losses
    ]
