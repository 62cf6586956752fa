"""The description of one version of WS-ReliableMessaging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    LastMessage,
    RequestAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import RM

_ALWAYS: tuple[type[Control], ...] = (
    CreateSequence,
    CreateSequenceResponse,
    TerminateSequence,
    Acknowledge,
    RequestAcknowledgement,
)
_LOCALS: dict[type[Control], str] = {Acknowledge: "SequenceAcknowledgement", RequestAcknowledgement: "AckRequested"}
"""Actions that do not end in the name of their message."""

Bodiless = LastMessage | Acknowledge | RequestAcknowledgement
WITHOUT_BODY: tuple[type[Bodiless], ...] = (LastMessage, Acknowledge, RequestAcknowledgement)
"""The messages with an empty body, which only their action identifies."""


@dataclass(frozen=True)
class Dialect:
    """How one version of WS-RM is written. Its features follow from its capabilities
    (:class:`~holdfast.core.versions.Capabilities`); the parts that all versions share are in
    :mod:`holdfast.wire.rm`.

    Args:
        rm: The version.
        namespace: Its namespace.
        policy_assertion: Its RMAssertion in a policy, "{namespace}local".
        nothing_accepted: The content of an acknowledgement of nothing.
        range_of_nothing: The single range with the same meaning, if there is one.
        detail_wrapped: Whether SequenceFault wraps its detail in a Detail element.
        has_behavior: Whether IncompleteSequenceBehavior exists.
        fault_action: The end of the action of its faults; "": they have WS-Addressing's.
        further_bodies: Local names of further body elements that it reads.
        never_ignored: Local names of header blocks that bind a Sequence to a security context: never ignored, mandatory
            or not.
    """

    rm: RM
    namespace: str
    policy_assertion: str
    nothing_accepted: str
    range_of_nothing: tuple[int, int] | None
    detail_wrapped: bool
    has_behavior: bool
    fault_action: str
    further_bodies: Mapping[str, type[Control]] = field(default_factory=dict)
    never_ignored: tuple[str, ...] = ()

    @cached_property
    def actions(self) -> dict[type[Control], str]:
        """Type of the control message -> its wsa:Action (section 3 of each version)."""
        can = self.rm.can
        kinds = [*_ALWAYS]
        kinds += [CloseSequence, CloseSequenceResponse] if can.closes else []
        kinds += [TerminateSequenceResponse] if can.answers_terminate else []
        kinds += [LastMessage] if can.has_last_message else []
        return {kind: f"{self.namespace}/{_LOCALS.get(kind, kind.__name__)}" for kind in kinds}

    @cached_property
    def bodies(self) -> dict[str, type[Control]]:
        """Local names of the body elements that this version reads, and the message type of each."""
        named = {kind.__name__: kind for kind in self.actions if kind not in WITHOUT_BODY}
        return {**named, **self.further_bodies}

    def name(self, local: str) -> str:
        """Return the full name of one of its elements."""
        return f"{self.namespace}}}{local}"
