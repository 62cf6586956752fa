"""Incoming: a message without a Sequence header, on its way to its handler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.events import BackChannel
from holdfast.core.messages import Envelope, Fault
from holdfast.core.origin import STRANGER, Origin
from holdfast.core.receiving.destination import RMDestination


@dataclass(slots=True)
class Incoming:
    """A message without a Sequence header on its way to who takes it.

    Args:
        envelope: The message.
        back_channel: Where its answer may go; None if it came as an answer, or has its answer.
        now: Seconds.
        origin: Where it came from.
        problem: The fault for another of its headers, None for none.
        asked: The Sequences with an anonymous AcksTo that it asks an acknowledgement of. An answer that is another's
            leaves them out: .NET reads one acknowledgement in it, and no second.
    """

    envelope: Envelope
    back_channel: BackChannel | None
    now: float
    origin: Origin = STRANGER
    problem: Fault | None = None
    asked: Sequence[RMDestination] = ()
