"""Names, defaults and limits of the options of ``spark.read.format("wsrm")``.

This module imports neither Spark nor network code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.client.offsets import EARLIEST, LATEST
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.options.server import ServerOptions, access_of
from holdfast.pipeline.options.values import (
    WrongOptions,
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
from holdfast.settings import suggestion

INBOX = "inbox"
"""The queue that a read uses if no option names one."""
MESSAGES, LETTERS, JOURNAL = "messages", "letters", "journal"
TABLES = {MESSAGES: COLUMNS, LETTERS: letter_columns.COLUMNS, JOURNAL: journal_columns.COLUMNS}
"""The tables that a read can return, each with all its columns."""
MOST_TASKS = 100_000
"""Upper limit of Spark partitions per read; the driver keeps all of them in memory."""
DELIVERED, RECEIVED = "delivered", "received"

_ELSEWHERE = {
    "kafka.bootstrap.servers": "set the server with option broker, a URL: http://127.0.0.1:8081",
    "kafka.group.id": "set the name of a stream's cursor with option reader",
    "groupidprefix": "set the name of a stream's cursor with option reader",
    "path": "set the queue with option queue, and call load() without a path",
    "assign": "set option queue; for some partitions of a batch read, set option partitions: 0,3",
    "startingoffsetsbytimestampstrategy": "a time after the last record is the end of its partition",
    "kafkaconsumer.polltimeoutms": "option awaySeconds sets how long to wait for a server",
    "fetchoffset.numretries": "option awaySeconds sets how long to wait for a server",
    "fetchoffset.retryintervalms": "option awaySeconds sets how long to wait for a server",
    "maxrecordsperpartition": "options tasks and minPartitions set the number of parts of a read",
}
"""Options without an equivalent here, from Spark's Kafka source or set by Spark itself, and what to use instead."""


def _columns(name: str, text: str) -> frozenset[str]:
    names = [one.strip().lower() for one in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"option {name}={text!r} names a column twice, or has an empty name", remedy="Use the form queue,offset"
        )
    return frozenset(names)


def usable_cores() -> int:
    """Return the number of processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _reader(name: str, text: str) -> str:
    from holdfast.core.queues.cursors import check_reader

    check_reader(text)
    return text


def _wait(name: str, text: str) -> float:
    value = as_seconds(name, text)
    if value > 60:
        raise ConfigurationError(
            f"option {name}={text!r} is above 60 seconds", remedy="The server waits at most 60 seconds"
        )
    return value


def _tasks(name: str, text: str) -> int:
    value = as_positive(name, text)
    if value > MOST_TASKS:
        raise ConfigurationError(
            f"option {name}={text!r} is above {MOST_TASKS}", remedy="Two or three tasks for each core are enough"
        )
    return value


@dataclass(frozen=True, slots=True)
class ReadOptions(ServerOptions):
    """Validated options of a batch or streaming read. The metadata holds each option's camelCase name.

    Args:
        queues: One queue, or several separated by commas. The default is ``inbox``, unless ``queuePattern`` is set.
        pattern: A regular expression that selects every queue with a matching whole name. A stream reads a queue that
            appears later from its beginning.
        read: The rows that a batch read returns: ``messages``, the dead ``letters`` with their reasons, or the event
            ``journal``.
        reader: Name of the cursor that a stream keeps on the server in each queue it reads: letters, digits, dots,
            hyphens and underscores. A stream requires it. Two queries that read the same queue need different names.
        starting: Start of a batch read, or of a stream that has no cursor on the server yet: ``earliest``, ``latest``,
            or offsets. Partitions without an offset start at their earliest record.
        starting_at: Start as a time: each partition starts at its first record at or after it. See ``timestampType``.
            For dead letters it is the time of the failure, for the journal the time of the event.
        starting_times: Start as one time per partition. Partitions without a time start at their earliest record.
        ending: End of a batch read: ``latest`` or offsets. Partitions without an offset are read to their end.
        ending_at: End as a time: each partition ends before its first record at or after it. Dead letters and the
            journal end before this time.
        ending_times: End as one time per partition. Partitions without a time are read to their end.
        time_of: The timestamp that start and end times are compared with: ``delivered`` is when a record entered its
            queue (column ``delivered_at``), ``received`` is when the server received it (column ``received_at``).
        partitions: Numbers of the partitions to read in each queue: ``0,3``. Batch reads only.
        sequence: Read only messages of the Sequence with this Identifier.
        action: Read only messages with this wsa:Action.
        max_rows: Maximum number of rows in one micro-batch. It contains the oldest rows of all partitions.
        min_rows: Number of rows that a micro-batch waits for, until ``maxTriggerDelay`` expires.
        max_delay: Longest time that rows wait for ``minRowsPerBatch``: ``500ms``, ``30s``, ``15m``, ``1h``; a number
            without a unit is in seconds.
        fail_on_loss: Whether a read fails if the server deleted records before the read reached them. Otherwise the
            read skips them: the log reports them, and the stream's offset counts them as ``skipped``.
        wait: Seconds that the server may delay its answer if there are no new records (0..60).
        tasks: Maximum number of Spark partitions per read. By default, a read has one partition per 5,000 rows up to
            four, or one per 50,000 rows if that is more, because the driver does not know how many cores the executors
            have. If ``columns`` names only ``queue``, ``partition`` and ``offset``, each takes twenty times as many
            rows.
        min_tasks: Minimum number of Spark partitions per read, if there are enough rows.
        columns: Columns of the result, separated by commas: ``sequence,action``. By default, all columns except those
            that ``body`` and ``headers`` turn off; neither of these can be combined with ``columns``.
        body: Whether the result has a ``body`` column.
        headers: Whether the result has a ``headers`` column.
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
        """Parse the options as Spark passes them: text values under case-insensitive names.

        Raises:
            ConfigurationError: An option name is unknown (the error suggests the nearest one), a value is invalid, the
                broker is missing, or two options exclude each other.
        """
        values, wrong = parsed(cls, options, "source", _ELSEWHERE), dict[str, ConfigurationError]()
        for fields in (
            ("queues", "pattern"),
            ("starting", "starting_at", "starting_times"),
            ("ending", "ending_at", "ending_times"),
            ("columns", "body"),
            ("columns", "headers"),
        ):
            given = [cls.__dataclass_fields__[name].metadata["name"] for name in fields if name in values]
            if len(given) > 1:
                told = f"options {' and '.join(given)} exclude each other"
                wrong[given[-1]] = ConfigurationError(told, remedy="Remove one of them")
        if wrong:
            raise WrongOptions(wrong)
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
        unwanted = {name for name in ("body", "headers") if not getattr(self, name)}
        return self.columns or frozenset(name for name, *_ in TABLES[self.read] if name not in unwanted)

    @property
    def needed(self) -> frozenset[str]:
        """Names of the columns to read: those of the result and those that filters use."""
        times = (self.starting_at, self.starting_times, self.ending_at, self.ending_times)
        is_by_arrival = self.time_of == RECEIVED and times != (None, None, None, None)
        by = {"sequence": bool(self.sequence), "action": bool(self.action), "received_at": is_by_arrival}
        return self.names.union(name for name, is_used in by.items() if is_used)

    @property
    def needs_records(self) -> bool:
        return not self.needed.issubset(POSITION)

    @property
    def ease(self) -> int:
        """Factor for the number of rows per task, relative to a read that needs the records."""
        return 1 if self.needs_records else 20

    def check_stream(self) -> None:
        """Check that these options suit a stream.

        Raises:
            ConfigurationError: The reader's name is missing, or an option applies only to batch reads.
        """
        if not self.reader:
            raise ConfigurationError(
                "a stream needs a name for its cursor on the server, but option reader is missing",
                remedy='Add .option("reader", "orders-to-parquet"), with a different name for each query on the queue',
            )
        self._refuse(
            ("read", "ending", "ending_at", "ending_times", "partitions"),
            "is for batch reads, but this is a stream",
            "remove it; for a stream that ends, use the trigger availableNow",
        )

    def check_batch(self) -> None:
        """Check that these options suit a batch read.

        Raises:
            ConfigurationError: An option applies only to messages, and the read returns dead letters or the journal;
                or the read would start at the end.
        """
        if self.read != MESSAGES:
            self._refuse(*_OF_MESSAGES[self.read])
        named = [] if isinstance(self.starting, str) else [at for one in self.starting.values() for at in one.values()]
        if self.starting == "latest" or LATEST in named:
            raise ConfigurationError(
                "option startingOffsets=latest reads nothing, because a batch read ends at the current end of the "
                "queue",
                remedy="Use earliest or offsets, or read a stream",
            )

    def _refuse(self, names: Iterable[str], why: str, remedy: str) -> None:
        fields = type(self).__dataclass_fields__
        for name in names:
            if getattr(self, name) != fields[name].default:
                raise ConfigurationError(f"option {fields[name].metadata['name']} {why}", remedy=remedy)


