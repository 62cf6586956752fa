"""The data plane: a destination's queues and their cursors over HTTP, for readers outside such as the Spark source.

Paths are described in docs/reference/data-plane.md. Part of the admin listener.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any

from holdfast.core.queues import HANDLER, Queue, TooManyReaders
from holdfast.endpoint.admin_routes import Asked, Refused, Route
from holdfast.endpoint.destination import Destination, json_answer
from holdfast.endpoint.inspection import ages
from holdfast.exceptions import ConfigurationError, StoreError
from holdfast.http.exchange import Exchange

RECORDS = b"application/vnd.holdfast.records"
TRAILER = 2**64 - 1
CHUNK_BYTES = 1 << 20
MAX_WAIT = 60.0

_ANEW = (
    "What was read above the copy is not here, and what came since was not read: begin again, with a new checkpoint "
    "and another reader. Say --restored at the first start of a store that was put back, and readers are told at once."
)


class DataPlane:
    """Answers for the queues of one destination.

    Args:
        app: The destination, started.
    """

    def __init__(self, app: Destination) -> None:
        self._app = app
        self.routes: list[Route] = [
            ("GET", "queues", self._queues),
            ("GET", "queues/{name}/ends", self._ends),
            ("GET", "queues/{name}/fingerprints", self._fingerprints),
            ("GET", "queues/{name}/{partition_text}/records", self._records),
            ("GET", "queues/{name}/cursors", self._cursors),
            ("GET|PUT|DELETE", "queues/{name}/cursors/{reader}", self._cursor),
        ]

    # --- what there is --------------------------------------------------------------------------------------------

    def _queue(self, name: str) -> Queue:
        queue = self._app.queues.get(name)
        if queue is None:
            there = ", ".join(repr(one) for one in self._app.queues)
            raise Refused(404, f"there is no queue {name!r} here", f"There is {there}.")
        return queue

    def _check_queue(self, name: str, epoch: str | None) -> Queue:
        queue = self._queue(name)
        if epoch is not None and epoch != queue.epoch:
            raise Refused(
                409,
                f"the queue's epoch is {queue.epoch}, not {epoch}: its store was made anew or put back to a copy",
                "Offsets of the old queue mean nothing here. Begin again, with a new checkpoint.",
            )
        return queue

    @staticmethod
    def _check_partitions(queue: Queue, partitions: Mapping[int, object]) -> None:
        count = len(queue.partitions)
        if any(not 0 <= partition < count for partition in partitions):
            raise Refused(400, "a partition is named that there is not", f"There are {count}, from 0.")

    async def _check_known(self, queue: Queue, positions: Mapping[int, int], known: Mapping[int, str]) -> None:
        """See that what was read up to those positions is what is here."""
        for partition, theirs in known.items():
            ours = await self._app.readers[queue.name].fingerprint(partition, positions[partition])
            if theirs and ours and theirs != ours:
                raise Refused(
                    409,
                    f"the last record below {positions[partition]} of partition {partition} is not the one that was "
                    "read: the store was put back to an older copy, and grew on from there",
                    _ANEW,
                )

    async def _check_query(self, asked: Asked, name: str) -> Queue:
        """Of every question about a queue: the epoch, and what is ``known``."""
        queue = self._check_queue(name, asked.query.get("epoch"))
        try:
            triples = [one.split(":") for one in asked.query.get("known", "").split(",") if one]
            positions = {int(partition): int(position) for partition, position, _ in triples}
            known = {int(partition): fingerprint for partition, _, fingerprint in triples}
        except ValueError as error:
            raise Refused(400, f"known cannot be read: {error}", "known=0:120:9f3c77e0a1b2c3d4") from None
        self._check_partitions(queue, positions)
        await self._check_known(queue, positions, known)
        return queue

    async def _queues(self, asked: Asked) -> None:
        described = {
            name: {"epoch": queue.epoch, "retention": queue.keeps, "partitions": _partitions(queue)}
            for name, queue in self._app.queues.items()
        }
        json_answer(asked.exchange, 200, {"v": 1, "queues": described})

    async def _ends(self, asked: Asked, name: str) -> None:
        queue = await self._check_query(asked, name)
        try:
            wait = min(MAX_WAIT, max(0.0, float(asked.query.get("wait", "0"))))
            after = _pairs(asked.query.get("after", ""))
        except ValueError as error:
            raise Refused(400, f"wait and after cannot be read: {error}", "after=0:120,1:8, wait=seconds") from None
        await self._app.readers[name].wait_beyond(after, wait)
        answer = {"v": 1, "queue": queue.name, "epoch": queue.epoch, "partitions": _partitions(queue)}
        json_answer(asked.exchange, 200, answer)

    async def _fingerprints(self, asked: Asked, name: str) -> None:
        queue = await self._check_query(asked, name)
        try:
            at = _pairs(asked.query["at"])
        except (KeyError, ValueError) as error:
            raise Refused(400, f"at cannot be read: {error!r}", "at=0:120,1:8") from None
        self._check_partitions(queue, at)
        for partition, position in at.items():
            if position > queue.ends[partition]:
                raise Refused(416, f"partition {partition} ends at {queue.ends[partition]}", "Ask for less.")
        readers = self._app.readers[name]
        found = {str(one): await readers.fingerprint(one, position) for one, position in at.items()}
        json_answer(asked.exchange, 200, {"epoch": queue.epoch, "fingerprints": found})

    # --- records --------------------------------------------------------------------------------------------------

    async def _records(self, asked: Asked, name: str, partition_text: str) -> None:
        queue = await self._check_query(asked, name)
        try:
            partition, start, end = int(partition_text), int(asked.query["from"]), int(asked.query["to"])
        except (KeyError, ValueError) as error:
            raise Refused(400, f"from and to must be offsets: {error!r}", "from=0&to=100") from None
        if not 0 <= partition < len(queue.partitions):
            raise Refused(404, f"there is no partition {partition}", f"There are {len(queue.partitions)}, from 0.")
        one = queue.partitions[partition]
        if start < one.first:
            raise Refused(410, f"records below {one.first} are deleted", f"The queue's retention is {queue.keeps}.")
        if end > one.durable_end or start > end:
            raise Refused(416, f"partition {partition} ends at {one.durable_end}", "Ask for less.")
        found = await self._read(name, partition, start, end)
        exchange = asked.exchange
        exchange.start(200, RECORDS)
        position = start
        # Whatever ends this before all that was asked for is sent, the missing trailer tells the reader.
        while found and not exchange.closed:
            frames = b"".join(struct.pack(">QI", offset, len(data)) + data for offset, data in found)
            position += len(found)
            if not exchange.write(frames):
                await exchange.drain()
            try:
                found = await self._read(name, partition, position, end)
            except StoreError:
                break
        if position == end:
            exchange.write(struct.pack(">QIQ", TRAILER, 8, end - start))
        exchange.finish()

    async def _read(self, name: str, partition: int, start: int, end: int) -> list[tuple[int, bytes]]:
        """The next records of what was asked for, as many as go together, each offset once and in order; none at its
        end, or where they are gone meanwhile.

        Raises:
            StoreError: The store cannot be read: it has failed.
        """
        if start == end:
            return []
        try:
            found = await asyncio.to_thread(self._app.store.read_encoded, name, partition, start, end, CHUNK_BYTES)
        except StoreError as error:
            self._app.engine.fail(error)
            raise
        return found if [offset for offset, _ in found] == list(range(start, start + len(found))) else []

    # --- cursors --------------------------------------------------------------------------------------------------

    async def _cursors(self, asked: Asked, name: str) -> None:
        queue = self._queue(name)
        queues = [queue, queue.dead_letters]
        engine = self._app.engine
        now = engine.clock()
        described = [one.describe(now, await ages(engine, one)) for one in queues if one is not None]
        json_answer(asked.exchange, 200, {"v": 1, "queues": described})

    async def _cursor(self, asked: Asked, name: str, reader: str) -> None:
        exchange, queue, readers = asked.exchange, self._queue(name), self._app.readers[name]
        if asked.method == "GET":
            cursor = queue.cursors.get(reader)
            if cursor is None:
                raise Refused(404, f"there is no cursor {reader!r}", "PUT makes one.")
            json_answer(exchange, 200, {"epoch": queue.epoch, "offsets": _texts(cursor.offsets)})
            return
        if reader == HANDLER:
            raise Refused(
                403,
                f"the cursor {HANDLER!r} is that of the destination's own handlers",
                "Give the reader another name.",
            )
        if asked.method == "DELETE":
            await readers.drop(reader)
            exchange.respond(204)
            return
        offsets = await self._asked_offsets(exchange, name)
        for partition, offset in offsets.items():
            first = queue.partitions[partition].first
            if reader not in queue.cursors and offset < first:
                raise Refused(410, f"records below {first} are deleted", "Begin at the first there is.")
        try:
            stands = await readers.advance(reader, offsets)
        except TooManyReaders as error:
            raise Refused(403, error.message, error.remedy) from None
        except ConfigurationError as error:
            raise Refused(400, error.message, error.remedy) from None
        json_answer(exchange, 200, {"offsets": _texts(stands)})

    async def _asked_offsets(self, exchange: Exchange, name: str) -> dict[int, int]:
        try:
            asked = json.loads(exchange.request.body)
            queue = self._check_queue(name, str(asked["epoch"]))
            offsets = {int(partition): int(offset) for partition, offset in asked["offsets"].items()}
            known = {int(partition): str(text) for partition, text in asked.get("fingerprints", {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(400, f"the body cannot be read: {error!r}", '{"epoch": "…", "offsets": {"0": 12}}') from None
        self._check_partitions(queue, offsets)
        known = {partition: text for partition, text in known.items() if partition in offsets}
        await self._check_known(queue, offsets, known)
        return offsets


def _partitions(queue: Queue) -> dict[str, dict[str, int]]:
    return {str(number): {"first": one.first, "end": one.durable_end} for number, one in enumerate(queue.partitions)}


def _pairs(text: str) -> dict[int, int]:
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    return {int(partition): int(position) for partition, position in pairs}


def _texts(offsets: dict[int, int]) -> dict[str, Any]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}
