"""The command ``holdfast pipeline``: runs or checks a pipeline's file.

It prints one line of JSON for each batch. You can kill it at any time and start it again with the same arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.client.command_options import AWAY, away_option, have_answer, no_effect, own_words
from holdfast.client.option_types import Count
from holdfast.exceptions import ConfigurationError, HoldfastError, counted
from holdfast.http.urls import in_url
from holdfast.pipeline.jobs.command import (
    WAIT_AT_END,
    command_session,
    failure,
    hear,
    jar_options,
    jars_of,
    named_values,
    own_frames,
    patiently,
    spark_options,
)
from holdfast.pipeline.jobs.output import json_option, sparse, tell
from holdfast.pipeline.jobs.waiting import Waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SourcePlan
    from holdfast.pipeline.mediation.execution.batches import MediatedBatch
    from holdfast.pipeline.mediation.execution.metrics import PipelineCollector

_SAFE = "rows already written are safe"


_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False))
_SET = click.option(
    "--set", "parameters", multiple=True, metavar="NAME=VALUE", callback=named_values, help="A parameter of the file."
)


def _address(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, int] | None:
    from holdfast.endpoint.listeners import listen_address

    try:
        return None if value is None else listen_address(value)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), context, option) from error


@contextlib.contextmanager
def _served(collector: PipelineCollector, host: str, port: int) -> Iterator[None]:
    """Serve the collector's metrics during the block, and print the address."""
    from holdfast.pipeline.jobs.metrics_listener import MetricsListener

    with MetricsListener(collector, host, port) as listener:
        click.echo(f"metrics at http://{in_url(host)}:{listener.port}/metrics", err=True)
        yield


@click.group()
def pipeline() -> None:
    """Run a pipeline: transform messages of queues with SQL and Python, and write the results exactly once.

    \b
    holdfast pipeline check orders.toml
    holdfast pipeline run orders.toml --available-now
    """


@pipeline.command()
@_FILE
@_SET
@click.option("--available-now", is_flag=True, help="Process the current messages, then end.")
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Serve metrics for Prometheus here; without HOST at 127.0.0.1.",
)
@away_option
@jar_options
@json_option
@spark_options
def run(
    file: str,
    parameters: dict[str, str],
    available_now: bool,
    metrics: tuple[str, int] | None,
    away_seconds: float | None,
    **arguments: Any,
) -> None:
    """Run the pipeline in FILE, TOML or Python, until Ctrl-C. It may be killed and restarted at any time.

    \b
    holdfast pipeline run orders.toml --available-now
    holdfast pipeline run orders.toml --set broker=http://broker.example:8081 --master "local[4]"
    holdfast pipeline run orders.toml --metrics 9100
    """
    from holdfast.pipeline.mediation.definition.file import read_pipeline
    from holdfast.pipeline.mediation.definition.graph import Graph
    from holdfast.pipeline.mediation.execution.metrics import PipelineCollector

    stop = threading.Event()
    hear(stop)
    plan = read_pipeline(file, parameters)  # before Spark starts, which takes a while
    config = jars_of(arguments)
    with own_words(), _no_secrets(plan):
        plan = _reached(plan, away_seconds, stop)
        name = f"holdfast pipeline {plan.name}"
        collector = PipelineCollector({one.name: [sink.name for sink in one.sinks] for one in Graph(plan).queries()})
        with contextlib.ExitStack() as stack:
            if metrics is not None:
                stack.enter_context(_served(collector, *metrics))
            spark = stack.enter_context(command_session(name, remedy=_SAFE, stop=stop, config=config, **arguments))
            away = AWAY if away_seconds is None else away_seconds
            patiently(lambda: _run(spark, plan, available_now, stop, away, collector))


@contextlib.contextmanager
def _steps_named(plan: PipelinePlan) -> Iterator[None]:
    """Name the step in the error of a function that fails in the block, which changes nothing.

    Raises:
        HoldfastError: A function of the pipeline failed, here or in a worker.
    """
    from pyspark.errors import PySparkException

    from holdfast.pipeline.mediation.execution.step_functions import calling_steps

    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        in_worker = isinstance(error, PySparkException)
        text = str(error) if in_worker else "".join(traceback.format_exception(error))
        if not calling_steps(plan, own_frames(text)):
            raise
        raise failure(text, "Nothing was changed", calling=partial(calling_steps, plan)) from error


@contextlib.contextmanager
def _no_secrets(plan: PipelinePlan) -> Iterator[None]:
    """Remove the secrets of the pipeline's Kafka clients from all errors and logs."""
    from holdfast.pipeline.mediation.definition.kafka_options import redacted

    try:
        yield
    except HoldfastError as error:
        if not plan.of_kafka:
            raise
        raise HoldfastError(redacted(error.message, plan), remedy=redacted(error.remedy, plan)) from None