_PLACES = ("starting", "starting_times", "ending", "ending_times", "time_of", "partitions")
"""Fields that apply only to a read of messages."""
_OF_MESSAGES = {
    LETTERS: (
        _PLACES,
        "is for messages, but dead letters are read",
        "restrict them with options queue, sequence, action, startingTimestamp and endingTimestamp",
    ),
    JOURNAL: (
        (*_PLACES, "action", "body", "headers", "reader", "max_rows", "min_rows", "max_delay", "wait"),
        "is for messages, but the journal is read",
        "restrict it with options queue, sequence, startingTimestamp and endingTimestamp; option columns selects "
        "columns",
    ),
}
"""Table other than messages -> fields that do not apply to it, the reason, and the remedy."""


def _check_columns(values: Mapping[str, Any]) -> None:
    read = values.get("read", MESSAGES)
    there = [name for name, *_ in TABLES[read]]
    for name in sorted(values.get("columns", frozenset()).difference(there)):
        remedy = suggestion(name, there, f"The columns are {', '.join(there)}")
        raise ConfigurationError(f"option columns names {name!r}, but read={read} has no such column", remedy=remedy)


def _check_sizes(values: Mapping[str, Any]) -> None:
    ending = values.get("ending")
    if ending == "earliest" or (isinstance(ending, dict) and any(EARLIEST in one.values() for one in ending.values())):
        raise ConfigurationError("option endingOffsets reads nothing", remedy="Use latest, -1, or offsets")
    if values.get("min_rows", 1) > values.get("max_rows", 100_000):
        raise ConfigurationError(
            f"option minRowsPerBatch={values['min_rows']} is above option maxRowsPerBatch",
            remedy="Use a smaller value, or a larger option maxRowsPerBatch",
        )
    if "tasks" in values and values.get("min_tasks", 1) > values["tasks"]:
        raise ConfigurationError(
            f"option minPartitions={values['min_tasks']} is above option tasks={values['tasks']}",
            remedy="Remove option tasks, or use a larger value",
        )
    if values.get("starting_at", 0) > values.get("ending_at", LATEST_TIME):
        raise ConfigurationError("option endingTimestamp is before option startingTimestamp", remedy="Swap the two")
