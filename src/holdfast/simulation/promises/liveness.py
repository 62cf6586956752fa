"""Liveness: once the faults are over, every message arrives, every request has its reply, and every Sequence ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.sending.outboxes.records import outbox_queue
from holdfast.simulation.nodes.node import OUTBOX
from holdfast.simulation.promises.invariant import skips
from holdfast.simulation.promises.refusals import dead_letters

if TYPE_CHECKING:
    from holdfast.simulation.world import World


def unfinished(world: World, *, may_stop: bool) -> str | None:
    """Describe what is unfinished; None if everything is finished.

    Args:
        world: The world to check.
        may_stop: Whether Sequences may be lost there; their inactivity timeout then ends them.
    """
    source, destination = world.nodes[0], world.nodes[-1]
    ledger = world.ledger
    if not world.has_ended or source.outbox is None or not source.outbox.records.is_empty:
        return "the source has not ended"
    disk = ledger.disks[-1]
    queued = {record.body for records in disk.queues.values() for record in records}
    buried = dead_letters(world)
    discarded = {disk.records[key].body for key in disk.dropped}
    for record in ledger.disks[0].outbound[outbox_queue(OUTBOX)]:
        if record.body in buried:
            pass  # ``unsettled`` checks whether it may stay a dead letter
        elif record.body not in queued and record.body not in discarded and not skips(destination):
            return f"{record.body.decode()} has not reached the application"
        has_reply = b"r" + record.body[1:] in ledger.disks[0].replies
        if record.wants_reply and not has_reply and not ledger.is_discarded(record.body):
            return f"the reply to {record.body.decode()} has not arrived"
    for partition, records in disk.queues.items():
        done = disk.done.get(partition)
        if done is None or not done.covers(len(records)):
            return "the handler has not finished"
    handled = [ledger.disks[node.index] for node in world.nodes if not node.setup.forwards]
    if any(not one.letters_over.covers(len(one.letters)) for one in handled):
        return "there are dead letters"
    for node in world.nodes:
        if node.setup.forwards and not all(one.records.is_empty for one in node.protocol.outbound.outboxes.values()):
            return f"{node.name} awaits acknowledgements of the messages it forwarded"
    if any(node.store.pending for node in world.nodes):
        return "a batch is not durable"
    return None if may_stop else _open_sequences(world)


def _open_sequences(world: World) -> str | None:
    """Describe an open Sequence of the source; both sides must durably end each of them."""
    carried = {name for name, _ in world.ledger.words[0].bodies}
    for name, state in world.ledger.disks[1].behaviors.items():
        if name in carried and state["accepted"] and state["state"] != "terminated":
            return f"{name} is still {state['state']} at the destination"
    return None