def _reached(plan: PipelinePlan, away: float | None, stop: threading.Event | None = None) -> PipelinePlan:
    """Return the plan with this patience, once each of its servers has answered and has the queues that it names."""
    from holdfast.pipeline.mediation.execution.targets import looks
    from holdfast.pipeline.mediation.kafka.cluster import knock

    if away is not None:
        plan = _patient(plan, {"awaySeconds": str(away)})
    asked: dict[Any, Callable[[], object]] = {}
    for one in plan.of_kafka:
        asked[one.kafka] = partial(knock, one)
    for ask in (*asked.values(), *looks(plan).values()):
        have_answer(ask, away, stop)
    return plan


def _patient(plan: PipelinePlan, patience: dict[str, str]) -> PipelinePlan:
    def told(one: Any) -> Any:
        given = one.options or {}
        is_told = "awayseconds" in map(str.lower, given)
        return one if is_told else dataclasses.replace(one, options={**patience, **given})

    return dataclasses.replace(
        plan,
        sources=tuple(one if one.kafka else told(one) for one in plan.sources),
        sinks=tuple(told(one) if one.sends else one for one in plan.sinks),
    )


def _run(
    spark: SparkSession,
    plan: PipelinePlan,
    available_now: bool,
    stop: threading.Event,
    away: float,
    collector: PipelineCollector,
) -> None:
    from pyspark.errors import StreamingQueryException

    from holdfast.pipeline.mediation.definition.graph import Graph
    from holdfast.pipeline.mediation.execution.run import run
    from holdfast.pipeline.mediation.execution.step_functions import calling_steps

    if stop.is_set():
        return
    batches: queue.SimpleQueue[MediatedBatch] = queue.SimpleQueue()
    mediation = run(spark, plan, available_now=available_now, on_batch=batches.put)
    ended = False
    total: Counter[Any] = Counter()
    sources = {query.name: query.source.name for query in Graph(plan).queries()}
    click.echo(f"reading {', '.join(dict.fromkeys(sources.values()))}", err=True)
    waiting = Waiting()
    while not ended:
        try:
            ended = mediation.wait(0.2)
        except StreamingQueryException as error:
            _tell(batches, total, collector)
            raise failure(str(error), _SAFE, "start again to continue", partial(calling_steps, plan)) from error
        _tell(batches, total, collector)
        for name, query in mediation.queries.items():
            collector.look(name, query.lastProgress)
        waiting.look(mediation.queries, total["batches"])
        if stop.is_set() and not ended:
            mediation.stop()
            ended = True
    _tell(batches, total, collector)
    sinks = [sink.name for sink in plan.sinks]
    sums: dict[str, Any] = {
        "rows": _messages(total, sources),
        "dead": total["dead"],
        "late": total["late"],
        "doubles": total["doubles"],
        "refused": {name: total[f"refused {name}"] for name in sinks if total[f"refused {name}"]},
    }
    cursors = mediation.settle(WAIT_AT_END if stop.is_set() else away)
    text = f"{counted(sums['rows'], 'message')} read{_losses(sums)}"
    tell(text, event="end", **sums, cursors=sparse(cursors))
    if lost := [name for name in sums["refused"] if not total[f"sent {name}"]]:
        raise _refused_all(plan, lost[0], total)


def _refused_all(plan: PipelinePlan, sink: str, total: Mapping[Any, int]) -> HoldfastError:
    """The error of a run in which the server accepted no row of a sink."""
    assert plan.dead_letters is not None
    rows = counted(total[f"refused {sink}"], "row")
    reason = max((many, one[2]) for one, many in total.items() if one[:2] == ("reason", sink))[1]
    return HoldfastError(
        f"the server accepted no row of the sink {sink}, and refused {rows}: {reason}",
        remedy=f"The rows are dead letters in {plan.dead_letters.table}. Correct the sink, and send them again",
    )


def _messages(total: Mapping[str, int], sources: Mapping[str, str]) -> int:
    """The number of messages read from all sources; for a source that several queries read, the highest number."""
    most: Counter[str] = Counter()
    for name, source in sources.items():
        most[source] = max(most[source], total.get(f"rows {name}", 0))
    return most.total()


def _tell(batches: queue.SimpleQueue[MediatedBatch], total: Counter[Any], collector: PipelineCollector) -> None:
    while not batches.empty():
        batch = batches.get()
        collector.add(batch)
        total["batches"] += 1
        total[f"rows {batch.query}"] += batch.rows
        total["dead"] += batch.dead
        total["doubles"] += batch.doubles
        total["late"] += batch.late
        total.update({f"sent {name}": rows for name, rows in batch.sinks.items()})
        for name, rows in batch.refused.items():
            total[f"refused {name}"] += rows
            total["reason", name, batch.reasons[name]] += rows
        if batch.rows or batch.late or any(batch.sinks.values()):
            sinks = "".join(f", {rows:,} to {name}" for name, rows in batch.sinks.items())
            read = f"{counted(batch.rows, 'message')} read in {batch.seconds:.1f} s"
            again = ", settled by an earlier attempt" if batch.repeated else ""
            fields = dataclasses.asdict(batch)
            text = f"{batch.query} batch {batch.batch}: {read}{sinks}{_losses(fields)}{again}"
            tell(text, event="batch", **fields)


