"""A running pipeline: its Spark queries, and the work of each of their batches.

One query reads a source once for all of its sinks. A batch is computed, settled, and then given to all sinks at the
same time; each sink accepts it once. So a crash at any point repeats the whole batch, without duplicates.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from holdfast.client.errors import PipelineError
from holdfast.pipeline.landing.tables import table_of
from holdfast.pipeline.mediation.definition import kafka_options
from holdfast.pipeline.mediation.definition.checks import source_options
from holdfast.pipeline.mediation.definition.file import read_pipeline
from holdfast.pipeline.mediation.definition.graph import Graph, Query
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SinkPlan
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.frames import Frames, own_session, part
from holdfast.pipeline.mediation.execution.late_rows import dropped_rows, late_letters, rows_read
from holdfast.pipeline.mediation.execution.lookups import Lookups
from holdfast.pipeline.mediation.execution.outputs import DEAD, SINK, check_tables, output_of, outputs, union
from holdfast.pipeline.mediation.execution.parallel_jobs import side_by_side
from holdfast.pipeline.mediation.execution.samples import analyse, infer
from holdfast.pipeline.mediation.execution.settled import Settled
from holdfast.pipeline.mediation.execution.sinks import (
    absolute,
    forget_refused,
    refusals,
    refused_letters,
    send,
    sink_name,
    with_messages,
    write_table,
)
from holdfast.pipeline.mediation.kafka.cluster import check_kafka
from holdfast.pipeline.mediation.kafka.records import as_rows, send_records
from holdfast.pipeline.mediation.kafka.repeated_records import each_once
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.spark import files
from holdfast.pipeline.spark.checkpoints import (
    commit_state,
    origin,
    query_id,
    reader_of,
    refuse_foreign_data,
    settle,
    where_it_stands,
)
from holdfast.settings import check_arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_LATE = "late"
"""Name under which a batch settles the rows that were too late for a step with state."""
_DOUBLES = "doubles"
"""Name under which a batch settles the records that had been read before."""
_SEEN = "seen"
"""The output with the records of a Kafka topic that the next batch is compared with."""


class Mediation:
    """A running pipeline.

    Attributes:
        queries: Its Spark queries by name: one for each source, and for each step with state.
    """

    def __init__(self, plan: PipelinePlan, spark: SparkSession) -> None:
        self._plan, self._spark = plan, spark
        self.queries: dict[str, StreamingQuery] = {}
        self._of: dict[str, Query] = {}
        self._lookups: list[Lookups] = []

    def wait(self, seconds: float) -> bool:
        """Wait up to this many seconds for all queries to end; return whether they have.

        Raises:
            StreamingQueryException: One of them failed; the others are stopped.
        """
        try:
            ended = [query.awaitTermination(seconds / len(self.queries)) for query in self.queries.values()]
        except Exception:
            self.stop()
            raise
        if all(ended):
            self._release()
        return all(ended)

    def stop(self) -> None:
        """End all queries. The next run repeats batches in progress."""
        for query in self.queries.values():
            query.stop()
        self._release()

    def _release(self) -> None:
        while self._lookups:
            self._lookups.pop().release()

    def settle(self, away: float = 60.0) -> dict[str, Any]:
        """Move each query's cursor to the position in its checkpoint, because Spark leaves it a batch behind at a run's
        end.

        Args:
            away: Seconds to wait for a server that does not answer.

        Returns:
            Query -> queue -> the new position of its cursor; empty without a batch. For a Kafka topic: the position in
            its checkpoint.

        Raises:
            ServerAway: A server did not answer in that time. Harmless: the next run's first batch moves the cursor.
        """
        stood = {}
        for name, query in self._of.items():
            place, broker = _checkpoint(self._plan, name), query.source.broker
            if broker is None:  # a Kafka topic has no cursor
                stood[name] = where_it_stands(self._spark, place)
                continue
            options = ReadOptions.parse(source_options(query.source))
            how: dict[str, Any] = {"queues": options.queues, "access": options.access, "away": away}
            stood[name] = settle(self._spark, broker, place, **how)
        return stood


def run(
    spark: SparkSession,
    pipeline: PipelinePlan | str | Path,
    *,
    available_now: bool = False,
    parameters: Mapping[str, str] | None = None,
    on_batch: Callable[[MediatedBatch], None] | None = None,
) -> Mediation:
    """Start a pipeline.

    Args:
        spark: A classic session, see ``holdfast.pipeline.session``.
        pipeline: Its file, TOML or Python; or a plan.
        available_now: Process the current messages, then end; otherwise run until stopped.
        parameters: Name -> value; takes precedence over the file's ``[parameters]``.
        on_batch: Called after each batch, in the driver, in the query's own thread.

    Raises:
        ConfigurationMistakes: The file has mistakes; lists all of them.
        ConfigurationError: A step cannot be computed; a table belongs to another checkpoint; there is nothing to infer
            from.
    """
    check_arguments(run, locals())
    plan = pipeline if isinstance(pipeline, PipelinePlan) else read_pipeline(pipeline, parameters)
    check_kafka(spark, plan)
    inferred = _inferred(spark, plan)
    analyse(spark, plan, inferred)  # a query that fails in its first batch has a cursor, which keeps messages
    mediation = Mediation(plan, spark)
    try:
        for query in Graph(plan).queries():
            place = _checkpoint(plan, query.name)
            for path, kind, replaced in _tables(plan, query):
                refuse_foreign_data(spark, table_of(spark, path, kind, replaced=replaced), path, place)
            lookups = Lookups()
            mediation._lookups.append(lookups)
            mediation.queries[query.name] = _start(spark, plan, query, inferred, available_now, on_batch, lookups)
            mediation._of[query.name] = query
    except BaseException:
        mediation.stop()
        raise
    return mediation


def _checkpoint(plan: PipelinePlan, query: str) -> str:
    return f"{absolute(plan.checkpoint)}/queries/{query}"


def _tables(plan: PipelinePlan, query: Query) -> Iterator[tuple[str, str | None, bool]]:
    """Yield the directory of each table, its format if the file names one, and whether each batch replaces its rows."""
    for sink in query.sinks:
        if sink.table is not None:
            yield absolute(sink.table), sink.format, query.replaces
    if plan.dead_letters is not None:
        yield _graveyard(plan, query), None, False


def _graveyard(plan: PipelinePlan, query: Query) -> str:
    assert plan.dead_letters is not None
    return f"{absolute(plan.dead_letters.table)}/query={query.name}"


def _start(
    spark: SparkSession,
    plan: PipelinePlan,
    query: Query,
    inferred: Mapping[str, T.StructType],
    available_now: bool,
    on_batch: Callable[[MediatedBatch], None] | None,
    lookups: Lookups,
) -> StreamingQuery:
    place = _checkpoint(plan, query.name)
    session = own_session(spark) if query.stream else spark
    if query.source.kafka is not None:
        options = kafka_options.source_options(query.source)
        rows = as_rows(session.readStream.format("kafka").options(**options).load())
    else:
        options = {**source_options(query.source), "reader": reader_of(spark, place, plan.name)}
        rows = session.readStream.format("wsrm").options(**options).load()
    mode = "append"
    if query.stream:
        frames = Frames(plan, session, inferred, keeps=False)
        frames.add(query.source.name, rows)
        frames.make(query.stream)
        rows = frames.rows[query.name]
        state = query.stream[-1].state
        assert state is not None
        mode = state.output
    writer = rows.writeStream.queryName(f"{plan.name}.{query.name}").outputMode(mode)
    writer = writer.option("checkpointLocation", place)
    every = f"{round(plan.interval * 1000)} milliseconds"
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=every)
    work = Work(plan, query, inferred, on_batch, partial(_running, session), lookups)
    if not query.stream:
        return writer.foreachBatch(work).start()
    with part(f"step {query.name}"):  # Spark checks at the start whether the SQL suits the output of a state
        return writer.foreachBatch(work).start()


def _running(session: SparkSession) -> StreamingQuery:
    name = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    return session.streams.get(str(name))


class Work:
    """Process the batches of a query.

    Args:
        query: Its part.
        inferred: Step -> its inferred fields.
        on_batch: Called after each batch.
        running: The query itself; it exists once a batch runs.
        lookups: The tables of its batches.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        query: Query,
        inferred: Mapping[str, T.StructType],
        on_batch: Callable[[MediatedBatch], None] | None,
        running: Callable[[], StreamingQuery],
        lookups: Lookups,
    ) -> None:
        self._plan, self._query, self._inferred, self._on_batch = plan, query, inferred, on_batch
        self._running, self._lookups = running, lookups
        self._checkpoint = _checkpoint(plan, query.name)

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Compute, settle and give out a batch; if an earlier attempt settled it, only give it out again."""
        begun = time.monotonic()
        settled = Settled(batch.sparkSession, f"{self._checkpoint}/holdfast-settled", number)
        counts = settled.counts()
        repeated = counts is not None
        if counts is None:
            counts = self._settle(batch, settled)
        elif self._query.stream:
            commit_state(batch)
        settled.forget_earlier()
        self._check_places(counts, number)
        dead, refused = self._give_out(settled, counts, batch)
        if self._on_batch is not None:
            counted = MediatedBatch(
                query=self._query.name,
                batch=number,
                rows=counts[""],
                sinks={
                    sink.name: counts.get(self._output(sink), 0) - refused.get(sink.name, (0, ""))[0]
                    for sink in self._query.sinks
                },
                dead=dead,
                late=counts.get(_LATE, 0),
                repeated=repeated,
                doubles=counts.get(_DOUBLES, 0),
                refused={name: rows for name, (rows, _) in refused.items()},
                reasons={name: reason for name, (_, reason) in refused.items()},
                seconds=round(time.monotonic() - begun, 3),
            )
            self._on_batch(counted)

    def _settle(self, batch: DataFrame, settled: Settled) -> dict[str, int]:
        frames = Frames(self._plan, batch.sparkSession, self._inferred, tables=self._lookups.read)
        try:
            rows = frames.keep(batch)
            made = rows.count()
            known = {"": made}
            letters = []
            if self._query.stream:
                running = self._running()
                dropped = dropped_rows(running)
                known = {"": rows_read(running), _LATE: dropped.late + dropped.untimed}
                if known[_LATE] and self._plan.dead_letters is not None:
                    of = (settled.spark, self._plan, self._query, self._inferred, self._checkpoint, settled.batch)
                    letters = late_letters(*of, running, dropped)
            if not (made or letters or self._query.replaces):
                return known
            seen = {}
            if self._query.source.once:
                fresh, seen[_SEEN] = each_once(rows, settled.before(_SEEN))
                rows = frames.keep(fresh)
                known[_DOUBLES] = made - rows.count()
            frames.add(self._query.name, rows)
            frames.make(self._query.steps)
            made = outputs(frames, self._query, letters)
            check_tables(self._plan, self._query, made)  # once settled, a batch keeps its columns
            return settled.settle(known, {**made, **seen})
        finally:
            frames.release()

    def _output(self, sink: SinkPlan) -> str:
        return output_of(self._plan, sink)

    def _check_places(self, counts: Mapping[str, int], number: int) -> None:
        """Check that everything settled has a destination: the file may have differed at an earlier start.

        Raises:
            PipelineError: Some rows would have no destination, or were sent to a server under another name.
        """
        known = {
            "",
            _LATE,
            _DOUBLES,
            _SEEN,
            *map(self._output, self._query.sinks),
            *([DEAD] if self._plan.dead_letters is not None else ()),
        }
        for output, rows in counts.items():
            if rows and output not in known:
                whose = "dead letters" if output == DEAD else f"for the sink {output.removeprefix(SINK)}"
                raise PipelineError(
                    f"{rows} rows of batch {number} are {whose}, according to an earlier run, but the pipeline "
                    f"{self._plan.name} no longer has it in {self._query.name}",
                    remedy="Add it to the file again, with the same names, until this batch is done; its "
                    "destination may differ",
                )

    def _give_out(
        self, settled: Settled, counts: Mapping[str, int], batch: DataFrame
    ) -> tuple[int, dict[str, tuple[int, str]]]:
        """Give a batch to all sinks at the same time.

        Returns:
            The number of dead letters; and sink -> the number of rows that a server refused, and their reason.
        """
        given: dict[str, Callable[[], DataFrame | None]] = {}
        for sink in self._query.sinks:
            many = counts.get(self._output(sink))
            if many or (many is not None and sink.table and self._query.replaces):
                given[sink.name] = partial(self._give, sink, settled)
        found = dict(zip(given, side_by_side(settled.spark, list(given.values())), strict=True))
        letters = {name: rows for name, rows in found.items() if rows is not None}
        refused = {name: refusals(rows) for name, rows in letters.items()}
        dead = counts.get(DEAD, 0)
        self._bury(settled, [*([settled.read(DEAD)] if dead else []), *letters.values()], batch)
        return dead + sum(rows for rows, _ in refused.values()), refused

    def _give(self, sink: SinkPlan, settled: Settled) -> DataFrame | None:
        """Write the rows of one sink, and the dead letters of rows that a server refuses."""
        rows = settled.read(self._output(sink))
        if sink.sends:
            return self._send(rows, sink, settled)
        if sink.kafka is not None:
            writer = f"{sink_name(self._plan, sink)}/{query_id(settled.spark, self._checkpoint)}"
            send_records(rows, sink, writer, settled.batch)
            return None
        if sink.table is not None:
            of = self._origin(settled)
            write_table(rows, absolute(sink.table), settled.batch, of, sink.format, only=self._query.replaces)
        else:
            rows.show(sink.console or 20, truncate=False)
        return None

    def _origin(self, settled: Settled) -> str:
        return origin(settled.spark, self._checkpoint, settled.batch)

    def _send(self, rows: DataFrame, sink: SinkPlan, settled: Settled) -> DataFrame | None:
        directory = f"{self._checkpoint}/holdfast-refused/{sink.name}" if self._plan.dead_letters is not None else ""
        if directory:
            forget_refused(settled.spark, directory, settled.batch)
        send(rows, sink, self._plan, self._query.source, settled.batch, directory)
        return refused_letters(settled.spark, directory, sink, settled.batch) if directory else None

    def _bury(self, settled: Settled, letters: list[DataFrame], batch: DataFrame) -> None:
        if letters:
            rows = union(letters)
            if not self._query.stream:  # results of a step with state are not made of one message
                rows = with_messages(rows, batch)
            write_table(rows, _graveyard(self._plan, self._query), settled.batch, self._origin(settled))


def _inferred(spark: SparkSession, plan: PipelinePlan) -> dict[str, T.StructType]:
    """Return step -> its fields: inferred by an earlier run, or now from a sample and then stored."""
    found: dict[str, T.StructType] = {}
    directory = f"{absolute(plan.checkpoint)}/inferred"
    for step in plan.steps:
        if step.parse is None or not step.parse.infer:
            continue
        name = f"{step.name}.json"
        if name not in files.names(spark, directory):
            fields = infer(spark, plan, step, found)
            files.publish_text(spark, f"{directory}/{name}", fields.json())
        found[step.name] = T.StructType.fromJson(json.loads(files.read_text(spark, f"{directory}/{name}")))
    return found
