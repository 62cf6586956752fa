"""``df.write.format("wsrm")`` and ``df.writeStream.format("wsrm")``: rows become reliable messages, exactly once.

Each task *stages* its rows on the server: durable, but not visible to readers. The driver *publishes* the parts that
the tasks staged in one atomic request, which returns "already" if the batch was published before. Unpublished parts are
*discarded*. So a failed batch sends nothing, and a repeated batch sends nothing twice.

Each method notes where Spark runs it; attributes that one method sets on ``self`` do not exist in the next.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holdfast.client.data_plane import Patience
from holdfast.client.errors import PipelineError, RowRefused, ServerAway, SinkBound, TokenKnown, WriteRefused
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.pipeline.spark.logs import log
from holdfast.pipeline.spark.workers import spare_collections
from holdfast.pipeline.writer.client import Batch, Published, SinkPlane, Taken
from holdfast.pipeline.writer.options import WriteOptions
from holdfast.pipeline.writer.rows import Part, Refused, RowEncoder, RowPlan, plan_rows

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Staged(WriterCommitMessage):
    """The rows that one task staged: tokens of the parts, in order, and the file of its refused rows.

    Alternatively, the task reports that the batch was published before, and by which attempt.
    """

    batch: Batch
    tokens: tuple[str, ...]
    rows: int
    already: bool
    attempt: str | None
    refused: int
    refused_file: str


def planned(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, stream: bool
) -> tuple[WriteOptions, RowPlan]:
    """Check a write before any part of it runs.

    Raises:
        ConfigurationError: An invalid option or column, or an attempt to overwrite.
    """
    checked = WriteOptions.parse(options, stream=stream)
    if overwrite:
        raise ConfigurationError(
            "sent messages cannot be overwritten",
            remedy='Use outputMode("append")' if stream else 'Use mode("append")',
        )
    return checked, plan_rows(schema, checked)


class _Writer:
    """The common parts of a stream's writer and a batch's."""

    def __init__(self, options: WriteOptions, plan: RowPlan) -> None:
        self._options = options
        self._plan = plan

    def _batch(self, context: TaskContext) -> Batch:
        raise NotImplementedError

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its rows, in parts. They are durable when this returns."""
        spare_collections()
        context = TaskContext.get()
        assert context is not None
        return TaskWriter(self._options, self._plan, self._batch(context), context.partitionId()).write(iterator)

    def _publish(self, messages: Sequence[WriterCommitMessage | None]) -> Batch | None:
        """In the driver: publish the whole batch, or nothing; a repeated call changes nothing."""
        staged = [one for one in messages if isinstance(one, Staged)]
        if not staged:
            return None
        options, batch = self._options, staged[0].batch
        if any(one.already for one in staged):  # another attempt has published the batch
            published = Published(False, next(one.attempt for one in staged if one.already))
        else:
            attempt = self._note(batch, [one.refused_file for one in staged if one.refused_file])
            tokens, rows = [token for one in staged for token in one.tokens], sum(one.rows for one in staged)
            with self._plane() as plane:
                published = Patience(options.away).call(lambda: plane.publish(batch, tokens, rows, attempt))
        if options.refused:
            from holdfast.pipeline.writer import refused_rows as table

            # Only now: until the server has published an attempt, none of them counts.
            table.place(options.refused, batch.query, batch.number, published.attempt)
        self._tell(staged, published.is_new)
        return batch

    def _note(self, batch: Batch, files: list[str]) -> str:
        """Note the files with refused rows, and finish an earlier batch while the server knows of it."""
        options = self._options
        if not options.refused:
            return ""
        from holdfast.pipeline.writer import refused_rows as table

        if earlier := table.left(options.refused, batch.query, batch.number):
            with self._plane() as plane:
                last = Patience(options.away).call(lambda: plane.last(batch))
            if last is not None and last[0] in earlier:
                table.place(options.refused, batch.query, *last)
        return table.note(options.refused, batch.query, batch.number, files)

    def _tell(self, staged: list[Staged], is_new: bool) -> None:
        batch = staged[0].batch
        rows, refused = sum(one.rows for one in staged), sum(one.refused for one in staged)
        if not is_new:
            what = "it was already published, and is not sent again"
            log.warning("batch.repeated", sink=batch.sink, batch=batch.number, what=what)
        elif refused:
            where = self._options.refused
            log.warning("rows.refused", sink=batch.sink, batch=batch.number, sent=rows, refused=refused, where=where)
        else:
            log.info("batch.sent", sink=batch.sink, batch=batch.number, sent=rows)

    def _plane(self) -> closing[SinkPlane]:
        return closing(SinkPlane(self._options.broker, self._options.access))

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, after a failure: never raises; the server keeps published rows."""
        staged = [one for one in messages if isinstance(one, Staged)]
        if staged:
            _discard(self._options, staged[0].batch, [token for one in staged for token in one.tokens])


class WsrmStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming query's batches. Spark creates one for each batch, and another for each commit."""

    def _batch(self, context: TaskContext) -> Batch:
        query, number = streaming_batch(context)
        return Batch(self._options.sink_id or query, query, number)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: all tasks are done. If Spark dies before it records that, it calls again with other ones."""
        self._publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: a task, or the commit, failed."""
        self._discard(messages)


