"""Mailboxes: what waits for the peers that poll with MakeConnection, one mailbox for each of their addresses.

Replies wait in their outboxes, which are durable. A mailbox knows the outboxes that send to its address, and keeps the
other messages: acknowledgements, faults and notifications. These are in memory, because the peer's next message causes
them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.core.deadlines import Deadlines
from holdfast.core.messages import Acknowledge, EndpointReference, Envelope, is_polled
from holdfast.core.origin import owner_of

MOST_MESSAGES = 8
"""Messages in one mailbox besides those of outboxes. The oldest is dropped for another one."""
MOST_BYTES = 64 * 1024
"""Approximate bytes of these messages."""
MOST_BYTES_IN_ALL = 4 * 1024 * 1024
"""Approximate bytes of these messages in all mailboxes."""


def weight(envelope: Envelope) -> int:
    """Return the approximate bytes of a message without a body of an application."""
    ranges = sum(len(one.ranges) + len(one.nacks) for one in envelope.acknowledgements)
    fault = envelope.fault
    detail = len(fault.detail) + len(fault.reason) if fault is not None else 0
    if fault is not None and fault.acknowledgement is not None:
        ranges += len(fault.acknowledgement.ranges)
    return 1024 + 64 * ranges + detail


class Mailbox:
    """What waits for one address."""

    __slots__ = ("address", "messages", "outboxes", "owner", "polled_at", "sequences", "size")

    def __init__(self, address: str) -> None:
        self.address = address
        self.owner = ""
        """The authenticated party that owns the address; "": everyone who knows it may poll."""
        self.outboxes: dict[str, None] = {}
        """Keys of the outboxes that send there, the next one to serve first."""
        self.sequences: set[str] = set()
        """Identifiers of the inbound Sequences with this address as AcksTo."""
        self.messages: list[Envelope] = []
        self.size = 0
        self.polled_at: float | None = None
        """When its peer last polled, or when this process learned of it; None: the next pump sets it."""

    @property
    def is_unused(self) -> bool:
        """Whether neither an outbox nor a Sequence has the address."""
        return not self.outboxes and not self.sequences


class Mailboxes:
    def __init__(self) -> None:
        self._boxes: dict[str, Mailbox] = {}
        self._deadlines = Deadlines()
        self._size = 0
        self.serving: str | None = None
        """Key of the outbox that may transmit one message now, because a poll takes it; None: none may."""

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(self._boxes.values())

    def get(self, address: str) -> Mailbox | None:
        """Return the mailbox of an address; None for an address that no Sequence and no reply has."""
        return self._boxes.get(address)

    def refusal(self, party: str, *references: EndpointReference | None) -> str:
        """Return why a party may not use one of these addresses: another user owns it; "" if it may use all."""
        for reference in references:
            box = self._boxes.get(reference.address) if reference is not None else None
            if box is not None and box.owner and box.owner != owner_of(party):
                return f"The address {box.address} belongs to another user."
        return ""

    # --- which there are ------------------------------------------------------------------------------------------

    def add_outbox(self, address: str | None, key: str, owner: str = "") -> None:
        """Register an outbox, if it sends to a peer that polls."""
        if address is not None and is_polled(address):
            self._box(address, owner).outboxes[key] = None

    def remove_outbox(self, address: str | None, key: str) -> None:
        box = self._boxes.get(address or "")
        if box is not None:
            box.outboxes.pop(key, None)
            self._leave(box)

    def add_sequence(self, address: str, identifier: str, owner: str) -> None:
        """Register an inbound Sequence, if its AcksTo is the address of a peer that polls."""
        if is_polled(address):
            self._box(address, owner).sequences.add(identifier)

    def remove_sequence(self, address: str, identifier: str) -> None:
        box = self._boxes.get(address)
        if box is not None:
            box.sequences.discard(identifier)
            self._leave(box)

    def _box(self, address: str, owner: str) -> Mailbox:
        box = self._boxes.get(address)
        if box is None:
            box = self._boxes[address] = Mailbox(address)
            self._deadlines.want(address, 0.0)
        box.owner = box.owner or owner
        return box

    def _leave(self, box: Mailbox) -> None:
        if box.is_unused:
            self._size -= box.size
            del self._boxes[box.address]
            self._deadlines.forget(box.address)

    # --- messages -------------------------------------------------------------------------------------------------

    def put(self, address: str, envelope: Envelope) -> None:
        """Keep a message for the next poll. It replaces an earlier one with the same meaning.

        A peer with an unknown address gets nothing: it has no Sequence here.
        """
        box = self._boxes.get(address)
        if box is None:
            return
        for known in [one for one in box.messages if _means(one) == _means(envelope)]:
            self._drop(box, known)
        size = weight(envelope)
        while box.messages and (len(box.messages) >= MOST_MESSAGES or box.size + size > MOST_BYTES):
            self._drop(box, box.messages[0])
        # Not kept: the peer's next message causes it again.
        if size > MOST_BYTES or self._size + size > MOST_BYTES_IN_ALL:
            return
        box.messages.append(envelope)
        box.size += size
        self._size += size

    def take(self, box: Mailbox) -> Envelope | None:
        """Return and remove the oldest message; None without one."""
        if not box.messages:
            return None
        envelope = box.messages[0]
        self._drop(box, envelope)
        return envelope

    def only_acknowledges(self, box: Mailbox) -> bool:
        """Whether the oldest message only acknowledges: a reply does that, too, so it may go first."""
        return bool(box.messages) and type(box.messages[0].control) is Acknowledge

    def acknowledged(self, box: Mailbox, envelope: Envelope) -> None:
        """Drop the acknowledgements that go in another message to the peer; Metro polls every 2.5 seconds."""
        told = {one.identifier for one in envelope.acknowledgements if not one.final}
        for known in [one for one in box.messages if type(one.control) is Acknowledge]:
            # A final acknowledgement is said only once, so no other message stands for it.
            if all(one.identifier in told and not one.final for one in known.acknowledgements):
                self._drop(box, known)

    def _drop(self, box: Mailbox, envelope: Envelope) -> None:
        box.messages.remove(envelope)
        box.size -= weight(envelope)
        self._size -= weight(envelope)

    # --- what an outbox may send ----------------------------------------------------------------------------------

    def claim(self, _size: int = 0) -> bool:
        """Whether the outbox that a poll serves may transmit; true once for each poll."""
        is_free, self.serving = self.serving is not None, None
        return is_free

    # --- time -----------------------------------------------------------------------------------------------------

    def polled(self, box: Mailbox, now: float) -> None:
        box.polled_at = now

    def deadline(self) -> float | None:
        """Return when :meth:`abandoned` must be called next; None: not before an event."""
        return self._deadlines.next()

    def abandoned(self, timeout: float | None, is_open: Callable[[str], bool], now: float) -> list[Mailbox]:
        """Return the mailboxes without an open Sequence and without a poll in the last ``timeout`` seconds."""
        found = []
        for address in self._deadlines.due(now):
            box = self._boxes[address]
            if box.polled_at is None:
                box.polled_at = now
            # Without an inactivity timeout, a peer may come back at any time.
            if timeout is None:
                continue
            is_late = now >= box.polled_at + timeout
            self._deadlines.want(address, (now if is_late else box.polled_at) + timeout)
            if is_late and not any(map(is_open, box.sequences)):
                found.append(box)
        return found


def _means(envelope: Envelope) -> tuple[object, ...]:
    """Return a value that two messages share if the later one makes the earlier one superfluous."""
    if type(envelope.control) is Acknowledge:
        return (Acknowledge, *(one.identifier for one in envelope.acknowledgements))
    if envelope.fault is not None:
        return (envelope.fault.code, envelope.fault.identifier, envelope.relates_to)
    return (type(envelope.control), envelope.message_id, envelope.relates_to)
