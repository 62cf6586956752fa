"""The queues of a read, and its start and end in each, from the options and the server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing

from holdfast.client import offsets
from holdfast.client.data_plane import DataPlane
from holdfast.client.errors import RecordsTrimmed, UnknownQueue
from holdfast.client.offsets import Ends, Positions, QueueRange
from holdfast.client.terminal_text import few
from holdfast.pipeline.reader.options import RECEIVED, ReadOptions
from holdfast.pipeline.reader.position_values import ByQueue, Position
from holdfast.pipeline.spark.logs import log


def is_read(options: ReadOptions, queue: str) -> bool:
    return queue in options.queues or bool(options.pattern and re.fullmatch(options.pattern, queue))


def queues_there(plane: DataPlane, options: ReadOptions) -> dict[str, Ends]:
    """Return the content of each selected queue, with one request.

    Raises:
        UnknownQueue: A named queue does not exist.
        ServerAway: There is no answer.
    """
    if len(options.queues) == 1:
        return {options.queues[0]: plane.ends(options.queues[0])}
    there = plane.all_ends()
    for queue in options.queues:
        if queue not in there:
            raise plane.unknown(queue, list(there))
    return {queue: ends for queue, ends in sorted(there.items()) if is_read(options, queue)}


def look_at_queues(options: ReadOptions) -> None:
    """Check, with one request, that the queues to read exist."""
    with closing(DataPlane(options.broker, options.access)) as plane:
        queues_there(plane, options)


def no_match(options: ReadOptions) -> UnknownQueue:
    return UnknownQueue(
        f"the server at {options.broker} has no queue with a full name that matches option queuePattern "
        f"{options.pattern!r}",
        remedy="List its queues with holdfast queues --admin URL",
    )


def start_of(plane: DataPlane, options: ReadOptions, ends: Ends) -> Positions:
    """Return the starting offset of each partition, which may be below the first stored record."""
    by_option = _asked(plane, ends, options.starting, options.starting_at, options.starting_times, "startingOffsets")
    return {**ends.firsts, **by_option}


def end_of(plane: DataPlane, options: ReadOptions, ends: Ends) -> Positions:
    """Return where a read ends. A time of arrival has no known offset, so the reader checks each record."""
    if options.time_of == RECEIVED:
        return {**ends.ends, **_asked(plane, ends, options.ending, None, None, "endingOffsets")}
    by_option = _asked(plane, ends, options.ending, options.ending_at, options.ending_times, "endingOffsets")
    return {**ends.ends, **by_option}


def _asked(
    plane: DataPlane, ends: Ends, position: Position, time: int | None, times: ByQueue | None, option: str
) -> Positions:
    if time is not None:
        return plane.offsets_at(ends.queue, ends.epoch, dict.fromkeys(ends.partitions, time))
    if times is not None:
        given = times.get(ends.queue, {})
        offsets.resolve(dict.fromkeys(given, offsets.LATEST), ends, f"{option}ByTimestamp")  # checks that they exist
        return plane.offsets_at(ends.queue, ends.epoch, given) if given else {}
    return offsets.resolve(position if isinstance(position, str) else position.get(ends.queue, {}), ends, option)


def positions_text(positions: Positions) -> str:
    """Return positions for a log line: a queue may have many partitions, and most of them may be at offset 0."""
    moved = [f"partition {one} offset {at:,}" for one, at in sorted(positions.items()) if at]
    rest = len(positions) - len(moved)
    zero = f"offset 0 in {'all' if not moved else 'the other'} {rest} partitions" if rest else ""
    return "; ".join(part for part in (few(moved), zero) if part)


def ranges_text(ranges: Sequence[QueueRange]) -> str:
    """Return ranges of offsets for a log line or an error."""
    return few(f"queue {queue} partition {one.partition} offsets {one.start} to {one.end - 1}" for queue, one in ranges)


def refuse_or_tell(lost: Sequence[QueueRange], options: ReadOptions, why: str) -> int:
    """Handle deleted records: end the read, or report them as skipped; return their number.

    Raises:
        RecordsTrimmed: The query does not tolerate it.
    """
    ranges = ranges_text(lost)
    rows = sum(part.rows for _, part in lost)
    if lost and options.fail_on_loss:
        raise RecordsTrimmed(
            f"{rows} records that {why} are deleted: {ranges}",
            remedy="To continue without them, set option failOnDataLoss=false; to get them back, restore the "
            "store. A longer retention, or a longer time for readers, keeps records",
        )
    if lost:
        what = f"{rows} records that {why} are deleted, and skipped: {ranges}"
        log.warning("records.skipped", reader=options.reader, rows=rows, what=what)
    return rows
