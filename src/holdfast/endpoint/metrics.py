"""Prometheus metrics of a destination, read from its own counters when they are asked for. Reads no store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast.endpoint.destination import Destination


class DestinationCollector(Collector):
    """What one destination counts; names and meanings are in docs/reference/metrics.md."""

    def __init__(self, app: Destination) -> None:
        self._app = app
        self.ages: Mapping[str, Mapping[str, float]] = {}
        """For each cursor how old what it has not passed is: to be read from the store before it is asked."""

    def collect(self) -> Iterator[Metric]:
        """The metrics as they stand now."""
        app = self._app
        protocol = app.engine.protocol
        commits = app.engine.commits
        yield _counter("holdfast_messages_accepted", "Messages accepted into the queue, each once.", app.accepted)
        yield _counter("holdfast_commits", "Batches made durable.", commits.batches)
        yield _counter(
            "holdfast_commits_waited", "Those of them that were quick: the event loop waited for them.", commits.waited
        )
        yield _counter("holdfast_commit_seconds", "Seconds that the store took for them.", commits.seconds)
        pending = GaugeMetricFamily(
            "holdfast_commit_pending_seconds",
            "For how long the commit in progress has been with the disk.",
            value=commits.pending_seconds,
        )
        yield pending
        yield _counter(
            "holdfast_transmissions", "Messages sent by ourselves, repeats included.", app.sender.transmissions
        )
        incidents = CounterMetricFamily("holdfast_incidents", "What happened, by name.", labels=["name"])
        for name, count in app.incidents.items():
            incidents.add_metric([name], count)
        yield incidents
        sequences = GaugeMetricFamily("holdfast_sequences", "Sequences by role and state.", labels=["role", "state"])
        states: dict[tuple[str, str], int] = {}
        for destination in protocol.inbound.destinations.values():
            key = ("destination", destination.state.value)
            states[key] = states.get(key, 0) + 1
        for outbox in protocol.outbound.outboxes.values():
            if outbox.source is not None:
                key = ("source", outbox.source.state.value)
                states[key] = states.get(key, 0) + 1
        for (role, state), count in states.items():
            sequences.add_metric([role, state], count)
        yield sequences
        backlog = GaugeMetricFamily("holdfast_queue_records", "Records kept in a queue.", labels=["queue", "partition"])
        for queue in app.queues.values():
            for partition, (first, end) in enumerate(zip(queue.firsts, queue.ends, strict=True)):
                backlog.add_metric([queue.name, str(partition)], end - first)
        yield backlog
        yield from self._cursors()
        if app.dispatcher is not None:
            yield _counter("holdfast_messages_handled", "Messages whose handler finished.", app.dispatcher.handled)
            yield _counter("holdfast_handler_failures", "Handlers that raised.", app.dispatcher.failed)
            yield _counter("holdfast_dead_letters", "Messages set aside.", app.dispatcher.dead)
        kept = app.dead_letters.count
        yield GaugeMetricFamily("holdfast_dead_letters_kept", "Dead letters that nobody has decided on.", value=kept)

    def _cursors(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "holdfast_cursor_lag_records", "Records a cursor has not passed.", labels=["queue", "cursor", "kind"]
        )
        age = GaugeMetricFamily(
            "holdfast_cursor_age_seconds",
            "Seconds the oldest of them has been in the queue.",
            labels=["queue", "cursor", "kind"],
        )
        now = self._app.engine.clock()
        for queue in self._app.queues.values():
            for cursor in queue.cursors.values():
                described = queue.describe_cursor(cursor, now, self.ages.get(queue.name, {}))
                labels = [queue.name, described["name"], described["kind"]]
                lag.add_metric(labels, described["lag"])
                age.add_metric(labels, described["age"])
        yield lag
        yield age


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
