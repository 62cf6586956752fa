"""Hooks of an outbox that forwards: what another room decides about its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.core.messages import Envelope, Fault, SequenceAcknowledgement
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox


class UndeliverableHooks(Protocol):
    """Hooks to the component that decides which messages are not forwarded."""

    def turn(self, outbox: Outbox, now: float) -> bool: ...

    def refused(self, outbox: Outbox, number: int, fault: Fault, now: float, *, is_final: bool = False) -> None:
        """Handle a refusal of message ``number`` by the destination; ``is_final``: permanently."""
        ...

    def declined(self, outbox: Outbox, number: int, fault: Fault, now: float) -> None:
        """Handle a refusal of message ``number`` by the service, although the destination acknowledges it."""
        ...

    def acknowledged(self, outbox: Outbox, ack: SequenceAcknowledgement) -> None:
        """Handle a report of the destination which messages it has, while a decision depends on it."""
        ...

    def lost(self, outbox: Outbox, source: RMSource, code: str, reason: str) -> None:
        """Handle the loss of the Sequence by its destination, which may have unacknowledged messages."""
        ...

    def silent(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Handle a destination that does not report which messages it has, despite repeated requests."""
        ...


class Forwarders(Protocol):
    """Hooks to the component that knows the forwarders."""

    def has(self, outbox: Outbox, number: int, again: Callable[[float], None]) -> bool:
        """Whether request ``number`` is in memory; if not, ``again(now)`` follows its read."""
        ...

    def replied(self, outbox: Outbox, number: int, envelope: Envelope, now: float) -> None:
        """Store the reply to message ``number``, which is in memory, in the open batch."""
        ...

    def may_be_reply(self, query: Record, envelope: Envelope, now: float) -> bool:
        """Store a reply to a forwarded message that awaits none; return whether it is one."""
        ...

    def unanswered(self, outbox: Outbox, number: int, now: float) -> None:
        """Handle the final absence of a reply to request ``number``."""
        ...

    @property
    def giving_up(self) -> UndeliverableHooks:
        """The component that decides which messages are not forwarded."""
        ...
