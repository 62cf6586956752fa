"""A stream of queues.

Each method notes where Spark runs it: in the *driver* (one long-lived process for each query run), or in a *task*.
"""

from __future__ import annotations

import io
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.client import offsets
from holdfast.client.data_plane import DataPlane, Patience
from holdfast.client.errors import OffsetRefused, RecordsTrimmed, ServerAway, UnknownQueue
from holdfast.client.nodes import Nodes
from holdfast.client.offsets import Ends, NextPositions, Place, Places, Positions, QueueRange
from holdfast.client.terminal_text import few
from holdfast.exceptions import HoldfastError
from holdfast.pipeline.reader import bounds
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.reader.tasks import Part, PortableReader, WsrmPartition, read_task
from holdfast.pipeline.spark.logs import log

if TYPE_CHECKING:
    import pyarrow as pa


class WsrmStreamReader(PortableReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream with a position on the server: the cursor named by option ``reader``, in each queue.

    The server keeps every record from the cursor on. The cursor follows one batch behind, because Spark reports a batch
    as done only when the next one starts.
    """

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(options)
        self._guess: dict[str, int] | None = None
        """The server's figures for the last batch, which save it some reading for the next one."""
        self._clock = clock
        self._plane = DataPlane(options.broker, options.access)
        self._patience = Patience(options.away)
        self._start: dict[str, Any] | None = None
        self._known: dict[str, Ends] | None = None
        self._target: dict[str, Ends] | None = None
        self._joined: dict[str, Place] = {}
        """Starting place of each queue that joined, or returned, and has not been in a batch since."""
        self._left: set[str] = set()
        self._committed: dict[str, Positions] = {}
        self._shared: set[str] = set()
        """Queues with a cursor that another query moves."""
        self._planned: dict[str, Any] = {}
        """The last offset returned in this run."""
        self._skipped = 0
        """Records of a repeated batch that were deleted since its first attempt."""
        self._waiting_since: float | None = None
        self._reading: list[QueueRange] = []
        """Ranges of the last batch, if it may skip deleted records."""
        self._nodes: Nodes | None = None
        self._is_alone = False
        """Whether the server is no node of a cluster."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """In the driver: ``maxRowsPerBatch``."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """In the driver, first of all: this run ends at the current ends of the queues."""
        self._target = self._known = self._patience.call(lambda: bounds.queues_there(self._plane, self._options))

    # --- where it begins ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return, in the driver, the cursors' positions; a missing cursor is created where the options say.

        Spark asks again after a crash in its first batch, and must get the same answer: so the positions are durable on
        the server before this returns.
        """
        if self._start is None:
            self._start = self._patience.call(self._initial)
            if self._target is not None:  # the start was requested later than the target, and may be after it
                self.prepareForTriggerAvailableNow()
        return self._start

    def _initial(self) -> dict[str, Any]:
        there = bounds.queues_there(self._plane, self._options)
        if not there:
            why = f"no record has been read yet: {bounds.no_match(self._options)}"
            log.warning("source.empty", reader=self._options.reader, what=why)
        starts = self._starts(there)
        places = {}
        for queue, ends in there.items():
            positions = self._begin(ends, starts.get(queue, {}))
            prints = self._plane.fingerprints(queue, ends.epoch, positions)
            places[queue] = Place(ends.epoch, positions, prints)
        if self._is_of_several:
            for queue in there:
                self._plane.drop_cursor(queue, self._note)
        return Places(places, reader=self._options.reader).to_json()

    @property
    def _is_of_several(self) -> bool:
        return bool(self._options.pattern) or len(self._options.queues) > 1

    @property
    def _note(self) -> str:
        """Name of the cursor that records a queue's starting position until all cursors exist."""
        reader = self._options.reader
        return f"{reader[:80]}.begins-{zlib.crc32(reader.encode()):08x}"

    def _starts(self, there: Mapping[str, Ends]) -> dict[str, Positions]:
        """Return where to create the missing cursors.

        A crash may happen between two of them, and the options may then mean other positions: the latest has moved, and
        a queue that has appeared is read from its beginning. So all positions are recorded before the first cursor is
        created. A query that finds one of its cursors uses the recorded positions. A queue without a cursor did not
        exist then, and starts at its beginning.
        """
        plane, options = self._plane, self._options
        new = [ends for queue, ends in there.items() if plane.cursor(queue, options.reader) is None]
        if len(new) < len(there):
            return {ends.queue: self._noted(ends) for ends in new}
        starts = {ends.queue: self._wanted(ends) for ends in new}
        if self._is_of_several:
            for ends in new:
                plane.drop_cursor(ends.queue, self._note)  # from a start that did not create the cursor
                plane.advance_cursor(ends.queue, self._note, ends.epoch, starts[ends.queue])
        return starts

    def _wanted(self, ends: Ends) -> Positions:
        return self._kept_of(ends, bounds.start_of(self._plane, self._options, ends))

    def _noted(self, ends: Ends) -> Positions:
        epoch, positions = self._plane.cursor(ends.queue, self._note) or ("", {})
        if epoch == ends.epoch:
            return self._kept_of(ends, {**ends.firsts, **positions})
        return ends.firsts if self._options.pattern else self._wanted(ends)

    def _kept_of(self, ends: Ends, asked: Positions) -> Positions:
        """Return these positions, moved past deleted records if the options tolerate that."""
        wanted = [(ends.queue, offsets.Range(p, at, ends.ends[p])) for p, at in asked.items()]
        _, gone = offsets.split_trimmed(wanted, {ends.queue: ends})
        bounds.refuse_or_tell(gone, self._options, "are requested")
        return {**asked, **{part.partition: part.end for _, part in gone}}

    def _begin(self, ends: Ends, start: Positions) -> Positions:
        """Return the position of the cursor in a queue; it is created at ``start`` if it does not exist."""
        queue, reader = ends.queue, self._options.reader
        found = self._plane.cursor(queue, reader)
        if found is None:
            return self._plane.advance_cursor(queue, reader, ends.epoch, start)
        epoch, positions = found
        if epoch != ends.epoch:
            raise OffsetRefused(
                f"cursor {reader!r} belongs to an earlier queue {queue!r}: its epoch is {epoch}, the queue's is "
                f"{ends.epoch}",
                remedy=f"holdfast cursors delete --admin {self._options.broker} {queue} {reader}, or set another "
                "name with option reader",
            )
        positions = {**ends.firsts, **positions}
        where = bounds.positions_text(positions)
        what = f"the stream continues where reader {reader} of queue {queue} stopped: {where}"
        log.warning("reader.resumed", reader=reader, queue=queue, what=what)
        return positions

    def _join(self, ends: Ends, left: Place | None) -> Place:
        """Return the starting place of a queue that the checkpoint does not know, or its previous place.

        A new queue starts at its first record, unless it has the cursor already.
        """
        if left is not None:
            if ends.queue in self._left:
                self._left.remove(ends.queue)
                where = bounds.positions_text(left.positions)
                log.warning("queue.returned", reader=self._options.reader, queue=ends.queue, read_from=where)
            return left
        place = Place(ends.epoch, self._patience.call(lambda: self._begin(ends, ends.firsts)))
        where = bounds.positions_text(place.positions)
        log.info("queue.joined", reader=self._options.reader, queue=ends.queue, read_from=where)
        return place

    @staticmethod
    def _is_joining(queue: str, place: Place, places: Places) -> bool:
        """Whether a queue that joined, or returned, has not been in a batch since."""
        left = places.left.get(queue)
        return queue not in places.queues and (left is None or left.positions == place.positions)

    # --- how far the next batch goes ------------------------------------------------------------------------------

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return, in the driver, the end of the next batch; ``start`` without new records or an answer."""
        places = self._still_read(offsets.parse(start))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._target is not None:
            there = self._patience.call(lambda: self._look(places, most))
        else:
            try:
                there = self._look(places, most)
            except ServerAway as error:
                self._patience.failed(error)
                return start
            self._patience.succeeded()
            self._known = there.ends
        self._tell_of_holes(there.ends)
        places = self._still_there(places, there.ends)
        joining = {one: place.positions for one, place in self._joined.items() if one in there.ends}
        end, lost = offsets.advance(places, there.ends, joining, lambda since, ends: there.by_partition)
        bounds.refuse_or_tell(lost, self._options, "this stream has not read")
        if not offsets.has_moved(places, end) or self._is_early(places, end, lost):
            if self._target is not None:  # the last call of this run, without a commit of Spark after it
                self.commit(start)
            return start
        self._waiting_since = None
        self._guess = there.guess
        self._planned = self._counted(offsets.with_fingerprints(end, there.fingerprints)).to_json()
        return self._planned

    def _look(self, places: Places, most: int | None) -> NextPositions:
        """Ask for the content and the end of the next batch: one request, and another one if a queue joins."""
        self._joined = {one: place for one, place in self._joined.items() if self._is_joining(one, place, places)}
        found = self._ask(places, most, self._wait)
        new = [one for one in found.ends if one not in places.queues and one not in self._joined]
        for queue in new:
            left = places.left_at(queue, found.ends[queue].epoch)
            self._joined[queue] = self._join(found.ends[queue], left)
        if new:
            found = self._ask(places, most, 0.0)
        return replace(found, ends={one: ends for one, ends in found.ends.items() if one in found.positions})

    @property
    def _wait(self) -> float:
        """Seconds that the server may delay its answer: no longer than the available rows may wait."""
        if self._target is not None:
            return 0.0
        if self._waiting_since is None:
            return self._options.wait
        left = self._options.max_delay - (self._clock() - self._waiting_since)
        return min(self._options.wait, max(0.0, left))

    def _ask(self, places: Places, most: int | None, wait: float) -> NextPositions:
        """Make one request, and check that the queues to read exist."""
        options, target = self._options, self._target
        stands = {**places.queues, **self._joined}
        until = None
        if target is not None:
            stands = {queue: place for queue, place in stands.items() if queue in target}
            until = {queue: target[queue].ends for queue in stands}
        others = bool(options.pattern) or any(queue not in stands for queue in options.queues)
        found = self._plane.next_positions(
            stands,
            until=until,
            others=others,
            most=most,
            least=1 if self._waiting_since is None else options.min_rows,
            wait=wait,
            guess=self._guess,
        )
        for queue in options.queues:
            if queue not in found.ends:
                raise self._plane.unknown(queue, list(found.ends) if others else None)
        ends = {queue: one for queue, one in sorted(found.ends.items()) if bounds.is_read(options, queue)}
        if target is not None:
            ends = {queue: offsets.cut(ends[queue], one.ends) for queue, one in target.items() if queue in ends}
        return replace(found, ends=ends)

    def _still_read(self, places: Places) -> Places:
        """Check that the options still match the cursors and the queues of the checkpoint."""
        reader = self._options.reader
        if places.reader not in ("", reader):
            raise OffsetRefused(
                f"the checkpoint's position has the name {places.reader!r}, but option reader is {reader!r}: the "
                "server would delete unread records of this query, and keep the records that the old name protects",
                remedy=f"Set the option reader back to {places.reader!r}, or start the query with a new checkpoint",
            )
        strange = [queue for queue in places.queues if not bounds.is_read(self._options, queue)]
        if strange and self._options.fail_on_loss:
            read = self._options.pattern or ", ".join(self._options.queues)
            raise OffsetRefused(
                f"the checkpoint has a position in {few(map(repr, strange))}, but the query reads only {read!r}",
                remedy="Set the option queue back, let the query drop the queue with option failOnDataLoss=false, or "
                "start it with a new checkpoint",
            )
        return self._leave(replace(places, reader=reader), strange)

    def _still_there(self, places: Places, there: Mapping[str, Ends]) -> Places:
        """Check that the server has the queues of the checkpoint; a queue of a pattern may have been deleted."""
        gone = [queue for queue in places.queues if queue not in there]
        if gone and self._options.fail_on_loss:
            raise self._plane.unknown(gone[0], list(there))
        return self._leave(places, gone)

    def _tell_of_holes(self, there: Mapping[str, Ends]) -> None:
        """Report records of the previous batch that were deleted meanwhile; only its tasks know which they skipped."""
        reading, self._reading = self._reading, []
        _, gone = offsets.split_trimmed([one for one in reading if one[0] in there], there)
        if gone:
            what = "deleted during or after a batch that read them: the logs of its tasks name the skipped records"
            log.warning("records.deleted", reader=self._options.reader, ranges=bounds.ranges_text(gone), what=what)

    def _leave(self, places: Places, queues: Sequence[str]) -> Places:
        for queue in queues:
            if queue not in self._left:
                self._left.add(queue)
                where = bounds.positions_text(places.queues[queue].positions)
                what = f"queue {queue} is dropped at {where}, because option failOnDataLoss is false"
                log.warning("queue.dropped", reader=self._options.reader, queue=queue, what=what)
        read = {queue: place for queue, place in places.queues.items() if queue not in queues}
        return replace(places, queues=read, left={**places.left, **{one: places.queues[one] for one in queues}})

    def _is_early(self, start: Places, end: Places, lost: Sequence[QueueRange]) -> bool:
        rows = sum(part.rows for _, part in offsets.ranges_between(start, end))
        if self._target is not None or lost or rows >= self._options.min_rows:
            return False
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since < self._options.max_delay

    def _counted(self, end: Places) -> Places:
        """Add the number of records that a repeated batch had to skip."""
        skipped, self._skipped = self._skipped, 0
        return replace(end, skipped=end.skipped + skipped)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return, in the driver, the queues' last known ends, so that Spark's progress shows the lag."""
        if self._known is None:
            return None
        return Places({queue: Place(ends.epoch, ends.ends) for queue, ends in self._known.items()}).to_json()

    # --- one batch ------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide the batch among tasks, in the driver.

        No answer changes how, so a repeated batch is divided in the same way. But a repeated batch may lack records
        that were deleted meanwhile, which it reports and counts.
        """
        until = offsets.parse(end)
        ranges = offsets.ranges_between(offsets.parse(start), until)
        if not self._options.fail_on_loss and end != self._planned:
            ranges = self._patience.call(lambda: self._still_kept(ranges))
        self._reading = [] if self._options.fail_on_loss else ranges
        parts = {
            (queue, p): Part(queue, place.epoch, offsets.Range(p, 0, 0), tuple(k for k in place.known if k[0] == p))
            for queue, place in until.queues.items()
            for p in place.positions
        }
        options, nodes = self._options, self._find_nodes()
        plan = offsets.plan(ranges, options.tasks, options.min_tasks, options.ease)
        return [
            WsrmPartition(tuple(replace(parts[queue, part.partition], range=part) for queue, part in task), nodes)
            for task in plan
        ]

    def _find_nodes(self) -> Nodes | None:
        """Return which node has which partition; without an answer, as it was at the batch before."""
        if self._is_alone:
            return None
        try:
            self._nodes = self._plane.nodes()
            self._is_alone = self._nodes is None
        except ServerAway as error:
            log.warning("nodes.unknown", reader=self._options.reader, error=error.message)
        return self._nodes

    def _still_kept(self, ranges: list[QueueRange]) -> list[QueueRange]:
        there = {}
        for queue in {queue for queue, _ in ranges}:
            with suppress(UnknownQueue):
                there[queue] = self._plane.ends(queue)
        left, gone = offsets.split_trimmed([one for one in ranges if one[0] in there], there)
        gone += [one for one in ranges if one[0] not in there]
        self._skipped += bounds.refuse_or_tell(gone, self._options, "a repeated batch has to read")
        return left

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        return read_task(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """In the driver: everything below ``end`` is in the sink. Cumulative, so a lost call does no harm."""
        reader = self._options.reader
        for queue, place in offsets.parse(end).queues.items():
            if self._committed.get(queue) == place.positions or not bounds.is_read(self._options, queue):
                continue
            try:
                stands = self._plane.advance_cursor(queue, reader, place.epoch, place.positions, place.known)
                self._committed[queue] = place.positions
                self._tell_of_another(queue, place.positions, stands)
            except ServerAway as error:
                what = "the next batch moves it"
                log.warning("cursor.not_moved", reader=reader, queue=queue, error=str(error), what=what)
            except (RecordsTrimmed, UnknownQueue) as error:
                if self._options.fail_on_loss:
                    raise
                log.warning("cursor.not_moved", reader=reader, queue=queue, error=str(error))

    def _tell_of_another(self, queue: str, positions: Positions, stands: Positions) -> None:
        """Report a cursor beyond the position of this query, which another query must have moved."""
        ahead = {one: at for one, at in stands.items() if one in positions and at > positions[one]}
        if ahead and queue not in self._shared:
            self._shared.add(queue)
            own = bounds.positions_text({one: positions[one] for one in ahead})
            what = (
                f"it is at {bounds.positions_text(ahead)}, but this query is at {own}: another query uses the name, or "
                "the checkpoint was restored. The records in between may be deleted before this query reads them"
            )
            remedy = "Use a different reader for each query"
            log.warning("cursor.shared", reader=self._options.reader, queue=queue, what=what, remedy=remedy)

    def stop(self) -> None:
        """In the driver, at the end of most runs."""
        self._plane.close()
        if isinstance(sys.exc_info()[1], EOFError):
            # Spark closes the connection to end this process. PySpark then fails to answer, and would print that
            # failure as a traceback at every query.stop().
            sys.stderr = io.StringIO()


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream with invalid options: its first request raises the reason.

    If the constructor of the reader raised it, PySpark would print an error of its own below, as the last line.
    """

    def __init__(self, error: HoldfastError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        """In the driver: raises the error."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        """In the driver: raises the error."""
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        """In the driver: raises the error."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """In the driver: raises the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """In the driver, for a repeated batch: raises the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Never: there are no partitions."""
        raise self._error
