"""A simulated service that answers some messages with a fault, once or every time.

The broker in front of it retries a one-way message. A message that the service refuses once must arrive. A message that
it refuses every time must become one dead letter of the broker. A request becomes a dead letter immediately, and its
requester receives a reply. The same applies to a request whose requester was silent for too long. An operator requeues
dead letters: each returns to its queue, and arrives once the operator has repaired the service.

The network duplicates nothing here, because a broker counts each fault. The service refuses every request from before
the repair, however late it arrives. With WS-RM 1.0, which has no final acknowledgement, a forwarder could otherwise not
know the outcome.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.policy import ForwardingPolicy, OnRefused
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Batch
from holdfast.simulation.nodes.ledger import is_reply, is_row
from holdfast.simulation.nodes.node import INBOX, Node
from holdfast.simulation.promises.delivery_invariants import letters_of
from holdfast.simulation.promises.invariant import Invariant

if TYPE_CHECKING:
    from holdfast.simulation.world import World

TIMES = 3
"""Faults before the broker makes a message a dead letter."""
PATIENT = ForwardingPolicy(expires=1e6)
"""Never gives a request up, so that each arrives however long the service is down."""
FORWARDING = replace(PATIENT, refusals=TIMES, patience=0.5, on_refused=OnRefused.DEAD_LETTER)


class RefusingService:
    """Decides which messages a service refuses.

    Args:
        every: The service refuses each ``every``-th message every time, and the message before it once.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.repaired_after: int | None = None
        """The last request before the repair of the service; None: it is not repaired."""
        self.refused: set[bytes] = set()
        """Bodies of the messages that it has refused so far."""

    def refuses(self, body: bytes, journey: int) -> bool:
        """Whether the service refuses a message that arrives with this request."""
        is_repaired = self.repaired_after is not None and journey > self.repaired_after
        if is_repaired or not body.startswith(b"m"):
            return False
        is_next = int(body[1:]) % self.every == self.every - 2
        is_refused = self.is_for_good(body) or (is_next and body not in self.refused)
        if is_refused:
            self.refused.add(body)
        return is_refused

    def is_for_good(self, body: bytes) -> bool:
        """Whether the service refuses a message every time, until it is repaired."""
        return not is_reply(body) and not is_row(body) and int(body[1:]) % self.every == self.every - 1


class RefusedInOnePlace(Invariant):
    """A broker's dead letters are requests and messages that the service always refuses, each once.

    The reply to the requester is in the same batch.
    """

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        service = world.service
        letters = letters_of(batch) if node.setup.forwards else []
        if service is None or not letters:
            return
        disk = world.ledger.disks[node.index]
        for letter in letters:
            body = letter.body.decode()
            is_request = letter.body in world.ledger.wants_reply
            if not service.is_for_good(letter.body) and not is_request:
                self.broken(f"{body}, which the service refuses only once, becomes a dead letter of {node.name}")
            numbers = [number for number, one in enumerate(disk.letters, 1) if one.body == letter.body]
            if sum(number not in disk.letters_over for number in numbers) > 1:
                self.broken(f"{body} is a dead letter of {node.name} twice")
            if is_request and b"r" + letter.body[1:] not in disk.replies:
                self.broken(f"{body} becomes a dead letter of {node.name} without a reply to its requester")


class RequeuedInOneBatch(Invariant):
    """The batch that ends a broker's dead letter puts the message into its queue once, and no other batch does."""

    def __init__(self) -> None:
        self._over = AcknowledgementRanges()

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if not node.setup.forwards:
            return
        disk = world.ledger.disks[node.index]
        over = [number for lower, upper in disk.letters_over for number in range(lower, upper + 1)]
        requeued = sorted(disk.letters[number - 1].body for number in over if number not in self._over)
        self._over = disk.letters_over.copy()
        known = {one.body for one in disk.letters}
        queued = sorted(record.body for queue, _, _, record in batch.appends if queue == INBOX and record.body in known)
        if queued != requeued:
            self.broken(f"{node.name} queues {queued} again in the batch that ends the dead letters {requeued}")


def dead_letters(world: World) -> set[bytes]:
    """Return the bodies of the messages that are dead letters of the broker."""
    found = set()
    for node in world.nodes[1:-1]:
        disk = world.ledger.disks[node.index]
        found |= {one.body for number, one in enumerate(disk.letters, 1) if number not in disk.letters_over}
    return found


def unsettled(world: World) -> str | None:
    """Describe a refused message that is in the wrong place at the end; None otherwise."""
    service = world.service
    if service is None:
        return None
    buried = dead_letters(world)
    if service.repaired_after is not None:
        return f"{min(buried).decode()} is still a dead letter" if buried else None
    sent = [queued.body for records in world.ledger.disks[1].queues.values() for queued in records]
    missing = next((body for body in sent if service.is_for_good(body) and body not in buried), None)
    return None if missing is None else f"{missing.decode()}, which the service refuses, has not become a dead letter"
