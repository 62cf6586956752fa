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

EARLY_ASSERTIONS = (
    "InactivityTimeout",
    "BaseRetransmissionInterval",
    "ExponentialBackoff",
    "AcknowledgementInterval",
    "DeliveryAssurance",
)
"""Local names of the assertions before WS-RM 1.0, which stand in a policy without an RMAssertion around them."""

UTILITY_NS = "http://schemas.xmlsoap.org/ws/2002/07/utility"
"""The namespace of Identifier before WS-RM 1.0."""

_ALWAYS: tuple[type[Control], ...] = (TerminateSequence, Acknowledge, RequestAcknowledgement)
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
        policy_assertions: Assertions that demand it in a policy, "{namespace}local": its RMAssertion, or before 1.0
            any of its timers and its DeliveryAssurance.
        nothing_accepted: The content of an acknowledgement of nothing.
        range_of_nothing: The single range with the same meaning, if there is one.
        detail_wrapped: Whether SequenceFault wraps its detail in a Detail element.
        has_behavior: Whether IncompleteSequenceBehavior exists.
        has_nack: Whether an acknowledgement can have Nacks.
        fault_identified: Whether SequenceFault begins with the Identifier.
        fault_detailed: Whether SequenceFault must have a detail.
        fault_action: The end of the action of its faults; "": they have WS-Addressing's.
        identifier_namespace: The namespace of Identifier; "": its own.
        acknowledgement: The local name of the acknowledgement's header.
        acknowledgement_range: The local name of its ranges.
        terminate_header: The local name of the header that ends a Sequence, where no body does.
        separators: What may stand between the namespace and the name in an action, the written one first.
        further_bodies: Local names of further body elements that it reads.
        never_ignored: Local names of header blocks that bind a Sequence to a security context: never ignored, mandatory
            or not.
    """

    rm: RM
    namespace: str
    policy_assertions: tuple[str, ...]
    nothing_accepted: str
    range_of_nothing: tuple[int, int] | None
    detail_wrapped: bool
    has_behavior: bool
    fault_action: str
    has_nack: bool = True
    fault_identified: bool = False
    fault_detailed: bool = False
    identifier_namespace: str = ""
    acknowledgement: str = "SequenceAcknowledgement"
    acknowledgement_range: str = "AcknowledgementRange"
    terminate_header: str = ""
    separators: str = "/"
    further_bodies: Mapping[str, type[Control]] = field(default_factory=dict)
    never_ignored: tuple[str, ...] = ()

    @cached_property
    def actions(self) -> dict[type[Control], str]:
        """Type of the control message -> its wsa:Action (section 3 of each version)."""
        can = self.rm.can
        kinds = [*_ALWAYS]
        kinds += [CreateSequence, CreateSequenceResponse] if can.creates else []
        kinds += [CloseSequence, CloseSequenceResponse] if can.closes else []
        kinds += [TerminateSequenceResponse] if can.answers_terminate else []
        kinds += [LastMessage] if can.has_last_message else []
        locals_: dict[type[Control], str] = {Acknowledge: self.acknowledgement, RequestAcknowledgement: "AckRequested"}
        if self.terminate_header:
            locals_[TerminateSequence] = self.terminate_header
        return {kind: f"{self.namespace}{self.separators[0]}{locals_.get(kind, kind.__name__)}" for kind in kinds}

    @cached_property
    def read_actions(self) -> dict[str, type[Control]]:
        """Each wsa:Action that it reads -> the type of the control message."""
        end = len(self.namespace) + 1
        return {
            f"{self.namespace}{separator}{action[end:]}": kind
            for kind, action in self.actions.items()
            for separator in self.separators
        }

    @cached_property
    def bodies(self) -> dict[str, type[Control]]:
        """Local names of the body elements that this version reads, and the message type of each."""
        without = (*WITHOUT_BODY, TerminateSequence) if self.terminate_header else WITHOUT_BODY
        named = {kind.__name__: kind for kind in self.actions if kind not in without}
        return {**named, **self.further_bodies}

    def name(self, local: str) -> str:
        """Return the full name of one of its elements."""
        return f"{self.namespace}}}{local}"

    @cached_property
    def identifier_name(self) -> str:
        return f"{self.identifier_namespace or self.namespace}}}Identifier"

    @cached_property
    def identifier_tag(self) -> str:
        """The name of Identifier as it is written, with a prefix of :attr:`declarations`."""
        return "wsu:Identifier" if self.identifier_namespace else "wsrm:Identifier"

    @cached_property
    def declarations(self) -> str:
        """The declarations of the prefixes of its elements."""
        utility = f' xmlns:wsu="{self.identifier_namespace}"' if self.identifier_namespace else ""
        return f' xmlns:wsrm="{self.namespace}"{utility}'
