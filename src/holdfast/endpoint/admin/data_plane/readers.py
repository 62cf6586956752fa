"""The data plane: a destination's queues and their cursors over HTTP, for readers outside such as the Spark source.

Paths are described in docs/reference/data-plane.md. Part of the admin listener.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from holdfast.core.queues.cursors import HANDLER, OUTBOUND, TooManyReaders
from holdfast.core.queues.queue import Queue
from holdfast.endpoint.admin.data_plane.record_stream import Range, RecordStream
from holdfast.endpoint.admin.inspected import Inspected, describe_queue
from holdfast.endpoint.admin.numbering import Numbering, numbering_of
from holdfast.endpoint.admin.places import offset_at
from holdfast.endpoint.admin.routes import UNKNOWN_PATH, Asked, Joined, Refused, number_in, route
from holdfast.endpoint.admin.shapes.answers import (
    DescribedQueues,
    Ends,
    Fingerprints,
    Offsets,
    OffsetsAt,
    Place,
    QueueList,
)
from holdfast.endpoint.admin.shapes.requests import (
    ContentQuery,
    FingerprintsQuery,
    Move,
    OffsetsQuery,
    ReadersQuery,
    RecordsQuery,
)
from holdfast.endpoint.record_blocks import MEDIA_TYPE
from holdfast.exceptions import ConfigurationError
from holdfast.settings import suggestion
from holdfast.store.records import LARGE_FIELDS

_READ = (404, 409)
CONTENT_TYPE = b"application/octet-stream"

ANOTHER_EPOCH = (
    "Offsets of another queue are not valid here. Correct the address, or start again with a new checkpoint."
)
_NO_CURSOR = "List the cursors with holdfast cursors. A reader creates its cursor when it first reports its position."
_ANEW = (
    "The reader has read records that this older copy does not contain, and later records may be missing. Start "
    "again with a new checkpoint and another reader. Use --restored at the first start of a restored store, so "
    "that readers learn of it at once."
)


class DataPlane:
    """Answers for the queues of one destination.

    Args:
        app: The destination, started; or a stopped store.
        reading: Admits reads of blocks.
    """

    def __init__(self, app: Inspected, reading: asyncio.Semaphore) -> None:
        self._app = app
        self._stream = RecordStream(app, reading)

    # --- what there is --------------------------------------------------------------------------------------------

    def _queue(self, name: str) -> Queue:
        queue = self._app.queues.get(name)
        if queue is None:
            there = ", ".join(repr(one) for one in self._app.queues)
            hint = suggestion(name, self._app.queues, f"The queues are {there}.")
            raise Refused(404, f"the queue {name!r} does not exist", hint)
        return queue

    def _check_queue(self, name: str, epoch: str | None) -> Queue:
        queue = self._queue(name)
        check_epoch(queue, epoch)
        return queue

    def _numbers(self, queue: Queue) -> Numbering:
        return numbering_of(self._app).of(queue)

    async def _check_known(self, queue: Queue, positions: Mapping[int, int], known: Mapping[int, str]) -> None:
        """Check that the reader has read the records of this queue, up to its positions in this worker's partitions."""
        for own, theirs in known.items():
            ours = await self._app.readers[queue.name].fingerprint(own, positions[own])
            if theirs and ours and theirs != ours:
                raise another_record(queue, self._numbers(queue).partition(own), positions[own])

    async def _check_query(self, asked: Asked, name: str) -> Queue:
        """Check the epoch and the ``known`` positions in a request about a queue."""
        queue = self._check_queue(name, asked.query.epoch)
        try:
            triples = [one.split(":") for one in asked.query.known.split(",") if one]
            positions = {number_in(partition): number_in(position) for partition, position, _ in triples}
            known = {number_in(partition): fingerprint for partition, _, fingerprint in triples}
        except ValueError as error:
            raise Refused(400, f"known cannot be read: {error}", "known=0:120:9f3c77e0a1b2c3d4") from None
        numbers = self._numbers(queue)
        await self._check_known(queue, numbers.owned(positions), numbers.owned(known))
        return queue

    @route("GET", "queues", QueueList)
    async def _queues(self, asked: Asked) -> object:
        """List queues, for readers."""
        described = {
            name: {
                "epoch": queue.description.epoch,
                "retention": queue.deletion.keeps,
                "partitions": self._numbers(queue).bounds(queue),
            }
            for name, queue in self._app.queues.items()
        }
        return {"v": 1, "queues": described}

    @route("GET", "queues/{name}/ends", Ends, ReadersQuery, errors=_READ)
    async def _ends(self, asked: Asked, name: str) -> object:
        """Return the range of a queue."""
        queue = await self._check_query(asked, name)
        return {
            "v": 1,
            "queue": queue.name,
            "epoch": queue.description.epoch,
            "partitions": self._numbers(queue).bounds(queue),
        }

    @route("GET", "queues/{name}/fingerprints", Fingerprints, FingerprintsQuery, errors=(*_READ, 416))
    async def _fingerprints(self, asked: Asked, name: str) -> object:
        """Return fingerprints of the records below given positions."""
        queue = await self._check_query(asked, name)
        numbers = self._numbers(queue)
        at = numbers.owned(_pairs("at", asked.query.at))
        for own, position in at.items():
            if position > (end := queue.records.ends[own]):
                raise Refused(416, f"partition {numbers.partition(own)} ends at {end}", "Request fewer records.")
        readers = self._app.readers[name]
        found = {own: await readers.fingerprint(own, position) for own, position in at.items()}
        return {"epoch": queue.description.epoch, "fingerprints": numbers.numbered(found)}

    @route("GET", "queues/{name}/offsets", OffsetsAt, OffsetsQuery, errors=_READ)
    async def _offsets(self, asked: Asked, name: str) -> object:
        """Return the first records delivered at or after given times."""
        queue = self._check_queue(name, asked.query.epoch)
        numbers = self._numbers(queue)
        engine, found = self._app.engine, {}
        for own, micros in numbers.owned(_pairs("at", asked.query.at)).items():
            found[own] = await offset_at(engine, queue, own, seconds_of(micros))
        return {"epoch": queue.description.epoch, "offsets": numbers.numbered(found)}

    # --- records --------------------------------------------------------------------------------------------------

    @route(
        "GET",
        "queues/{name}/{partition}/records",
        MEDIA_TYPE.decode(),
        RecordsQuery,
        errors=(*_READ, 410, 416),
        joined=Joined.STREAM,
    )
    async def _records(self, asked: Asked, name: str, partition: str) -> None:
        """Read records as a stream of blocks."""
        queue = await self._check_query(asked, name)
        numbers, start, end = self._numbers(queue), asked.query.start, asked.query.end
        own = numbers.find(partition)
        _check_there(queue, own, partition, start, end)
        without = _fields(asked.query.without)
        await self._stream.send(asked.exchange, Range(name, own, start, end, without))

    @route(
        "GET",
        "queues/{name}/{partition}/contents/{offset}",
        CONTENT_TYPE.decode(),
        ContentQuery,
        errors=(*_READ, 410, 416),
        joined=Joined.STREAM,
    )
    async def _content(self, asked: Asked, name: str, partition: str, offset: str) -> None:
        """Read a piece of the attachments that a record has in the store."""
        queue = self._check_queue(name, asked.query.epoch)
        own = self._numbers(queue).find(partition)
        try:
            number = number_in(offset)
        except ValueError as error:
            raise Refused(400, f"the offset cannot be read: {error}", UNKNOWN_PATH) from None
        _check_there(queue, own, partition, number, number + 1)
        piece = await self._stream.content(name, own, number, asked.query.start)
        if piece is None:
            _check_there(queue, own, partition, number, number + 1)
            raise Refused(404, f"record {number} has no attachments outside it", "Decode the record: it has them all.")
        asked.exchange.respond(200, piece, CONTENT_TYPE)

    # --- cursors --------------------------------------------------------------------------------------------------

    @route("GET", "queues/{name}/cursors", DescribedQueues, errors=(404,))
    async def _cursors(self, asked: Asked, name: str) -> object:
        """Show a queue with its cursors."""
        queue = self._queue(name)
        queues = [one for one in (queue, queue.dead_letters) if one is not None]
        return {"v": 1, "queues": [await describe_queue(self._app, one) for one in queues]}

    @route("GET", "queues/{name}/cursors/{reader}", Place, errors=(404,))
    async def _show_cursor(self, asked: Asked, name: str, reader: str) -> object:
        """Show the position of a reader's cursor."""
        queue = self._queue(name)
        numbers = self._numbers(queue)
        cursor = numbers.find_cursor(queue, reader, _NO_CURSOR)
        return {
            "epoch": queue.description.epoch,
            "offsets": numbers.numbered(dict(sorted(cursor.offsets.items()))),
        }

    @route("DELETE", "queues/{name}/cursors/{reader}", None, errors=(404,))
    async def _drop_cursor(self, asked: Asked, name: str, reader: str) -> None:
        """Delete a reader's cursor."""
        self._queue(name)
        _check_reader(reader)
        await self._app.readers[name].drop(reader)

    @route("PUT", "queues/{name}/cursors/{reader}", Offsets, body=Move, errors=(*_READ, 410), is_told=False)
    async def _move_cursor(self, asked: Asked, name: str, reader: str) -> object:
        """Create a reader's cursor, or move it forward."""
        queue, move = self._check_queue(name, asked.body.epoch), asked.body
        _check_reader(reader)
        numbers = self._numbers(queue)
        offsets = numbers.owned(move.offsets)
        known = {number: text for number, text in move.fingerprints.items() if number in move.offsets}
        await self._check_known(queue, offsets, numbers.owned(known))
        for own, offset in offsets.items():
            first = queue.partitions[own].first
            # An existing cursor may stand below: the retention has deleted what it had not passed.
            if reader not in queue.cursors and offset < first:
                raise Refused(410, f"records below {first} are deleted", "Start at the oldest record.")
        try:
            stands = await self._app.readers[name].advance(reader, offsets)
        except TooManyReaders as error:
            raise Refused(403, error.message, error.remedy) from None
        except ConfigurationError as error:
            raise Refused(400, error.message, error.remedy) from None
        return {"offsets": numbers.numbered(dict(sorted(stands.items())))}


