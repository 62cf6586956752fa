"""Incoming: a message without a Sequence header, with what its handling needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.events import BackChannel
from holdfast.core.messages import Envelope, Fault
from holdfast.core.origin import STRANGER, Origin
from holdfast.core.rm_destination.destination import RMDestination


@dataclass(slots=True)
class Incoming:
    """A message without a Sequence header, with what its handling needs.

    Args:
        back_channel: Where its answer may go; None if the message came in a response, or is already answered.
        problem: The fault that another of its headers causes; None for none.
        asked: The Sequences with an anonymous AcksTo for which it requests an acknowledgement. A response that
            acknowledges another Sequence omits them, because .NET reads only one acknowledgement per message.
    """

    envelope: Envelope
    back_channel: BackChannel | None
    now: float
    origin: Origin = STRANGER
    problem: Fault | None = None
    asked: Sequence[RMDestination] = ()
