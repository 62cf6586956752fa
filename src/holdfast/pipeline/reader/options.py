"""The options of ``spark.read.format("wsrm")``: names, defaults, limits. Knows nothing of Spark or of the network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from holdfast.client.offsets import EARLIEST, LATEST
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.options.server import ServerOptions, access_of
from holdfast.pipeline.options.values import (
    as_boolean,
    as_name,
    as_positive,
    as_seconds,
    option,
    parsed,
)
from holdfast.pipeline.reader import journal_columns, letter_columns
from holdfast.pipeline.reader.columns import COLUMNS, POSITION
from holdfast.pipeline.reader.position_values import (
    LATEST_TIME,
    ByQueue,
    Position,
    as_partitions,
    as_pattern,
    as_position,
    as_queues,
    as_span,
    as_time,
    as_times,
    of_queues,
    one_of,
)

INBOX = "inbox"
"""The queue that is read if none is named."""
MESSAGES, LETTERS, JOURNAL = "messages", "letters", "journal"
TABLES = {MESSAGES: COLUMNS, LETTERS: letter_columns.COLUMNS, JOURNAL: journal_columns.COLUMNS}
"""What a read may give, and all columns that it may have."""
MOST_TASKS = 100_000
"""Spark partitions of one read: the driver holds them all."""
DELIVERED, RECEIVED = "delivered", "received"

_ELSEWHERE = {
    "kafka.bootstrap.servers": "the server is named by option broker, a URL: http://127.0.0.1:8081",
    "kafka.group.id": "a stream's place on the server is named by option reader",
    "groupidprefix": "a stream's place on the server is named by option reader",
    "path": "a queue is named by option queue, and load() takes no path",
    "assign": "give option queue; a batch read takes some partitions of it by option partitions: 0,3",
    "startingoffsetsbytimestampstrategy": "a time behind the last record is the end of its partition",
    "kafkaconsumer.polltimeoutms": "option awaySeconds is how long a server is waited for",
    "fetchoffset.numretries": "option awaySeconds is how long a server is waited for",
    "fetchoffset.retryintervalms": "option awaySeconds is how long a server is waited for",
    "maxrecordsperpartition": "options tasks and minPartitions say into how many parts a read is cut",
}
"""Options of Spark's Kafka source that this one has no like of, or that Spark gives by itself, and what there is
instead."""


def _columns(name: str, text: str) -> frozenset[str]:
    names = [one.strip().lower() for one in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"option {name}={text!r} names a column twice, or none between two commas", remedy="give queue,offset"
        )
    return frozenset(names)


def usable_cores() -> int:
    """The processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _reader(name: str, text: str) -> str:
    from holdfast.core.queues.queue import check_reader  # not in tasks, which are given options that are read

    check_reader(text)
    return text


def _wait(name: str, text: str) -> float:
    value = as_seconds(name, text)
    if value > 60:
        raise ConfigurationError(f"option {name}={text!r} is above 60 seconds", remedy="the server waits no longer")
    return value


def _tasks(name: str, text: str) -> int:
    value = as_positive(name, text)
    if value > MOST_TASKS:
        raise ConfigurationError(
            f"option {name}={text!r} is above {MOST_TASKS}", remedy="two or three for each core are plenty"
        )
    return value


