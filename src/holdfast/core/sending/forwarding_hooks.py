"""Forwarders: what the sending half asks of who knows those whose messages are sent on, and what is given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.core.messages import Envelope, Fault, SequenceAcknowledgement
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbox import Outbox


class GivesUp(Protocol):
    """What is asked of who decides which messages are not sent on."""

    def turn(self, outbox: Outbox, now: float) -> bool:
        """Whether the outbox may send now."""
        ...

    def asks_again(self, outbox: Outbox, reason: str, now: float) -> bool:
        """The destination refused every way of creating a Sequence. Whether it is asked again by itself."""
        ...

    def refused(self, outbox: Outbox, number: int, fault: Fault, now: float, *, is_final: bool = False) -> None:
        """The destination refused message ``number``; ``is_final``: it will never take it."""
        ...

    def declined(self, outbox: Outbox, number: int, fault: Fault, now: float) -> None:
        """The service refused message ``number``, which its destination acknowledges."""
        ...

    def acknowledged(self, outbox: Outbox, ack: SequenceAcknowledgement) -> None:
        """The destination says what it has, and that matters."""
        ...

    def lost(self, outbox: Outbox, source: RMSource, code: str, reason: str) -> None:
        """The destination lost the Sequence, and may have messages of it that it did not acknowledge."""
        ...

    def silent(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """The destination does not say it, however often it is asked."""
        ...


class Forwarders(Protocol):
    """What is asked of whoever knows those whose messages are sent on."""

    def has(self, outbox: Outbox, number: int, again: Callable[[float], None]) -> bool:
        """Whether message ``number``, a request, is in memory; if not, ``again(now)`` is called once it was read."""
        ...

    def replied(self, outbox: Outbox, number: int, envelope: Envelope, now: float) -> None:
        """The reply to message ``number``, which is in memory, came; it is taken in with the open batch."""
        ...

    def may_be_reply(self, query: Record, envelope: Envelope, now: float) -> bool:
        """Take the reply to a forwarded message that awaits none; whether it is one, and is kept."""
        ...

    def unanswered(self, outbox: Outbox, number: int, now: float) -> None:
        """There will be no reply to message ``number``, a request."""
        ...

    @property
    def giving_up(self) -> GivesUp:
        """Who decides which messages are not sent on."""
        ...
