"""The data plane of a server, seen from a reader that is patient with a server away.

Owns its requests and what their answers mean. Knows nothing of Spark, and not what is in a record.
"""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import quote, urlencode

from holdfast.client.blocks import Block, BlockReader
from holdfast.client.connection import NOT_ADMIN, Connection, answer_of, understood
from holdfast.client.errors import (
    NobodyThere,
    OffsetRefused,
    PipelineError,
    RecordsTrimmed,
    ServerAway,
    UnknownQueue,
)
from holdfast.client.offsets import Ends, Known, NextPositions, Place, Positions, Range
from holdfast.endpoint.record_blocks import MEDIA_TYPE
from holdfast.http.urls import split_url
from holdfast.settings import suggestion

T = TypeVar("T")

log = logging.getLogger("holdfast.pipeline")

TELL_AFTER, TELL_EVERY = 1.0, 5.0
"""Seconds of waiting before the first log message, and between the following ones."""

VERSION = 1
"""Version of the data plane: ``v`` in its answers."""


class Patience:
    """How long to tolerate consecutive failures: with doubling pauses from 0.1 to 2 s, until ``seconds`` have passed.

    The log ``holdfast.pipeline`` reports what it waits for, and for how long.

    Args:
        seconds: From the first failure.
        clock, sleep: For tests, and for callers that may have to end meanwhile.
        nobody: Seconds instead, until a first answer, for an address that refuses connections; None: the same.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        nobody: float | None = None,
    ) -> None:
        self._seconds = seconds
        self._nobody = nobody
        self._tell_at: float | None = None
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._pause = 0.1

    def succeeded(self) -> None:
        """Forget the failures so far."""
        if self._since is not None and self._tell_at is not None and self._tell_at > self._since + TELL_AFTER:
            log.warning("the server answers again, after %.0f s", self._clock() - self._since)
        self._since = self._nobody = None
        self._pause = 0.1

    def failed(self, error: ServerAway) -> None:
        """Pause, or give up.

        Raises:
            ServerAway: ``error`` with the time that was waited, once patience is over.
        """
        now = self._clock()
        if self._since is None:
            self._since, self._tell_at = now, now + TELL_AFTER
        bears = self._seconds
        if self._nobody is not None and isinstance(error, NobodyThere):
            bears = min(self._seconds, self._nobody)
        left = bears - (now - self._since)
        if left <= 0:
            remedy = (
                "No record is lost: start the server, then repeat the command, or restart the stream with the "
                "same checkpoint; "
            )
            if bears < self._seconds:
                remedy = f"{error.remedy} If the server is just starting, "
            raise ServerAway(
                f"{error.message} (tried for {bears:g} s)",
                remedy=f"{remedy}option awaySeconds sets how long to wait for it",
            ) from None  # Spark prints the whole chain, and all of it says the same
        if self._tell_at is not None and now >= self._tell_at:
            log.warning("%s; waiting for %.0f s more", error.message, left)
            self._tell_at = now + TELL_EVERY
        self._sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, 2.0)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function, with retries while it raises ServerAway, and return its result."""
        while True:
            try:
                result = function()
            except ServerAway as error:
                self.failed(error)
            else:
                self.succeeded()
                return result


