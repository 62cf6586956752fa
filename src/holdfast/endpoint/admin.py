"""The admin listener: the data plane (queues and cursors for Spark), Sequences, metrics. Bind it to a private address.

Paths are described in docs/reference/data-plane.md.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from holdfast.endpoint.admin_guard import Guard
from holdfast.endpoint.admin_routes import Asked, Refused, Routes
from holdfast.endpoint.http_exchange import Exchange
from holdfast.endpoint.inspection import describe_protocol
from holdfast.endpoint.logs import log
from holdfast.endpoint.metrics import DestinationCollector
from holdfast.endpoint.server import Destination, json_answer
from holdfast.exceptions import HoldfastError, StoreError

RECORDS = b"application/vnd.holdfast.records"
TRAILER = 2**64 - 1
CHUNK_BYTES = 1 << 20
MAX_WAIT = 60.0


class Admin:
    """Answers for one destination.

    Args:
        app: The destination, started.
        guard: Who may ask.
    """

    def __init__(self, app: Destination, guard: Guard | None = None) -> None:
        self._app = app
        self._guard = guard or Guard()
        self._registry = CollectorRegistry()
        self._registry.register(DestinationCollector(app))
        self._tasks: set[asyncio.Task[None]] = set()
        self.routes = Routes(
            [
                ("GET", "healthz", self._health),
                ("GET", "metrics", self._metrics),
                ("GET", "sequences", self._list_sequences),
                ("GET", "sequences/{identifier}", self._show_sequence),
                ("POST", "sequences/{identifier}/{how:close|terminate}", self._end_sequence),
                ("GET", "queues", self._queues),
                ("GET", "queues/{name}/ends", self._ends),
                ("GET", "queues/{name}/{partition_text}/records", self._records),
                ("GET|PUT|DELETE", "queues/{name}/cursors/{reader}", self._cursor),
            ]
        )

    def handle(self, exchange: Exchange) -> None:
        """Take one HTTP request; the answer follows."""
        task = asyncio.ensure_future(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            self._guard.check(exchange.request)
            await self._route(exchange)
        except Refused as refused:
            body = {"error": refused.message, "remedy": refused.remedy}
            json_answer(exchange, refused.status, body, refused.headers)
        except StoreError as error:
            json_answer(exchange, 503, {"error": error.message, "remedy": error.remedy})
        except Exception as error:
            log.error("admin request failed", target=exchange.request.target, exc_info=error)
            json_answer(exchange, 500, {"error": repr(error), "remedy": "This is a bug; the log has more."})

    async def _route(self, exchange: Exchange) -> None:
        url = urlsplit(exchange.request.target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        route, names = self.routes.find(exchange.request.method, url.path)
        await route(Asked(exchange, exchange.request.method, query), **names)

    async def _health(self, asked: Asked) -> None:
        failure = self._app.engine.failure
        if failure is None:
            json_answer(asked.exchange, 200, {"status": "ok"})
        else:
            message, remedy = str(failure), "Free space or repair the disk, then start again."
            if isinstance(failure, HoldfastError):
                message, remedy = failure.message, failure.remedy
            raise Refused(503, f"the store failed: {message}", remedy)

    async def _metrics(self, asked: Asked) -> None:
        asked.exchange.respond(200, generate_latest(self._registry), CONTENT_TYPE_LATEST.encode())

    # --- sequences ------------------------------------------------------------------------------------------------

    def _sequences(self) -> list[dict[str, Any]]:
        engine = self._app.engine
        return describe_protocol(engine.protocol, engine.clock())

    async def _list_sequences(self, asked: Asked) -> None:
        json_answer(asked.exchange, 200, {"sequences": self._sequences()})

    async def _show_sequence(self, asked: Asked, identifier: str) -> None:
        found = [one for one in self._sequences() if one["identifier"] == identifier]
        if not found:
            raise Refused(404, f"no Sequence {identifier}", "GET /sequences lists them.")
        json_answer(asked.exchange, 200, found[0])

    async def _end_sequence(self, asked: Asked, identifier: str, how: str) -> None:
        if not self._app.end_sequence(identifier, terminate=how == "terminate"):
            raise Refused(404, f"no open Sequence {identifier}", "GET /sequences lists them.")
        await self._durable()
        await self._show_sequence(asked, identifier)

    # --- queues ---------------------------------------------------------------------------------------------------

    def _check_queue(self, name: str, epoch: str | None) -> None:
        queue = self._app.queue
        if name != queue.name:
            raise Refused(404, f"there is no queue {name!r} here", f"The queue is {queue.name!r}.")
        if epoch is not None and epoch != queue.epoch:
            raise Refused(
                409,
                f"the queue's epoch is {queue.epoch}, not {epoch}: its store was made anew",
                "Offsets of the old queue mean nothing here. Begin again, with a new checkpoint.",
            )

    def _partitions(self) -> dict[str, dict[str, int]]:
        readers = self._app.readers
        return {
            str(partition): {"first": first, "end": end}
            for partition, (first, end) in enumerate(zip(readers.first, readers.ends, strict=True))
        }

    async def _queues(self, asked: Asked) -> None:
        queue = self._app.queue
        described = {"epoch": queue.epoch, "partitions": self._partitions()}
        json_answer(asked.exchange, 200, {"v": 1, "queues": {queue.name: described}})

    async def _ends(self, asked: Asked, name: str) -> None:
        exchange, query = asked.exchange, asked.query
        self._check_queue(name, query.get("epoch"))
        try:
            wait = min(MAX_WAIT, max(0.0, float(query.get("wait", "0"))))
            pairs = [pair.split(":") for pair in query.get("after", "").split(",") if pair]
            after = {int(partition): int(end) for partition, end in pairs}
        except ValueError as error:
            raise Refused(400, f"wait and after cannot be read: {error}", "after=0:120,1:8, wait=seconds") from None
        await self._app.readers.wait_beyond(after, wait)
        queue = self._app.queue
        json_answer(
            exchange, 200, {"v": 1, "queue": queue.name, "epoch": queue.epoch, "partitions": self._partitions()}
        )

    async def _records(self, asked: Asked, name: str, partition_text: str) -> None:
        exchange, query = asked.exchange, asked.query
        self._check_queue(name, query.get("epoch"))
        readers = self._app.readers
        try:
            partition, start, end = int(partition_text), int(query["from"]), int(query["to"])
        except (KeyError, ValueError) as error:
            raise Refused(400, f"from and to must be offsets: {error!r}", "from=0&to=100") from None
        if not 0 <= partition < len(readers.ends):
            raise Refused(404, f"there is no partition {partition}", f"There are {len(readers.ends)}, from 0.")
        if start < readers.first[partition]:
            raise Refused(410, f"records below {readers.first[partition]} are deleted", "A cursor passed them all.")
        if end > readers.ends[partition] or start > end:
            raise Refused(416, f"partition {partition} ends at {readers.ends[partition]}", "Ask for less.")
        found = await self._read(name, partition, start, end)
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

    async def _read(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, bytes]]:
        """The next records of what was asked for, as many as go together, each offset once and in order; none at its
        end, or where they are gone (a cursor has passed them meanwhile).

        Raises:
            StoreError: The store cannot be read: it has failed.
        """
        if start == end:
            return []
        try:
            found = await asyncio.to_thread(self._app.store.read_encoded, queue, partition, start, end, CHUNK_BYTES)
        except StoreError as error:
            self._app.engine.fail(error)
            raise
        return found if [offset for offset, _ in found] == list(range(start, start + len(found))) else []

    async def _cursor(self, asked: Asked, name: str, reader: str) -> None:
        exchange, method = asked.exchange, asked.method
        readers = self._app.readers
        self._check_queue(name, None)
        if method == "GET":
            cursor = readers.cursors.get(reader)
            if cursor is None:
                raise Refused(404, f"there is no cursor {reader!r}", "PUT makes one.")
            json_answer(exchange, 200, {"epoch": self._app.queue.epoch, "offsets": _texts(cursor)})
        elif method == "PUT":
            offsets = self._asked_offsets(exchange, name)
            if reader not in readers.cursors:
                for partition, offset in offsets.items():
                    if offset < readers.first[partition]:
                        raise Refused(
                            410, f"records below {readers.first[partition]} are deleted", "Begin at the first there is."
                        )
            cursor = readers.advance(reader, offsets)
            await self._durable()
            json_answer(exchange, 200, {"offsets": _texts(cursor)})
        else:
            readers.drop(reader)
            await self._durable()
            exchange.respond(204)

    def _asked_offsets(self, exchange: Exchange, name: str) -> dict[int, int]:
        try:
            asked = json.loads(exchange.request.body)
            self._check_queue(name, str(asked["epoch"]))
            offsets = {int(partition): int(offset) for partition, offset in asked["offsets"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(400, f"the body cannot be read: {error!r}", '{"epoch": "…", "offsets": {"0": 12}}') from None
        if any(not 0 <= partition < len(self._app.readers.ends) for partition in offsets):
            raise Refused(400, "a partition is named that there is not", f"There are {len(self._app.readers.ends)}.")
        return offsets

    async def _durable(self) -> None:
        await self._app.engine.durable()

    async def close(self) -> None:
        """Give up what is being answered."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _texts(cursor: dict[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(cursor.items())}
