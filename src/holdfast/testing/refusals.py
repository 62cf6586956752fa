"""A simulated service that answers some messages with a fault: some once, some each time.

The broker in front of it retries. A message that the service refuses once must arrive. A message that it refuses each
time must become one dead letter of the broker, and its requester must receive a reply.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.core.messages import Envelope
from holdfast.core.policy import ForwardingPolicy, OnRefused
from holdfast.core.records import Batch
from holdfast.testing.invariants import Invariant, letters_of
from holdfast.testing.ledger import is_reply, is_row
from holdfast.testing.node import Node

if TYPE_CHECKING:
    from holdfast.testing.world import World

TIMES = 3
"""Refusals before the broker gives a message up. A message that is refused once has at most two: the network may double
the fault."""
FORWARDING = ForwardingPolicy(refusals=TIMES, patience=0.5, on_refused=OnRefused.DEAD_LETTER)


class RefusingService:
    """Decide which messages a service refuses.

    Args:
        every: The service refuses every so many-th message each time, and the message before it once.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._arrivals: Counter[bytes] = Counter()

    def refuses(self, envelope: Envelope) -> bool:
        """Whether the service refuses a message that arrives now."""
        body = envelope.body
        if not body.startswith(b"m"):
            return False
        self._arrivals[body] += 1
        is_late = int(body[1:]) % self.every == self.every - 2
        return self.is_for_good(body) or (is_late and self._arrivals[body] == 1)

    def is_for_good(self, body: bytes) -> bool:
        """Whether the service refuses a message each time."""
        return not is_reply(body) and not is_row(body) and int(body[1:]) % self.every == self.every - 1


class RefusedInOnePlace(Invariant):
    """A broker's dead letters are the messages that the service refuses each time, each once, and the requester's reply
    is in the same batch."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        service = world.service
        letters = letters_of(batch) if node.setup.forwards else []
        if service is None or not letters:
            return
        disk = world.ledger.disks[node.index]
        for letter in letters:
            body = letter.body.decode()
            if not service.is_for_good(letter.body):
                self.broken(f"{body}, which the service refuses only once, becomes a dead letter of {node.name}")
            if [one.body for one in disk.letters].count(letter.body) > 1:
                self.broken(f"{body} becomes a dead letter of {node.name} twice")
            if letter.body in world.ledger.wants_reply and b"r" + letter.body[1:] not in disk.replies:
                self.broken(f"{body} becomes a dead letter of {node.name} without a reply to its requester")


def not_buried(world: World) -> str | None:
    """Return which refused message is not a dead letter of the broker yet, in words; None if all are."""
    service = world.service
    if service is None:
        return None
    buried = {letter.body for letter in world.ledger.disks[1].letters}
    sent = [queued.body for records in world.ledger.disks[1].queues.values() for queued in records]
    missing = next((body for body in sent if service.is_for_good(body) and body not in buried), None)
    return None if missing is None else f"{missing.decode()}, which the service refuses, is no dead letter"
