"""Recovering: what the store held of the sending half: its outboxes, and the Sequences that carry them."""

from __future__ import annotations

from holdfast.core.queues.queues import Queues
from holdfast.core.records import Snapshot, State
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.context import OutboxHooks
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.records import replies_queue, stored_outboxes
from holdfast.core.states.outbound import SourceState


def recover_outbound(
    registry: OutboxRegistry, hooks: OutboxHooks, queues: Queues, snapshot: Snapshot, now: float
) -> None:
    """Restore the sending half from a snapshot of the store. The outboxes get these hooks."""
    parts = snapshot.by_queue()
    for key, name, partition, about in stored_outboxes(snapshot):
        queue = queues.recover(name, parts[name], now)
        if partition >= len(queue.partitions):
            continue  # opening the queue will fail
        outbox = registry.make(key, queue, partition, about.get("to"), hooks)
        outbox.recover(about)
    for state in snapshot.sequences.values():
        if state["role"] != "source":
            continue
        outbox = _recovered_outbox(registry, hooks, queues, state, parts, now)
        available = outbox.records.run_end(state["start"]) - state["start"]
        source = RMSource.from_state(state, outbox.policy, available, now)
        # The process died before CreateSequence left, with the Sequence already durable.
        if source.state is SourceState.NONE and not source.polled:
            source.create(now)
        if source.identifier is None:
            outbox.lifecycle.recovered_creation = source.local_id
        outbox.adopt(source)
        registry.commit.settle(source.local_id, outbox.records.queue.name, outbox.records.partition, snapshot)
        if not source.polled and not outbox.is_for_replies:
            source.numbers.resume(outbox.records.durable_end - source.numbers.start, state.get("withheld"))
            if source.numbers.withheld not in (None, state.get("withheld")):
                registry.commit.save(source.local_id, source)  # before any new message is stored
        # The ranges may be newer than the cursor: they are saved separately.
        outbox.records.first = max(outbox.records.first, source.numbers.start + source.records_done)
        if source.polled:
            source.issue(now)
    for outbox in registry.outboxes.values():
        outbox.records.skip()
        outbox.ready()
        registry.reading.recover(outbox)
    # Before the first grant: until every worker has announced its own, no claim is certain.
    registry.announce()


def _recovered_outbox(
    registry: OutboxRegistry, hooks: OutboxHooks, queues: Queues, state: State, parts: dict[str, Snapshot], now: float
) -> Outbox:
    key = state["outbox"]
    if key not in registry.outboxes:
        name = replies_queue(key)
        queue = queues.recover(name, parts.get(name, Snapshot()), now)
        registry.make(key, queue, 0, state["to"], hooks)
    return registry.outboxes[key]