class WsrmWriter(_Writer, DataSourceArrowWriter):
    """One batch write: of a named sink, by a key, or of an anonymous sink that is forgotten afterwards."""

    def __init__(self, options: WriteOptions, plan: RowPlan) -> None:
        super().__init__(options, plan)
        if options.idempotency_key:
            self._sink = f"once-{hashlib.sha256(options.idempotency_key.encode()).hexdigest()[:40]}"
        else:
            self._sink = options.sink_id or f"write-{uuid.uuid4()}"

    def _batch(self, context: TaskContext) -> Batch:
        options = self._options
        if not options.sink_id:
            return Batch(self._sink, self._sink, 0, is_final=True)
        assert options.batch_id is not None
        query = options.query_id or context.getLocalProperty(_QUERY) or _NO_QUERY
        return Batch(self._sink, query, options.batch_id, jumps=True)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: all tasks are done."""
        batch = self._publish(messages)
        if batch is not None and not (self._options.sink_id or self._options.idempotency_key):
            try:
                with self._plane() as plane:
                    plane.forget(batch.sink)
            except HoldfastError as error:  # the rows are sent, and the server later forgets the sink on its own
                log.warning("sink.not_forgotten", sink=batch.sink, error=str(error), what="holdfast sinks lists it")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: a task, or the commit, failed."""
        self._discard(messages)


_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's names for the properties that it gives the tasks of a streaming query."""
_NO_QUERY = "batches"
"""Query name for the batches of a sink that no streaming query writes to."""


def streaming_batch(context: TaskContext) -> tuple[str, int]:
    """Return the ids of the streaming query, which survives restarts, and of its batch.

    Raises:
        PipelineError: This Spark does not provide them.
    """
    query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if not query or not number:
        raise PipelineError(
            f"Spark gives this task no {(_BATCH if query else _QUERY)}, so a batch cannot be sent exactly once",
            remedy="Use a version of Spark that Holdfast is tested with, or foreachBatch with options sinkId and "
            "batchId",
        )
    return query, int(number)