def _check_there(queue: Queue, own: int, partition: str, start: int, end: int) -> None:
    one = queue.partitions[own]
    if start < one.first:
        raise Refused(
            410, f"records below {one.first} are deleted", f"The queue's retention is {queue.deletion.keeps}."
        )
    if end > one.durable_end or start > end:
        raise Refused(416, f"partition {partition} ends at {one.durable_end}", "Request fewer records.")


def check_epoch(queue: Queue, epoch: str | None) -> None:
    """Check that a reader's epoch is the epoch of this queue.

    Raises:
        Refused: 409 if it has another epoch.
    """
    if epoch is not None and epoch != queue.description.epoch:
        raise Refused(
            409,
            f"the epoch of queue {queue.name!r} is {queue.description.epoch}, not {epoch}: its store was created again "
            "or restored from a copy, or this is another server",
            ANOTHER_EPOCH,
        )


def another_record(queue: Queue, partition: int, position: int) -> Refused:
    """Return the error for a reader that has read another record below a position."""
    return Refused(
        409,
        f"the last record below {position} in partition {partition} of queue {queue.name!r} is not the one that "
        "was read: the store was restored from an older copy and has received records since",
        _ANEW,
    )


def seconds_of(micros: int) -> float:
    """Return the earliest time that readers see as these microseconds. Both readers and floats round times."""
    seconds = (micros - 0.5) / 1e6
    while round(seconds * 1e6) >= micros:
        seconds = math.nextafter(seconds, -math.inf)
    while round(seconds * 1e6) < micros:
        seconds = math.nextafter(seconds, math.inf)
    return seconds


def _check_reader(name: str) -> None:
    if name == HANDLER or name.startswith(OUTBOUND):
        raise Refused(
            403,
            f"the cursor {name[:200]!r} belongs to the destination",
            "Readers have other names. To delete a forwarder: holdfast forwarders delete.",
        )


def _pairs(name: str, text: str) -> dict[int, int]:
    try:
        pairs = [pair.split(":") for pair in text.split(",") if pair]
        return {number_in(partition): number_in(position) for partition, position in pairs}
    except ValueError as error:
        raise Refused(400, f"{name} cannot be read: {error}", f"{name}=0:120,1:8") from None


def _fields(text: str) -> frozenset[str]:
    names = frozenset(name for name in text.split(",") if name)
    if names - LARGE_FIELDS:
        raise Refused(400, f"without cannot be read: {text[:200]!r}", f"It takes {', '.join(sorted(LARGE_FIELDS))}.")
    return names
