"""A stream of queues.

Each method notes where Spark runs it: in the *driver* (one long-lived process a query run), or in a *task*.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.pipeline import offsets
from holdfast.pipeline.client import DataPlane, Known, Patience
from holdfast.pipeline.errors import OffsetRefused, ServerAway
from holdfast.pipeline.options import ReadOptions
from holdfast.pipeline.tasks import WsrmPartition, read_task

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("holdfast.pipeline")


class WsrmStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream, whose place on the server is held by the cursor named by option ``reader``.

    The server keeps every record from the cursor on. The cursor follows one batch behind: Spark says that a batch
    is done only when the next one starts.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._plane = DataPlane(options.broker, options.access)
        self._patience = Patience(options.away)
        self._start: dict[str, Any] | None = None
        self._known: offsets.Ends | None = None
        self._target: offsets.Ends | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    def getDefaultReadLimit(self) -> ReadLimit:
        """In the driver: ``maxRowsPerBatch``."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """In the driver, before anything else: this run ends where the queue ends now."""
        self._target = self._known = self._patience.call(lambda: self._plane.ends(self._options.queue))

    def initialOffset(self) -> dict[str, Any]:
        """In the driver: the cursor's place; the cursor is created by ``startingOffsets`` if there is none.

        Spark asks again after a crash in its first batch, and must get the same answer: so the place is durable on
        the server before this returns.
        """
        if self._start is None:
            self._start = self._patience.call(self._initial)
        return self._start

    def _initial(self) -> dict[str, Any]:
        queue, reader = self._options.queue, self._options.reader
        ends = self._plane.ends(queue)
        found = self._plane.cursor(queue, reader)
        if found is None:
            start = {**ends.firsts, **offsets.resolve(self._options.starting, ends, "startingOffsets")}
            return self._with_fingerprints(ends.epoch, self._plane.advance_cursor(queue, reader, ends.epoch, start))
        epoch, positions = found
        if epoch != ends.epoch:
            raise OffsetRefused(
                f"cursor {reader!r} is of an earlier queue {queue!r}: its epoch is {epoch}, the queue's {ends.epoch}",
                remedy=f"delete it (DELETE /queues/{queue}/cursors/{reader}), or give another name with option reader",
            )
        log.warning("the stream goes on where reader %s of queue %s stood: %s", reader, queue, positions)
        return self._with_fingerprints(epoch, {**ends.firsts, **positions})

    def _with_fingerprints(
        self, epoch: str, positions: offsets.Positions, known: Sequence[Known] = ()
    ) -> dict[str, Any]:
        """The offset; raises OffsetRefused if what is known is not what is there."""
        queue = self._options.queue
        return offsets.to_offset(queue, epoch, positions, self._plane.fingerprints(queue, epoch, positions, known))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """In the driver: how far the next batch goes; ``start`` itself if nothing is new, or the server is away."""
        ends = self._target
        if ends is None:
            after = offsets.positions_of(start, self._options.queue)
            try:
                ends = self._plane.ends(self._options.queue, wait=self._options.wait, after=after)
            except ServerAway as error:
                self._patience.failed(error)
                return start
            self._patience.succeeded()
            self._known = ends
        queue = self._options.queue
        end = offsets.advance(start, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if not offsets.ranges_between(start, end, queue):
            return start
        # A store that was put back to an older copy and grew on has the same epoch, and other records below start.
        known, positions = offsets.known_of(start, queue), offsets.positions_of(end, queue)
        return self._patience.call(lambda: self._with_fingerprints(end["epoch"], positions, known))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """In the driver: the queue's end when it was last asked for, so that Spark's progress tells the lag."""
        known = self._known
        return offsets.to_offset(known.queue, known.epoch, known.ends) if known else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """In the driver: who reads what. Asks nobody, so a batch that is repeated is cut the same way."""
        ranges = offsets.ranges_between(start, end, self._options.queue)
        known = tuple(offsets.known_of(end, self._options.queue))
        return [WsrmPartition(end["epoch"], part, known) for part in offsets.plan(ranges, self._options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        return read_task(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """In the driver: all below ``end`` is in the sink. Cumulative, so one that gets lost does not matter."""
        options = self._options
        positions, known = offsets.positions_of(end, options.queue), offsets.known_of(end, options.queue)
        try:
            self._plane.advance_cursor(options.queue, options.reader, str(end["epoch"]), positions, known)
        except ServerAway as error:
            log.warning(
                "cursor %s of queue %s not moved, the next batch will: %s", options.reader, options.queue, error
            )

    def stop(self) -> None:
        """In the driver, at the end of most runs."""
        self._plane.close()
        if isinstance(sys.exc_info()[1], EOFError):
            # Spark has hung up, which is how it ends this process: PySpark fails to answer, and would print that
            # failure as a traceback at every query.stop().
            sys.stderr = io.StringIO()
