"""Prometheus metrics of a destination, read from its own counters when they are asked for. Reads no store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.endpoint.journal.writer import Journal
from holdfast.endpoint.sending.outboxes import FORWARDER_STATES, forwarder_of, state_of
from holdfast.store.durations import Durations


class DestinationCollector(Collector):
    """Metrics of one destination. Names and meanings are in docs/reference/metrics.md."""

    def __init__(self, app: RunningDestination) -> None:
        self._app = app
        self.ages: Mapping[str, Mapping[str, float]] = {}
        """For each cursor how old what it has not passed is: to be read from the store before it is asked."""
        self.oldest: Mapping[str, float | None] = {}
        """For each queue, the age of its oldest record, None if it is empty; also read from the store beforehand."""
        self._before: dict[str, tuple[int, int]] = {}

    def collect(self) -> Iterator[Metric]:
        app = self._app
        commits = app.engine.commits
        yield _counter("holdfast_messages_accepted", "Messages accepted into queues, each counted once.", app.accepted)
        yield _counter("holdfast_commits", "Batches committed to the store.", commits.batches)
        yield _counter(
            "holdfast_commits_waited",
            "Batches that the event loop waited for, because they were quick.",
            commits.waited,
        )
        yield _histogram("holdfast_commit_seconds", "Duration of a commit in seconds.", commits.durations)
        yield GaugeMetricFamily(
            "holdfast_commit_pending_seconds",
            "Seconds since the commit in progress started.",
            value=commits.pending_seconds,
        )
        yield GaugeMetricFamily(
            "holdfast_store_failing",
            "1 while the store accepts no new messages, because of its disk, its database or Kafka; else 0.",
            value=app.store.trouble is not None,
        )
        yield _counter("holdfast_transmissions", "Messages sent, including retransmissions.", app.sender.transmissions)
        again = CounterMetricFamily(
            "holdfast_retransmissions", "Retransmitted messages by forwarder.", labels=["forwarder"]
        )
        for name, count in app.sender.retransmissions.items():
            again.add_metric([name], count)
        yield again
        yield _histogram(
            "holdfast_request_seconds",
            "Seconds from a request's envelope to its answer, sampled from one request in sixteen.",
            app.unanswered.durations,
        )
        incidents = CounterMetricFamily("holdfast_incidents", "Incidents by name.", labels=["name"])
        for name, count in app.incidents.items():
            incidents.add_metric([name], count)
        yield incidents
        yield self._sequences()
        yield from self._queues()
        yield from self._cursors()
        yield from self._forwarders()
        if app.journal is not None:
            yield from _journal(app.journal)
        yield from self._sinks()
        if app.dispatcher is not None:
            yield _counter(
                "holdfast_messages_handled", "Messages that a handler completed.", app.dispatcher.handling.succeeded
            )
            yield _counter(
                "holdfast_handler_failures", "Handler calls that raised an error.", app.dispatcher.handling.failed
            )
            running = app.dispatcher.handling.started
            yield GaugeMetricFamily(
                "holdfast_handlers_running", "Handlers that run now, at most `concurrency`.", value=len(running)
            )
            yield GaugeMetricFamily(
                "holdfast_handler_oldest_seconds",
                "Seconds since the oldest running handler started; 0 if none runs.",
                value=running.oldest(app.engine.clock()),
            )
        yield _counter(
            "holdfast_dead_letters", "Messages that became dead letters.", app.incidents["dead_letter.added"]
        )
        yield GaugeMetricFamily("holdfast_dead_letters_kept", "Current dead letters.", value=app.dead_letters.count)

    def _sequences(self) -> Metric:
        sequences = GaugeMetricFamily("holdfast_sequences", "Sequences by role and state.", labels=["role", "state"])
        protocol = self._app.engine.protocol
        states = Counter(("destination", one.state.value) for one in protocol.inbound.destinations.values())
        sources = (outbox.source for outbox in protocol.outbound.outboxes.values())
        states.update(("source", one.state.value) for one in sources if one is not None)
        for labels, count in states.items():
            sequences.add_metric(labels, count)
        return sequences

    def begin(self) -> None:
        """Count from here on what comes into queues and is deleted."""
        queues = self._app.queues.values()
        self._before = {queue.name: (sum(queue.records.firsts), sum(queue.records.ends)) for queue in queues}

    def _queues(self) -> Iterator[Metric]:
        backlog = GaugeMetricFamily("holdfast_queue_records", "Records in a queue.", labels=["queue", "partition"])
        size = GaugeMetricFamily(
            "holdfast_queue_bytes",
            "Bytes of the records in a queue, if its retention limits the size.",
            labels=["queue"],
        )
        age = GaugeMetricFamily(
            "holdfast_queue_age_seconds", "Age of the oldest record in a queue in seconds.", labels=["queue"]
        )
        limit = GaugeMetricFamily(
            "holdfast_queue_limit_records", "Number of records at which a queue is full.", labels=["queue"]
        )
        full = GaugeMetricFamily(
            "holdfast_queue_full", "1 while a queue with a limit refuses messages, else 0.", labels=["queue"]
        )
        into = CounterMetricFamily("holdfast_queue_accepted", "Records added to a queue.", labels=["queue"])
        gone = CounterMetricFamily("holdfast_queue_deleted", "Records deleted from a queue.", labels=["queue"])
        numbers, limits = numbering_of(self._app), self._app.engine.protocol.inbound.limits
        for queue in self._app.queues.values():
            for own, (first, end) in enumerate(zip(queue.records.firsts, queue.records.ends, strict=True)):
                backlog.add_metric([queue.name, str(numbers.of(queue).partition(own))], end - first)
            if (held := queue.records.bytes_held) is not None:
                size.add_metric([queue.name], held)
            if queue.name in self.oldest:
                age.add_metric([queue.name], self.oldest[queue.name] or 0.0)
            if (bound := limits.get(queue.name)) is not None:
                limit.add_metric([queue.name], bound.records)
                full.add_metric([queue.name], not bound.has_room())
            firsts, ends = self._before.get(queue.name, (0, 0))
            into.add_metric([queue.name], sum(queue.records.ends) - ends)
            gone.add_metric([queue.name], sum(queue.records.firsts) - firsts)
        yield from (backlog, size, age, limit, full, into, gone)

    def _forwarders(self) -> Iterator[Metric]:
        """Yield metrics of forwarders only: the configuration names them, while a client chooses another outbox's
        address."""
        lag = GaugeMetricFamily(
            "holdfast_forwarder_waiting_records",
            "Records that the destination has not acknowledged.",
            labels=["forwarder"],
        )
        flight = GaugeMetricFamily(
            "holdfast_forwarder_in_flight", "Messages in flight: sent and not acknowledged.", labels=["forwarder"]
        )
        retracted = CounterMetricFamily(
            "holdfast_forwarder_retracted",
            "Messages that the destination acknowledged and no longer does, also before a restart.",
            labels=["forwarder"],
        )
        parts = GaugeMetricFamily(
            "holdfast_forwarder_partitions", "Partitions of a forwarder by state.", labels=["forwarder", "state"]
        )
        open_ = GaugeMetricFamily(
            "holdfast_forwarder_circuit_open",
            "1 while the forwarder does not send because its destination does not answer, else 0.",
            labels=["forwarder"],
        )
        failures = GaugeMetricFamily(
            "holdfast_forwarder_failures",
            "Consecutive attempts without an answer from the destination.",
            labels=["forwarder"],
        )
        outbound = self._app.engine.protocol.outbound
        circuits = {one["to"]: one for one in outbound.circuits.describe(self._app.engine.clock())}
        found: dict[str, list[Outbox]] = {}
        for outbox in outbound.outboxes.values():
            name = forwarder_of(outbox.key)
            if name is not None:
                found.setdefault(name, []).append(outbox)
        for name, outboxes in found.items():
            lag.add_metric([name], sum(one.records.waiting for one in outboxes))
            flight.add_metric([name], sum(len(one.source.flight) for one in outboxes if one.source is not None))
            retracted.add_metric([name], sum(one.lifecycle.retracted.count for one in outboxes))
            states = Counter(state_of(one) for one in outboxes)
            for state in FORWARDER_STATES:
                parts.add_metric([name, state], states[state])
            circuit = circuits.get(outboxes[0].to or "")
            if circuit is not None:
                open_.add_metric([name], circuit["open_for"] is not None)
                failures.add_metric([name], circuit["failures"])
        yield from (lag, flight, retracted, parts, open_, failures)

    def _sinks(self) -> Iterator[Metric]:
        """Yield metrics of all sinks together: clients choose sink names, so the metrics have no per-sink label."""
        staging = self._app.engine.protocol.staging
        every = staging.every
        staged = sum(part.rows for sink in every for part in sink.staged)
        moving = sum(sink.rows_moving for sink in every)
        waiting = sum(bool(sink.waits_for) for sink in every)
        yield GaugeMetricFamily("holdfast_sinks", "Sinks of external writers.", value=len(every))
        yield GaugeMetricFamily("holdfast_sink_rows_staged", "Staged rows that are not published.", value=staged)
        yield GaugeMetricFamily(
            "holdfast_sink_rows_moving", "Published rows that are not yet in their queues.", value=moving
        )
        yield GaugeMetricFamily(
            "holdfast_sink_bytes",
            "Bytes of staged rows and of published rows that are not yet in their queues.",
            value=staging.bytes_held,
        )
        yield GaugeMetricFamily(
            "holdfast_sinks_waiting",
            "Sinks with rows that wait because a queue is full or no longer exists.",
            value=waiting,
        )
        yield _counter("holdfast_sink_rows_published", "Rows published.", staging.rows_published)

    def _cursors(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "holdfast_cursor_lag_records", "Records that a cursor has not passed.", labels=["queue", "cursor", "kind"]
        )
        age = GaugeMetricFamily(
            "holdfast_cursor_age_seconds",
            "Age of the oldest record that a cursor has not passed, in seconds.",
            labels=["queue", "cursor", "kind"],
        )
        now = self._app.engine.clock()
        for queue in self._app.queues.values():
            ages = self.ages.get(queue.name, {})
            for cursor in queue.cursors.values():
                described = queue.cursors.shown(cursor, now, ages.get(cursor.name, 0.0))
                labels = [queue.name, described["name"], described["kind"]]
                lag.add_metric(labels, described["lag"])
                age.add_metric(labels, described["age"])
        yield lag
        yield age


def _journal(journal: Journal) -> Iterator[Metric]:
    yield _counter("holdfast_journal_events", "Events written to the journal.", journal.written)
    yield _counter("holdfast_journal_events_lost", "Events that could not be written to the journal.", journal.lost)
    yield GaugeMetricFamily(
        "holdfast_journal_failing",
        "1 while the journal cannot be written, else 0.",
        value=bool(journal.trouble),
    )
    yield GaugeMetricFamily("holdfast_journal_bytes", "Size of the journal's files in bytes.", value=journal.bytes)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, durations: Durations) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=list(durations.buckets()), sum_value=durations.seconds)