class DataPlane(Connection):
    """The queues of one server."""

    kinds: ClassVar = {409: OffsetRefused, 410: RecordsTrimmed, 416: OffsetRefused}
    remedies: ClassVar = {
        **Connection.remedies,
        409: "the queue was created again: start the query with a new checkpoint and another reader name",
        410: "records were deleted before they were read: start the query with a new checkpoint, or restore the store",
        416: "the queue was restored to an earlier state: restore the newer store, or start the query with a new "
        "checkpoint",
    }

    def queues(self) -> list[str]:
        """Return the names of the server's queues."""
        return sorted(self._queues()["queues"])

    def all_ends(self) -> dict[str, Ends]:
        answer = self._queues()
        with understood(self._broker):
            self._check_version(answer)
            return {str(name): _ends_of(str(name), one) for name, one in answer["queues"].items()}

    def _queues(self) -> dict[str, Any]:
        status, answer = self._request("GET", "/queues")
        if status == 404 or (200 <= status < 300 and not isinstance(answer.get("queues"), dict)):
            path = split_url(self._broker).path
            raise PipelineError(
                f"{self._broker} is not the URL of an admin listener: {self._broker}/queues does not exist",
                remedy=f"Remove the path {path} from option broker" if path else NOT_ADMIN,
            )
        return self._checked(status, answer)

    def ends(self, queue: str, *, epoch: str = "", known: Iterable[Known] = ()) -> Ends:
        """Return the range of each partition of the queue.

        Raises:
            UnknownQueue: With the existing names.
            OffsetRefused: The queue has another ``epoch``, or its records differ from ``known``.
        """
        query = {**_known(known), **({"epoch": epoch} if epoch else {})}
        path = f"/queues/{quote(queue, safe='')}/ends"
        status, answer = self._request("GET", f"{path}?{urlencode(query, safe=':,')}" if query else path)
        if status == 404:
            raise self.unknown(queue)
        answer = self._checked(status, answer)
        with understood(self._broker):
            self._check_version(answer)
            return _ends_of(queue, answer)

    def next_positions(
        self,
        stands: Mapping[str, Place],
        *,
        until: Mapping[str, Positions] | None = None,
        others: bool = False,
        most: int | None = None,
        least: int = 1,
        wait: float = 0.0,
        guess: Mapping[str, int] | None = None,
    ) -> NextPositions:
        """Request the end of a reader's next batch: one request for any number of queues.

        Args:
            stands: The reader's position in each queue. The answer omits queues that the server does not have.
            until: The latest end of the batch, in each queue.
            others: Whether the answer describes all other queues too.
            most: Maximum number of records of the batch, the oldest ones; None for all.
            least: Number of records that the server waits for.
            wait: Seconds that it waits.
            guess: What the answer before said, which saves the server some reading.

        Raises:
            OffsetRefused: A queue has another epoch, or another record where the reader has read.
        """
        queues: dict[str, dict[str, Any]] = {}
        for name, place in stands.items():
            asked: dict[str, Any] = {"epoch": place.epoch, "offsets": place.positions}
            if known := {partition: text for partition, _, text in place.known}:
                asked["fingerprints"] = known
            if until is not None:
                asked["until"] = until[name]
            queues[name] = asked
        body: dict[str, Any] = {"queues": queues, "others": others, "least": least, "wait": wait}
        body |= {name: value for name, value in (("most", most), ("guess", guess)) if value is not None}
        answer = self._checked(*self._request("POST", "/next-positions", wait, json.dumps(body)))
        with understood(self._broker):
            self._check_version(answer)
            found = dict(answer["queues"])
            return NextPositions(
                {str(name): _ends_of(str(name), one) for name, one in found.items()},
                {str(name): _numbered(one["offsets"]) for name, one in found.items() if name in stands},
                {str(name): _numbered(one["fingerprints"]) for name, one in found.items() if one.get("fingerprints")},
                dict(answer["guess"]),
            )

    def check_range(self, queue: str, epoch: str, part: Range, known: Iterable[Known] = ()) -> None:
        """Check that every record of a range exists, with one request that transfers no record.

        Raises:
            RecordsTrimmed: Some are deleted.
            OffsetRefused: The range exceeds the end, the epoch differs, or the records differ from ``known``.
        """
        first, end = self.ends(queue, epoch=epoch, known=known).partitions.get(part.partition, (0, 0))
        what = f"queue {queue!r} partition {part.partition}"
        if part.start < first:
            raise RecordsTrimmed(f"{what}: records below {first} are deleted", remedy=self.remedies[410])
        if part.end > end:
            raise OffsetRefused(f"{what} ends at {end}, below {part.end}", remedy=self.remedies[416])

    def offsets_at(self, queue: str, epoch: str, times: Positions) -> Positions:
        """The first record of some partitions that was delivered at a time or later, or the end of the partition.

        Args:
            times: Partition -> microseconds since 1970.

        Raises:
            OffsetRefused: The queue has another epoch.
            PipelineError: The server is too old to know.
        """
        at = ",".join(f"{partition}:{time}" for partition, time in sorted(times.items()))
        query = urlencode({"epoch": epoch, "at": at}, safe=":,")
        status, answer = self._request("GET", f"/queues/{quote(queue, safe='')}/offsets?{query}")
        if status in (404, 405) and queue in self.queues():
            raise PipelineError(
                f"the server at {self._broker} cannot find offsets by time: it is older than this client",
                remedy="Upgrade the server to the version of the client, or give offsets",
            )
        answer = self._checked(status, answer)
        with understood(self._broker):
            return {int(partition): int(offset) for partition, offset in answer["offsets"].items()}

    def partition_of(self, sequence: str) -> int | None:
        """Return the partition with all messages of a Sequence; None if the server no longer knows it."""
        status, answer = self._request("GET", f"/sequences/{quote(sequence, safe='')}")
        if status == 404:
            return None
        answer = self._checked(status, answer)
        partition = answer.get("partition")
        return partition if type(partition) is int else None

    def letters(self, start: int) -> tuple[list[dict[str, Any]], int | None]:
        """Return dead letters from a number, as ``GET /dead-letters?whole=true`` describes them; and the number of the
        next."""
        answer = self._json("GET", f"/dead-letters?from={start}&limit=1000&whole=true")
        with understood(self._broker):
            following = answer["next"]
            return list(answer["dead_letters"]), None if following is None else int(following)

    def cursor(self, queue: str, name: str) -> tuple[str, Positions] | None:
        """Return epoch and positions of a cursor, None if it does not exist."""
        status, answer = self._request("GET", self._cursor_path(queue, name))
        if status == 404:
            return None
        answer = self._checked(status, answer)
        with understood(self._broker):
            return str(answer["epoch"]), {int(p): int(o) for p, o in answer["offsets"].items()}

    def fingerprints(self, queue: str, epoch: str, at: Positions, known: Iterable[Known] = ()) -> dict[int, str]:
        """Return for each position the fingerprint of the last record below it, "" if the server has none.

        Raises:
            OffsetRefused: The queue's records differ from ``known``.
        """
        query = {"epoch": epoch, "at": ",".join(f"{p}:{o}" for p, o in sorted(at.items())), **_known(known)}
        answer = self._json("GET", f"/queues/{quote(queue, safe='')}/fingerprints?{urlencode(query, safe=':,')}")
        with understood(self._broker):
            return {int(partition): str(text) for partition, text in answer["fingerprints"].items()}

    def advance_cursor(
        self, queue: str, name: str, epoch: str, positions: Positions, known: Iterable[Known] = ()
    ) -> Positions:
        """Create a cursor, or move it; it never moves back. When this returns its positions, they are durable.

        Raises:
            OffsetRefused: The queue's records differ from ``known``.
            RecordsTrimmed: The cursor does not exist, and records above its new position are deleted.
            UnknownQueue: With the existing names.
        """
        asked: dict[str, Any] = {"epoch": epoch, "offsets": {str(p): o for p, o in sorted(positions.items())}}
        if fingerprints := {str(partition): text for partition, _, text in known}:
            asked["fingerprints"] = fingerprints
        status, answer = self._request("PUT", self._cursor_path(queue, name), body=json.dumps(asked))
        if status == 404:
            raise self.unknown(queue)
        answer = self._checked(status, answer)
        with understood(self._broker):
            return {int(p): int(o) for p, o in answer["offsets"].items()}

    def drop_cursor(self, queue: str, name: str) -> None:
        """Delete a cursor, if it exists."""
        status, answer = self._request("DELETE", self._cursor_path(queue, name))
        if status != 404:
            self._checked(status, answer)

    def records(
        self, queue: str, epoch: str, part: Range, known: Iterable[Known] = (), without: Iterable[str] = ()
    ) -> Iterator[Block]:
        """Yield the records of a range, in blocks as they arrive; the fields in ``without`` are empty.

        Raises:
            ServerAway: The connection was lost, or the response cut off; the records so far are correct.
            IncompleteRead: The response does not match the request.
            OffsetRefused: The queue's records differ from ``known``.
        """
        what = f"queue {queue!r} partition {part.partition}"
        asked = {"from": part.start, "to": part.end, "epoch": epoch, **_known(known)}
        if spared := ",".join(without):
            asked["without"] = spared
        query = urlencode(asked, safe=":,")
        response = self._open("GET", f"/queues/{quote(queue, safe='')}/{part.partition}/records?{query}")
        blocks = BlockReader(lambda size: self._read(lambda: response.read(size)), part.start, part.end, what)
        whole = False
        try:
            if response.status != 200:
                self._checked(response.status, answer_of(self._read(response.read)))
            self._require_blocks(response)
            yield from blocks
            whole = True
        except EOFError:
            raise ServerAway(
                f"{self._broker} ended its response early: {what}, at offset {blocks.next} of {part.end}"
            ) from None
        finally:
            # Otherwise the rest of the response would be read as the next answer.
            if not whole:
                self.close()

    def content(self, queue: str, epoch: str, partition: int, offset: int, start: int) -> bytes:
        """Return a piece of the attachments that a record has in the store, from byte ``start``; b"" at their end.

        Raises:
            RecordsTrimmed: The record is deleted.
            OffsetRefused: The queue has another epoch.
        """
        query = urlencode({"epoch": epoch, "from": start})
        response = self._open("GET", f"/queues/{quote(queue, safe='')}/{partition}/contents/{offset}?{query}")
        data = self._read(response.read)
        if response.status != 200:
            self._checked(response.status, answer_of(data))
        return data

    def _require_blocks(self, response: http.client.HTTPResponse) -> None:
        kind = response.headers.get_content_type()
        if kind != MEDIA_TYPE.decode():
            raise PipelineError(
                f"the server at {self._broker} sends records as {kind}, but this version reads {MEDIA_TYPE.decode()}",
                remedy="Use the same version of Holdfast on both sides",
            )

    def _check_version(self, answer: dict[str, Any]) -> None:
        if answer["v"] != VERSION:
            raise PipelineError(
                f"the server at {self._broker} uses version {answer['v']} of the data plane, but this client uses "
                f"{VERSION}",
                remedy="Install the server's version of Holdfast in the driver and the executors",
            )

    def unknown(self, queue: str, names: list[str] | None = None) -> UnknownQueue:
        """Return the error for a missing queue. It lists the existing queues.

        Raises:
            PipelineError: The server has no list of queues: option broker does not name its admin listener.
            ServerAway: There is no answer.
        """
        names = self.queues() if names is None else names
        hint = suggestion(queue, names, f"Its queues are: {', '.join(names) or 'none yet'}.")
        return UnknownQueue(f"the server at {self._broker} has no queue {queue!r}", remedy=hint)

    def missing(self, queue: str, to: str) -> UnknownQueue | None:
        """Return the error for the queue of rows, or else for their address, if the server does not have it."""
        if queue or not to:
            names = self.queues()
            return None if not queue or queue in names else self.unknown(queue, names)
        addresses: set[str] = set()
        after: str | None = ""
        while after is not None:
            answer = self._json("GET", f"/forwarders?{urlencode({'limit': 1000, 'after': after})}")
            with understood(self._broker):
                addresses |= {str(one["to"]) for one in answer["forwarders"] if one["to"]}
                after = answer["next"]
        if to in addresses:
            return None
        there = ", ".join(sorted(addresses)) or "no address"
        hint = suggestion(to, addresses, f"Its forwarders send to: {there}.")
        return UnknownQueue(f"the server at {self._broker} has no forwarder that sends to {to}", remedy=hint)

    @staticmethod
    def _cursor_path(queue: str, name: str) -> str:
        return f"/queues/{quote(queue, safe='')}/cursors/{quote(name, safe='')}"