class TaskWriter:
    """Stages one task's rows on the server."""

    def __init__(self, options: WriteOptions, plan: RowPlan, batch: Batch, partition: int) -> None:
        self._options = options
        self._plan = plan
        self._batch = batch
        self._partition = partition
        self._plane = SinkPlane(options.broker, options.access)
        self._owner: SinkPlane | None = None
        """The plane of the node with the sink; None: to be found."""
        self._patience = Patience(options.away)
        self._name = f"{partition}-{uuid.uuid4().hex}"
        self._tokens: list[str] = []
        self._tried: list[str] = []
        self._rows = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Stage all rows.

        Raises:
            WriteRefused: A row cannot be sent, and there is no table for such rows.
            ServerAway: The server did not answer within the patience.
            SinkBound, BatchRefused: The sink does not accept this batch.
        """
        file: Any = None
        if self._options.refused:
            from holdfast.pipeline.writer.refused_rows import RefusedFile

            batch = self._batch
            file = RefusedFile(self._options.refused, batch.query, batch.number, self._name, self._partition)
        already = whole = False
        attempt: str | None = None
        try:
            for one in RowEncoder(self._plan).parts(batches):
                if already:
                    continue  # Spark requires that all its rows are read
                refused = [one] if isinstance(one, Refused) else []
                if isinstance(one, Part):
                    taken = self._stage(one)
                    already, attempt = taken.already, taken.attempt
                    refused = [one.refused(*told) for told in taken.refused]
                if fatal := refused if file is None else [one for one in refused if self._is_of_an_option(one)]:
                    raise self._unsendable(fatal[0])
                if refused and not already:
                    file.add(refused)
            name = file.close() if file else ""
            whole = True
        finally:
            self._leave_owner()
            self._plane.close()
            if not whole:
                _discard(self._options, self._batch, self._tried)
                if file is not None:
                    with suppress(WriteRefused):  # report the original failure, not this one
                        file.close()
        in_table = file.rows if file else 0
        return Staged(self._batch, tuple(self._tokens), self._rows, already, attempt, in_table, name)

    def _stage(self, part: Part) -> Taken:
        """Stage a part; retry with new tokens while the server does not answer."""
        data = part.encoded()
        bound = False
        while True:
            token = f"{self._name}-{len(self._tried) + 1}"
            self._tried.append(token)
            try:
                taken = self._at_owner().stage(self._batch, token, data, tell=bool(self._options.refused))
            except ServerAway as error:
                self._leave_owner()
                self._patience.failed(error)
            except TokenKnown as error:
                self._patience.failed(ServerAway(error.message, remedy=error.remedy))
            except SinkBound:
                if bound or not self._options.rebind:
                    raise
                bound = True
                self._patience.call(lambda: self._plane.bind(self._batch.sink, self._batch.query))
            except RowRefused as error:
                refused = part.refused(error.row, error.reason, error.column, error.remedy)
                raise self._unsendable(refused) from error
            else:
                self._patience.succeeded()
                if not taken.already:
                    self._tokens.append(token)
                    self._rows += taken.rows
                return taken

    def _at_owner(self) -> SinkPlane:
        """Return the plane of the node with the sink, so that no other node has to pass the rows on."""
        if self._owner is None:
            nodes = self._plane.nodes(self._batch.sink)
            url = nodes.of_sink() if nodes is not None else None
            self._owner = self._plane if url is None else self._plane.at(url)
        return self._owner

    def _leave_owner(self) -> None:
        """Find the owner again before the next part: another node may have taken the sink over."""
        if self._owner is not None and self._owner is not self._plane:
            self._owner.close()
        self._owner = None

    def _is_of_an_option(self, refused: Refused) -> bool:
        """Whether the value of an option is wrong: the server then refuses every row, whatever it contains."""
        return refused.column not in self._plan.columns and refused.column in self._plan.defaults

    def _unsendable(self, refused: Refused) -> WriteRefused:
        row = refused.batch.slice(refused.index, 1)
        of = {name: name for name in ("to", "queue", "message_id")} | self._plan.columns
        named = {of[field] for field in ("key", "to", "queue", "message_id") if field in self._plan.columns}
        values = ", ".join(f"{name}={_shown(row, name)}" for name in sorted(named))
        by_option = self._is_of_an_option(refused)
        where = f", {'option' if by_option else 'column'} {refused.column}" if refused.column else ""
        target = "option and start again"
        if not by_option:
            target = 'row and start again, or write such rows to a table with .option("refused", "/a/directory")'
        remedy = f"{refused.remedy} " if refused.remedy else ""
        return WriteRefused(
            f"row {refused.position} of partition {self._partition} of batch {self._batch.number} cannot be sent"
            f"{where}: {refused.reason}" + (f" ({values})" if values else ""),
            remedy=f"Nothing of the batch was sent: {remedy}Correct the {target}",
        )


def _shown(row: pa.RecordBatch, name: str) -> str:
    try:
        return repr(row.column(name)[0].as_py())[:100]
    except UnicodeDecodeError:
        return "?"


def _discard(options: WriteOptions, batch: Batch, tokens: Sequence[str]) -> None:
    """Make one attempt, and never raise: the server deletes the rest after a timeout.

    Files of refused rows stay until the batch is published, because other attempts may have written them.
    """
    if not tokens:
        return
    try:
        with closing(SinkPlane(options.broker, options.access)) as plane:
            plane.discard(batch.sink, list(tokens))
    except Exception as error:  # the earlier failure is the one to report
        what = "its staged rows are deleted only with the next batch, or after a week"
        told = error.message if isinstance(error, HoldfastError) else str(error)
        log.warning("rows.not_discarded", sink=batch.sink, batch=batch.number, error=told, what=what)


__all__ = ["Staged", "WsrmStreamWriter", "WsrmWriter", "planned"]
