"""The queues and addresses of a pipeline, looked up on their servers before any row is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from holdfast.client.data_plane import DataPlane
from holdfast.client.errors import PipelineError, ServerAway, UnknownQueue
from holdfast.config.lines import KeyPath
from holdfast.config.tables import Wrong
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.checks import source_options
from holdfast.pipeline.mediation.definition.graph import Graph
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SinkPlan, SourcePlan
from holdfast.pipeline.mediation.execution.sinks import sink_options
from holdfast.pipeline.reader.bounds import look_at_queues
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.writer.options import WriteOptions


def look_at_source(source: SourcePlan) -> None:
    """Check, with one request, that the queues of a source exist.

    Raises:
        UnknownQueue: One does not; the error suggests the nearest name.
        PipelineError: The server refuses the token.
        ServerAway: The server does not answer.
    """
    try:
        look_at_queues(ReadOptions.parse(source_options(source)))
    except ServerAway:
        raise
    except PipelineError as error:  # it has no such queue, or refuses the token
        raise type(error)(f"the source {source.name}: {error.message}", remedy=error.remedy) from None


def look_at_sink(sink: SinkPlan, plan: PipelinePlan, source: SourcePlan) -> None:
    """Check that the queue of a sink exists, or that a forwarder sends to its address.

    Otherwise, the server would refuse every row of the sink.

    Raises:
        UnknownQueue: There is no such queue, and no such forwarder; the error suggests the nearest name.
        ServerAway: The server does not answer.
    """
    options = WriteOptions.parse({**sink_options(sink, plan, source), "batchId": "0"}, stream=False)
    with closing(DataPlane(options.broker, options.access)) as plane:
        error = plane.missing(options.queue, options.to)
    if error is not None:
        raise UnknownQueue(f"the sink {sink.name}: {error.message}", remedy=error.remedy)


def looks(plan: PipelinePlan) -> dict[KeyPath, Callable[[], None]]:
    """Return the checks of all queues and addresses of a plan, each with the path of its key."""
    found: dict[KeyPath, Callable[[], None]] = {}
    for query in Graph(plan).queries():
        source = query.source
        if source.kafka is None:
            found["sources", source.name, "queue"] = partial(look_at_source, source)
        for sink in query.sinks:
            if sink.sends:
                key = "queue" if sink.queue is not None else "to"
                found["sinks", sink.name, key] = partial(look_at_sink, sink, plan, source)
    return found


def places_missing(plan: PipelinePlan, tell: Callable[[str], None]) -> Iterator[Wrong]:
    """Yield the queues and addresses in a file that do not exist.

    Args:
        plan: A plan without mistakes.
        tell: Called with a sentence for each server that does not answer, or refuses.
    """
    told: set[str] = set()
    for path, look in looks(plan).items():
        try:
            look()
        except UnknownQueue as error:
            yield path, error.message, error.remedy
        except (PipelineError, ConfigurationError) as error:
            if error.message not in told:
                tell(error.message)
            told.add(error.message)