def _losses(counts: Mapping[str, Any]) -> str:
    """The part of a sentence about rows that did not arrive at a sink, and records sent twice."""
    words = {"dead": "dead letter", "late": "late row", "doubles": "record sent before"}
    plurals = {"doubles": "records sent before"}
    told = [counted(counts[name], words[name], plurals.get(name, "")) for name in words if counts[name]]
    for sink, rows in counts["refused"].items():
        why = f" ({counts['reasons'][sink]})" if sink in counts.get("reasons", {}) else ""
        told.append(f"{rows:,} of {sink} refused by the server{why}")
    return "".join(f", {one}" for one in told)


class _Listing(click.Command):
    """A command with a ``--with`` that takes all values up to the next option, as a shell expands a pattern."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its values."""
        repeated: list[str] = []
        is_listed = False
        for before, one in pairwise(["", *args]):
            is_listed = not one.startswith("-") and (is_listed or before == "--with")
            repeated += ["--with", one] if is_listed and before != "--with" else [one]
        return super().parse_args(ctx, repeated)


@pipeline.command(cls=_Listing)
@_FILE
@_SET
@click.option(
    "--with",
    "messages",
    multiple=True,
    metavar="FILES",
    help="Run every step over these messages instead: XML files with one body each, or .jsonl files; NAME=FILES "
    "for one of several sources.",
)
@click.option(
    "--expect",
    type=click.Path(dir_okay=False),
    help="Compare the resulting rows of --with with this .jsonl file. Without --expect, the rows are printed.",
)
@click.option("--dry-run", is_flag=True, help="Run every step over a sample of the queues' messages, with Spark.")
@click.option("--rows", type=Count(), default=20, show_default=True, help="Number of messages in that sample.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@away_option
@jar_options
@spark_options
def check(
    file: str,
    parameters: dict[str, str],
    dry_run: bool,
    rows: int,
    as_json: bool,
    away_seconds: float | None,
    messages: tuple[str, ...],
    expect: str | None,
    **arguments: Any,
) -> None:
    """Read the pipeline in FILE and show what it would do, or every mistake in it.

    \b
    holdfast pipeline check orders.toml
    holdfast pipeline check orders.toml --dry-run --rows 100
    holdfast pipeline check orders.toml --with messages/*.xml > rows.jsonl
    holdfast pipeline check orders.toml --with messages/*.xml --expect rows.jsonl

    The check looks up the queues of sources and sinks, if their servers answer, and Spark's parser checks the syntax of
    SQL. With --dry-run, all servers must answer. It then shows the columns of each step, some rows, and how many rows
    of the sample fail in each step. It sends, writes and acknowledges nothing. If there are mistakes, the exit code
    is 1. The options of Spark (--master, --jars, --packages, --verbose) need --dry-run or --with.

    --with tests the pipeline without a broker: the steps run over the messages in these files, and the rows of every
    sink and the dead letters are printed as lines of JSON. Keep these lines in a file, and --expect compares them with
    those of a later run. If they differ, it shows how, and the exit code is 1. To exclude a column of a sink from the
    comparison, delete it from all lines of that sink.
    """
    from holdfast.pipeline.mediation.definition.file import read_pipeline
    from holdfast.pipeline.mediation.expectation import exact_text

    if expect is not None and not messages:
        raise click.UsageError("--expect compares the rows of given messages: name their files with --with")
    if messages:
        if dry_run:
            raise click.UsageError("--dry-run reads the queues, and --with reads files: give only one of the two")
        no_effect("with --with", "rows", "away_seconds")
        _test(read_pipeline(file, parameters), messages, expect, is_json=as_json, **arguments)
        return
    if dry_run:
        plan = read_pipeline(file, parameters)
    else:
        no_effect("without --dry-run", "rows", "away_seconds")
        no_effect("without --dry-run and --with", "jars", "packages", "master", "verbose")
        plan = read_pipeline(file, parameters, _syntax_mistakes, _places_missing)
    facts = _facts(plan)
    if dry_run:
        from holdfast.pipeline.mediation.execution.samples import try_out

        config, name = jars_of(arguments), f"holdfast pipeline {plan.name}"
        with own_words(), _no_secrets(plan):
            plan = _reached(plan, away_seconds)
            session = command_session(name, remedy="Nothing was changed", config=config, **arguments)
            with session as spark, _steps_named(plan):
                facts["sample"] = try_out(spark, plan, rows)
    if as_json:
        click.echo(exact_text(facts))
        return
    for line in _summary(facts):
        click.echo(line)


def _test(plan: PipelinePlan, told: tuple[str, ...], expect: str | None, *, is_json: bool, **arguments: Any) -> None:
    """Make a pipeline's rows of local messages, and compare or print them."""
    from holdfast.pipeline.mediation.execution.samples import made_of
    from holdfast.pipeline.mediation.expectation import (
        as_json,
        check_columns,
        differences,
        lines_of,
        read_expectation,
        report,
    )
    from holdfast.pipeline.mediation.fixtures import message_files, messages_of, rows_of

    files = message_files(told, plan)
    given = {source.name: messages_of(source, files[source.name]) for source in plan.sources}
    expected = None if expect is None else read_expectation(Path(expect), [sink.name for sink in plan.sinks])
    config, name = jars_of(arguments), f"holdfast pipeline {plan.name}"
    session = command_session(name, remedy="Nothing was changed", config=config, **arguments)
    with own_words(), session as spark, _steps_named(plan):
        made = made_of(spark, plan, lambda session, source: rows_of(session, source, given[source.name]))
    if expected is not None:
        check_columns(expected, made, str(expect))
    if expected is None:
        for line in lines_of(made):
            click.echo(line)
        return
    found = differences(expected, made)
    for line in [as_json(made, found)] if is_json else report(made, found):
        click.echo(line)
    if found:
        click.echo(f"holdfast: the rows differ from those of {expect}", err=True)
        sys.exit(1)


def _syntax_mistakes(said: Mapping[str, Any]) -> list[Any]:
    """The mistakes in SQL; without Java, report that SQL was not checked, and return none."""
    from holdfast.pipeline.mediation.definition.sql_syntax import syntax_mistakes

    try:
        return list(syntax_mistakes(said))
    except ConfigurationError as error:
        click.echo(f"holdfast: the syntax of SQL was not checked: {error}", err=True)
        return []


def _places_missing(plan: PipelinePlan) -> list[Any]:
    """The missing queues and addresses; report servers that do not answer."""
    from holdfast.pipeline.mediation.execution.targets import places_missing

    def tell(why: str) -> None:
        click.echo(f"holdfast: some queues were not checked: {why}", err=True)

    return list(places_missing(plan, tell))


def _facts(plan: PipelinePlan) -> dict[str, Any]:
    from holdfast.pipeline.mediation.definition.graph import Graph

    graph = Graph(plan)
    return {
        "name": plan.name,
        "checkpoint": plan.checkpoint,
        "sources": {one.name: _source_facts(one) for one in plan.sources},
        "tables": {one.name: one.path for one in plan.tables},
        "steps": {one.name: {"does": one.kinds[0], "of": list(graph.inputs[one.name])} for one in plan.steps},
        "routes": [{"of": one.input, "when": one.when, "to": list(one.to)} for one in plan.routes],
        "sinks": {one.name: one.queue or one.to or one.topic or one.table or "console" for one in plan.sinks},
        "dead_letters": plan.dead_letters.table if plan.dead_letters else None,
        "queries": [one.name for one in graph.queries()],
    }


def _source_facts(source: SourcePlan) -> dict[str, Any]:
    if source.kafka is None:
        return {"broker": source.broker, "queues": list(source.queue)}
    return {"kafka": source.kafka, "topics": list(source.topic)}


def _summary(facts: dict[str, Any]) -> Iterator[str]:
    from holdfast.pipeline.mediation.expectation import exact_text

    yield f"pipeline    {facts['name']}, its progress in {facts['checkpoint']}"
    for name, one in facts["sources"].items():
        read, at = one.get("queues") or one.get("topics"), one.get("broker") or one.get("kafka")
        yield f"source      {name}, {', '.join(read or ['as its options say'])} at {at}"
    for name, path in facts["tables"].items():
        yield f"table       {name}, {path}"
    for name, one in facts["steps"].items():
        yield f"step        {name}, {one['does']} of {', '.join(one['of'])}"
    for one in facts["routes"]:
        yield f"route       {one['of']} to {', '.join(one['to'])}{' when ' + one['when'] if one['when'] else ''}"
    for name, place in facts["sinks"].items():
        yield f"sink        {name}, {place}"
    yield f"letters     {facts['dead_letters'] or 'none'}"
    yield f"queries     {', '.join(facts['queries'])}"
    for name, one in facts.get("sample", {}).items():
        yield ""
        yield f"{name}: {one['rows']} rows" + (f", {one['failed']} more failed" if one["failed"] else "")
        yield f"  {one['columns']}"
        for row in one["first"]:
            yield f"  {exact_text(row)}"
        for reason in one["reasons"]:
            yield f"  failed: {reason}"
