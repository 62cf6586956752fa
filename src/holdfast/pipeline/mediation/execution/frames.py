"""The rows of a plan's steps as DataFrames, computed from those of its sources: of a batch, a sample or a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.schemas import schema_in
from holdfast.pipeline.landing.tables import read_landed
from holdfast.pipeline.mediation.definition.checks import format_of
from holdfast.pipeline.mediation.definition.columns import no_time
from holdfast.pipeline.mediation.definition.graph import Graph, can_fail
from holdfast.pipeline.mediation.definition.plan import ParsePlan, PipelinePlan, StepPlan, TablePlan
from holdfast.pipeline.mediation.transformations.parsing import parse_json, parse_xml, validate
from holdfast.pipeline.mediation.transformations.problems import PROBLEMS, has_problems, split, with_problems
from holdfast.pipeline.mediation.transformations.writing import to_xml

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_TIME = "rows without a time: "
"""Prefix of a stream's counts of rows without a time, for each input of the step with state."""


@dataclass
class Frames:
    """Rows by name, of all steps computed so far.

    Args:
        spark: The session with the rows as views.
        inferred: Step -> its inferred fields.
        keeps: Whether rows that are used twice are cached until ``release``: not in a stream.
        tables: Reads a table; None: in its current state.
    """

    plan: PipelinePlan
    spark: SparkSession
    inferred: Mapping[str, T.StructType]
    keeps: bool = True
    tables: Callable[[SparkSession, TablePlan], DataFrame] | None = None
    rows: dict[str, DataFrame] = field(default_factory=dict)
    failed: list[tuple[str, DataFrame]] = field(default_factory=list)
    """Step, and its rows with problems."""
    _kept: list[DataFrame] = field(default_factory=list)

    @cached_property
    def _graph(self) -> Graph:
        return Graph(self.plan)

    def add(self, name: str, rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView(name)
        self.rows[name] = rows
        return rows

    def keep(self, rows: DataFrame) -> DataFrame:
        """Cache rows until ``release``, so that they are computed once."""
        if not self.keeps or rows.is_cached:
            return rows
        self._kept.append(rows.persist())
        return self._kept[-1]

    def release(self) -> None:
        for rows in self._kept:
            rows.unpersist()
        self._kept.clear()

    def make(self, steps: Iterable[StepPlan]) -> None:
        """Compute the rows of steps, in order, and of the tables that they need.

        Raises:
            ConfigurationError: A step cannot be computed; names the step.
        """
        inputs = self._graph.inputs
        steps = list(steps)
        uses = Counter(name for step in steps for name in inputs[step.name])
        uses.update({one.input for one in self.plan.routes})
        for step in steps:
            for table in self.plan.tables:
                if table.name in inputs[step.name] and table.name not in self.rows:
                    self.add(table.name, (self.tables or read_table)(self.spark, table))
            with part(f"step {step.name}"):
                made = self._made(step, inputs[step.name])
                if has_problems(made) and not step.sql:
                    made = with_problems(made)
            if has_problems(made) and can_fail(step):
                made, wrong = split(self.keep(made))
                self.failed.append((step.name, wrong))
            # If it ran twice, a step that reads a clock would give two sinks different rows for one message.
            self.add(step.name, self.keep(made) if uses[step.name] > 1 else made)

    def _made(self, step: StepPlan, inputs: tuple[str, ...]) -> DataFrame:
        if step.sql:
            if step.state is not None:
                self._watermark(step, inputs)
            results = self.spark.sql(step.sql)
            for name in inputs if step.state is not None else ():  # steps below read all of its rows
                self.rows[name].createOrReplaceTempView(name)
            return results
        rows = [self.rows[name] for name in inputs]
        if step.parse is not None:
            return self._parsed(step.name, step.parse, rows[0])
        if step.validate is not None:
            one = step.validate
            return validate(rows[0], one.rules, xsd=one.xsd, element=one.element, column=one.column)
        if step.xml is not None:
            told = step.xml
            return to_xml(
                rows[0],
                told.element,
                told.columns or None,
                xsd=told.xsd,
                into=told.into,
                qualified=told.qualified,
                prefix=told.prefix,
                zone=told.zone,
            )
        assert step.python is not None
        made: DataFrame = step.python(*rows)
        return made

    def _watermark(self, step: StepPlan, inputs: tuple[str, ...]) -> None:
        """Create views of its inputs: the rows with a time, and a watermark that limits the state of a stream.

        No window contains a row without a time, and no watermark discards the state of one, so such a row has failed.
        With ``output = "complete"``, no watermark discards any state, and the SQL decides what becomes of such a row.

        Raises:
            ConfigurationError: No input has the column of ``state.time``, or it contains no times.
        """
        assert step.state is not None
        time, late = step.state.time, f"{round(step.state.late * 1000)} milliseconds"
        given = {name: self.rows[name] for name in inputs if self._graph.sources(name)}
        if wrong := no_time(step, {name: rows.columns for name, rows in given.items()}):
            raise ConfigurationError(f"state.time: {wrong[0]}", remedy=wrong[1])
        for name, rows in given.items():
            column = time_column(rows, time)
            if column is None:
                continue
            # Spark also accepts a window, but then computes a wrong watermark, so that no window ever ends.
            if not isinstance(column.dataType, T.TimestampType | T.TimestampNTZType):
                told = f"state.time: the column '{column.name}' of '{name}' is {column.dataType.simpleString()}"
                remedy = f"Make it a TIMESTAMP in a step above: 'CAST({column.name} AS TIMESTAMP) AS {column.name}'"
                if isinstance(column.dataType, T.StructType) and "end" in column.dataType.names:
                    remedy = "Name the TIMESTAMP column that the window is made of, and make the window in this step"
                raise ConfigurationError(told, remedy=remedy)
            timed = rows
            if column.nullable and step.state.output != "complete":
                timed = self._timed(step, name, column)
            if rows.isStreaming:
                timed = timed.withWatermark(column.name, late)
            timed.createOrReplaceTempView(name)

    def _timed(self, step: StepPlan, name: str, column: T.StructField) -> DataFrame:
        """Return the rows of an input that have a time. A stream counts the others; otherwise they have failed."""
        from pyspark.sql import functions as F

        rows, time = self.rows[name], F.col(f"`{column.name}`")
        if rows.isStreaming:
            rows = rows.observe(f"{NO_TIME}{name}", F.count_if(time.isNull()))
        else:
            reasons = F.array(F.lit(no_time_of(column.name)))
            self.failed.append((step.name, rows.where(time.isNull()).withColumn(PROBLEMS, reasons)))
        return rows.where(time.isNotNull())

    def _parsed(self, name: str, told: ParsePlan, rows: DataFrame) -> DataFrame:
        schema: T.StructType | str | None = told.schema or None
        if told.schema_file:
            schema = schema_in(told.schema_file)
        if told.infer:
            schema = self.inferred[name]
        if told.json:
            return parse_json(rows, schema or "", column=told.column, into=told.into)
        return parse_xml(
            rows,
            xsd=told.xsd,
            element=told.element,
            schema=schema,
            column=told.column,
            into=told.into,
            validate=told.validate,
            lenient=told.lenient,
            max_elements=told.max_elements,
        )


def time_column(rows: DataFrame, name: str) -> T.StructField | None:
    """Return the column of ``state.time``; None if the rows lack it."""
    return next((one for one in rows.schema if one.name.lower() == name.lower()), None)


def no_time_of(column: str) -> str:
    """Return the reason of a dead letter whose time is null."""
    return f"{column} is null, so the row has no time, and no result includes it"


@contextmanager
def part(name: str) -> Iterator[None]:
    """Name the part of the pipeline in errors of the block, also in Spark's about tables, columns and functions.

    Raises:
        ConfigurationError: The block raised such an error.
    """
    from pyspark.errors import AnalysisException

    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error.message}", remedy=error.remedy) from error
    except AnalysisException as error:
        told = str(error).strip().splitlines()[0].rstrip("; ")
        remedy = f"Correct the {name.partition(' ')[0]}"
        if (error.getCondition() or "").startswith("STREAMING_OUTPUT_MODE"):
            remedy = 'Group by the column of state.time, or by a window of it; or set state.output = "complete"'
        raise ConfigurationError(f"{name}: {told}", remedy=remedy) from error


def read_table(spark: SparkSession, table: TablePlan) -> DataFrame:
    """Return the current content of a table."""
    kind = str(format_of(table))
    if kind == "delta":
        return read_landed(spark, table.path)
    reader = spark.read.format(kind).options(**dict(table.options or {}))
    if table.schema:
        reader = reader.schema(table.schema)
    return reader.load(table.path)


def own_session(spark: SparkSession) -> SparkSession:
    """Return a new session with views that no other session sees."""
    from holdfast.pipeline.source import WsrmDataSource

    made = spark.newSession()
    made.dataSource.register(WsrmDataSource)
    return made