@dataclass(frozen=True, slots=True)
class ReadOptions(ServerOptions):
    """The checked options of a read, batch or stream. Option names are the camelCase ones of the metadata.

    Args:
        queues: The queue to read, or several with commas between them; ``inbox`` if neither this nor
            ``queuePattern`` is given.
        pattern: A regular expression instead: every queue whose whole name it matches. One that appears while a stream
            runs joins at its beginning.
        read: What a batch read gives: ``messages``, the dead ``letters`` with their reasons, or the event ``journal``.
        reader: Name of the cursor a stream keeps on the server, in each queue that it reads: letters, digits, dots,
            hyphens and underscores. Required for a stream; two queries that read one queue need two names.
        starting: Where a stream whose cursor is not on the server yet, or a batch read, starts: ``earliest``,
            ``latest``, or offsets. A partition that is not named starts at its earliest record.
        starting_at: The same as a time: the first record of each partition from then on. See ``timestampType``. Of
            dead letters those that failed from then on, of the journal what happened from then on.
        starting_times: The same as a time for each partition. One that is not named starts at its earliest record.
        ending: Where a batch read ends: ``latest`` or offsets. A partition that is not named is read to its end.
        ending_at: The same as a time: before the first record from then on. Of dead letters and of the journal: before
            it.
        ending_times: The same as a time for each partition. One that is not named is read to its end.
        time_of: Which time these are compared with: when a record was ``delivered`` into its queue, as the column
            ``delivered_at`` has it, or ``received`` by the server, as ``received_at``.
        partitions: Only those partitions of each queue, by number: ``0,3``. Batch reads only.
        sequence: Only messages of the Sequence with this Identifier.
        action: Only messages with this wsa:Action.
        max_rows: Rows of one micro-batch at most: the oldest of all partitions.
        min_rows: A micro-batch waits until there are so many rows, or until ``maxTriggerDelay`` is over.
        max_delay: How long rows wait for a micro-batch to be full: ``500ms``, ``30s``, ``15m``, ``1h``; a number alone
            is seconds.
        fail_on_loss: Whether a read fails where records were deleted before they were read. If not, they are skipped:
            the log names them, and the stream's offset counts them as ``skipped``.
        wait: Seconds the server may hold back an answer that nothing is new (0..60).
        tasks: Spark partitions of one read at most. Without it as many as have 5,000 rows each, up to four, or one for
            each 50,000 rows if that is more: the driver does not know how many cores the executors have. Twenty times
            as many rows where ``columns`` names none but ``queue``, ``partition`` and ``offset``.
        min_tasks: Spark partitions of one read at least, as far as there are rows.
        columns: The columns that there are, with commas between them: ``sequence,action``. Without it all but those
            that ``body`` and ``headers`` leave out; neither of these may be given beside it.
        body: Whether there is a ``body`` column.
        headers: Whether there is a ``headers`` column.
    """

    queues: tuple[str, ...] = field(default=(), metadata=option("queue", as_queues, "subscribe"))
    pattern: str = field(default="", metadata=option("queuePattern", as_pattern, "subscribePattern"))
    read: str = field(default=MESSAGES, metadata=option("read", one_of(TABLES)))
    reader: str = field(default="", metadata=option("reader", _reader))
    starting: Position = field(default="earliest", metadata=option("startingOffsets", as_position))
    starting_at: int | None = field(default=None, metadata=option("startingTimestamp", as_time))
    starting_times: ByQueue | None = field(default=None, metadata=option("startingOffsetsByTimestamp", as_times))
    ending: Position = field(default="latest", metadata=option("endingOffsets", as_position))
    ending_at: int | None = field(default=None, metadata=option("endingTimestamp", as_time))
    ending_times: ByQueue | None = field(default=None, metadata=option("endingOffsetsByTimestamp", as_times))
    time_of: str = field(default=DELIVERED, metadata=option("timestampType", one_of((DELIVERED, RECEIVED))))
    partitions: frozenset[int] = field(default=frozenset(), metadata=option("partitions", as_partitions))
    sequence: str = field(default="", metadata=option("sequence", as_name))
    action: str = field(default="", metadata=option("action", as_name))
    max_rows: int = field(default=100_000, metadata=option("maxRowsPerBatch", as_positive, "maxOffsetsPerTrigger"))
    min_rows: int = field(default=1, metadata=option("minRowsPerBatch", as_positive, "minOffsetsPerTrigger"))
    max_delay: float = field(default=900.0, metadata=option("maxTriggerDelay", as_span))
    fail_on_loss: bool = field(default=True, metadata=option("failOnDataLoss", as_boolean))
    wait: float = field(default=0.4, metadata=option("waitSeconds", _wait))
    tasks: int | None = field(default=None, metadata=option("tasks", _tasks))
    min_tasks: int = field(default=1, metadata=option("minPartitions", _tasks))
    columns: frozenset[str] = field(default=frozenset(), metadata=option("columns", _columns))
    body: bool = field(default=True, metadata=option("body", as_boolean))
    headers: bool = field(default=False, metadata=option("headers", as_boolean, "includeHeaders"))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Options as Spark hands them over: texts, under names whose case does not count.

        Raises:
            ConfigurationError: A name nobody knows, with the nearest right one; a value that cannot be used; no broker;
                two that exclude each other.
        """
        values = parsed(cls, options, "source", _ELSEWHERE)
        for fields in (
            ("queues", "pattern"),
            ("starting", "starting_at", "starting_times"),
            ("ending", "ending_at", "ending_times"),
            ("columns", "body"),
            ("columns", "headers"),
        ):
            given = [cls.__dataclass_fields__[name].metadata["name"] for name in fields if name in values]
            if len(given) > 1:
                raise ConfigurationError(
                    f"options {' and '.join(given)} exclude each other", remedy="leave one of them out"
                )
        if values.get("read", MESSAGES) == MESSAGES and not values.get("pattern"):
            values.setdefault("queues", (INBOX,))
        queues, pattern = values.get("queues", ()), values.get("pattern", "")
        for name in ("starting", "starting_times", "ending", "ending_times"):
            if isinstance(values.get(name), dict):
                option_name = cls.__dataclass_fields__[name].metadata["name"]
                values[name] = of_queues(option_name, values[name], queues, pattern)
        _check_sizes(values)
        _check_columns(values)
        return cls(**values, access=access_of(values))

    @property
    def names(self) -> frozenset[str]:
        """The columns that a row has."""
        unwanted = {name for name in ("body", "headers") if not getattr(self, name)}
        return self.columns or frozenset(name for name, *_ in TABLES[self.read] if name not in unwanted)

    @property
    def needed(self) -> frozenset[str]:
        """These, and the columns by which rows are left out."""
        times = (self.starting_at, self.starting_times, self.ending_at, self.ending_times)
        is_by_arrival = self.time_of == RECEIVED and times != (None, None, None, None)
        by = {"sequence": bool(self.sequence), "action": bool(self.action), "received_at": is_by_arrival}
        return self.names.union(name for name, is_used in by.items() if is_used)

    @property
    def needs_records(self) -> bool:
        """Whether messages are read for more than where they are."""
        return not self.needed.issubset(POSITION)

    @property
    def ease(self) -> int:
        """How many times as many rows are worth a task as of those for which records are read."""
        return 1 if self.needs_records else 20

    def check_stream(self) -> None:
        """See that a stream can be read with these.

        Raises:
            ConfigurationError: A name for its place is missing, or it is told what only a batch read can do.
        """
        if not self.reader:
            raise ConfigurationError(
                "a stream needs a name for its place on the server, and has no option reader",
                remedy='add .option("reader", "orders-to-parquet"), another name for each query that reads the queue',
            )
        self._refuse(
            ("read", "ending", "ending_at", "ending_times", "partitions"),
            "is of batch reads, and this is a stream",
            "leave it out; a stream that is to end has the trigger availableNow",
        )

    def check_batch(self) -> None:
        """See that a batch read can be done with these.

        Raises:
            ConfigurationError: It is told what only a read of messages can do, and reads something else; or it is to
                begin at the end.
        """
        if self.read != MESSAGES:
            self._refuse(*_OF_MESSAGES[self.read])
        named = [] if isinstance(self.starting, str) else [at for one in self.starting.values() for at in one.values()]
        if self.starting == "latest" or LATEST in named:
            raise ConfigurationError(
                "option startingOffsets=latest would read nothing, as a batch read ends where the queue ends now",
                remedy="give earliest or offsets, or read a stream",
            )

    def _refuse(self, names: Iterable[str], why: str, remedy: str) -> None:
        fields = type(self).__dataclass_fields__
        for name in names:
            if getattr(self, name) != fields[name].default:
                raise ConfigurationError(f"option {fields[name].metadata['name']} {why}", remedy=remedy)


_PLACES = ("starting", "starting_times", "ending", "ending_times", "time_of", "partitions")
"""What only a read of queues can be told."""
_OF_MESSAGES = {
    LETTERS: (
        _PLACES,
        "is of messages, and dead letters are read",
        "narrow them by options queue, sequence, action, startingTimestamp and endingTimestamp",
    ),
    JOURNAL: (
        (*_PLACES, "action", "body", "headers", "reader", "max_rows", "min_rows", "max_delay", "wait"),
        "is of messages, and the journal is read",
        "narrow it by options queue, sequence, startingTimestamp and endingTimestamp; option columns says which "
        "columns there are",
    ),
}
"""What else is read -> what that cannot be told, why, and the remedy."""


def _check_columns(values: Mapping[str, Any]) -> None:
    read = values.get("read", MESSAGES)
    there = [name for name, *_ in TABLES[read]]
    for name in sorted(values.get("columns", frozenset()).difference(there)):
        nearest = get_close_matches(name, there, n=1)
        remedy = f"did you mean {nearest[0]}?" if nearest else f"the columns are {', '.join(there)}"
        raise ConfigurationError(f"option columns names {name!r}, which {read} have not", remedy=remedy)


def _check_sizes(values: Mapping[str, Any]) -> None:
    ending = values.get("ending")
    if ending == "earliest" or (isinstance(ending, dict) and any(EARLIEST in one.values() for one in ending.values())):
        raise ConfigurationError("option endingOffsets would read nothing", remedy="give latest, -1, or offsets")
    if values.get("min_rows", 1) > values.get("max_rows", 100_000):
        raise ConfigurationError(
            f"option minRowsPerBatch={values['min_rows']} is above option maxRowsPerBatch",
            remedy="give a smaller one, or a larger option maxRowsPerBatch",
        )
    if "tasks" in values and values.get("min_tasks", 1) > values["tasks"]:
        raise ConfigurationError(
            f"option minPartitions={values['min_tasks']} is above option tasks={values['tasks']}",
            remedy="leave option tasks out, or give a larger one",
        )
    if values.get("starting_at", 0) > values.get("ending_at", LATEST_TIME):
        raise ConfigurationError(
            "option endingTimestamp lies before option startingTimestamp", remedy="give them the other way round"
        )
