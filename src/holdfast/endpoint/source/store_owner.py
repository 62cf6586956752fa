"""The owner of a source's store: a store serves one destination address at a time, and no RM Destination uses it."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.records import Snapshot
from holdfast.core.sending.outbound import Outbound
from holdfast.core.sending.outboxes.records import stored_outboxes
from holdfast.endpoint.engine.engine import SOURCES_QUEUE
from holdfast.endpoint.sending.stopped import nothing_to_resume
from holdfast.exceptions import ConfigurationError
from holdfast.store import Store, shown


def destination_of(location: str | Path | Store, to: str | None, snapshot: Snapshot, outbound: Outbound) -> str:
    """Check that a store belongs to a source of this destination, and return the destination's address.

    Args:
        location: The location of the store.
        to: The destination's address; None: the one in the store.
        snapshot: The contents of the store.
        outbound: Of the source: outboxes with nothing left are directed to another address.

    Raises:
        ConfigurationError: It belongs to another destination, or to none.
    """
    foreign = [
        name for name, queue in snapshot.queues.items() if queue.get("kind") == "inbox" and name != SOURCES_QUEUE
    ]
    if foreign:
        raise ConfigurationError(
            f"the store {shown(location)} belongs to a destination: it contains the queue {foreign[0]!r}",
            remedy="Name another store: a destination and a source each need their own.",
        )
    known = {str(outbox.about["to"]) for outbox in stored_outboxes(snapshot)}
    if to is None and len(known) == 1:
        return known.pop()
    if to is None:
        raise nothing_to_resume(shown(location))
    if known - {to}:
        outboxes = outbound.outboxes.values()
        if not all(outbox.is_empty and outbox.source is None for outbox in outboxes):
            raise ConfigurationError(
                f"the store {shown(location)} holds messages for {', '.join(sorted(known))}, not for {to}",
                remedy="Give that address, or use another store: a store serves one destination at a time.",
            )
        for outbox in outboxes:  # nothing waits in it and no Sequence is open: it may serve another one
            outbound.redirect(outbox, to)
    return to