def _ends_of(queue: str, answer: dict[str, Any]) -> Ends:
    partitions = {int(p): (int(b["first"]), int(b["end"])) for p, b in answer["partitions"].items()}
    return Ends(queue, str(answer["epoch"]), partitions)


def _numbered(by_partition: Mapping[str, T]) -> dict[int, T]:
    return {int(partition): value for partition, value in by_partition.items()}


def _known(known: Iterable[Known]) -> dict[str, str]:
    text = ",".join(f"{partition}:{position}:{fingerprint}" for partition, position, fingerprint in known)
    return {"known": text} if text else {}


class RecordPlane(Protocol):
    """Object that reads records: one server, or the nodes of a cluster."""

    def records(
        self, queue: str, epoch: str, part: Range, known: Iterable[Known] = (), without: Iterable[str] = ()
    ) -> Iterator[Block]: ...


def read_range(
    plane: RecordPlane,
    queue: str,
    epoch: str,
    part: Range,
    patience: Patience,
    known: Iterable[Known] = (),
    without: Iterable[str] = (),
) -> Iterator[Block]:
    """Yield every record of a range exactly once, and continue after interruptions of the server. The fields in
    ``without`` are empty.

    Raises:
        ServerAway: It was away for longer than ``patience`` allows.
        IncompleteRead: The response does not match the request.
        PipelineError: The server refused.
    """
    at = part.start
    while at < part.end:
        try:
            for block in plane.records(queue, epoch, Range(part.partition, at, part.end), known, without):
                at = block.first + len(block)
                # The server made progress: the next failure is the first of its own series.
                patience.succeeded()
                yield block
        except ServerAway as error:
            patience.failed(error)
