"""The messages of WS-RM as typed values: what ``wire`` decodes into and encodes from, and what the core speaks.

No XML here. Bodies and foreign headers are opaque bytes. Sections cited are those of WS-RM 1.2 unless said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, Addressing, Versions

MAX_MESSAGE_NUMBER = 2**63 - 1
"""The highest MessageNumber WS-RM 1.1 allows (its schema's MessageNumberType); WCF refuses more in 1.0 too."""

ANONYMOUS = "anonymous"
"""Stands in :class:`EndpointReference` for the anonymous address of whichever WS-Addressing version is spoken."""

NONE = "none"
"""Stands for the 2005/08 address ``none``: messages to it are discarded."""

MC_NS = "http://docs.oasis-open.org/ws-rx/wsmc/200702"
"""The namespace of WS-MakeConnection 1.0 and 1.1."""

MC_ANONYMOUS = f"{MC_NS}/anonymous?id="
"""The address of an endpoint that polls for its messages, up to its unique part (WS-MakeConnection 3.1)."""


def is_polled(address: str) -> bool:
    """Whether the endpoint with that address polls for its messages with MakeConnection."""
    return len(address) > len(MC_ANONYMOUS) and address.startswith(MC_ANONYMOUS)


@dataclass(frozen=True, slots=True)
class EndpointReference:
    """A WS-Addressing endpoint reference.

    Args:
        address: A URI as it came, octet for octet; :data:`ANONYMOUS` or :data:`NONE` for those special addresses.
        reference_parameters: Its ReferenceParameters (2004/08: and ReferenceProperties) children,
            each a self-contained XML element; they become headers of the messages to this endpoint.
    """

    address: str
    reference_parameters: tuple[bytes, ...] = ()

    @property
    def is_anonymous(self) -> bool:
        """Whether messages for it travel on the back-channel only."""
        return self.address == ANONYMOUS

    @property
    def is_none(self) -> bool:
        """Whether messages to it are discarded instead of sent."""
        return self.address == NONE

    @property
    def is_polled(self) -> bool:
        """Whether its endpoint polls for its messages with MakeConnection."""
        return is_polled(self.address)

    @property
    def is_answered(self) -> bool:
        """Whether messages for it may travel in the HTTP response to a message of its endpoint."""
        return self.address == ANONYMOUS or is_polled(self.address)


ANONYMOUS_EPR = EndpointReference(ANONYMOUS)
NONE_EPR = EndpointReference(NONE)


class IncompleteSequenceBehavior(str, Enum):
    """What a destination does with a Sequence that ends with a gap (WS-RM 3.4)."""

    DISCARD_ENTIRE_SEQUENCE = "DiscardEntireSequence"
    DISCARD_FOLLOWING_FIRST_GAP = "DiscardFollowingFirstGap"
    NO_DISCARD = "NoDiscard"


# --- header blocks ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sequence:
    """The Sequence header: message ``message_number`` of ``identifier``; ``last_message`` is 1.0's LastMessage."""

    identifier: str
    message_number: int
    last_message: bool = False


@dataclass(slots=True)
class SequenceAcknowledgement:
    """What a destination has accepted.

    ``ranges`` are (lower, upper) pairs, both inclusive, as they came: possibly unsorted, adjacent or illegal.
    Empty ``ranges`` without ``nacks`` means nothing accepted: ``None`` in 1.1, the range 0-0 in 1.0, and both are
    read into it. ``final`` is 1.1's Final. ``buffer_remaining`` is .NET's flow control extension, None when absent.
    """

    identifier: str
    ranges: tuple[tuple[int, int], ...] = ()
    nacks: tuple[int, ...] = ()
    final: bool = False
    buffer_remaining: int | None = None


@dataclass(slots=True)
class AckRequested:
    """A request to acknowledge ``identifier`` now. 1.0's hint of the highest number is read and dropped."""

    identifier: str


# --- bodies ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Offer:
    """A Sequence offered for the opposite direction. ``endpoint`` is 1.1's. ``expires`` in seconds, None: never."""

    identifier: str
    endpoint: EndpointReference | None = None
    expires: float | None = None
    incomplete_sequence_behavior: IncompleteSequenceBehavior = IncompleteSequenceBehavior.NO_DISCARD


@dataclass(slots=True)
class CreateSequence:
    """Asks for a Sequence. ``expires`` in seconds; None for absent or PT0S: never (WS-RM 3.4)."""

    acks_to: EndpointReference
    expires: float | None = None
    offer: Offer | None = None


@dataclass(slots=True)
class CreateSequenceResponse:
    """Grants it. ``accept_acks_to`` is Accept/AcksTo, None when no Offer was accepted."""

    identifier: str
    expires: float | None = None
    incomplete_sequence_behavior: IncompleteSequenceBehavior = IncompleteSequenceBehavior.NO_DISCARD
    accept_acks_to: EndpointReference | None = None


@dataclass(slots=True)
class CloseSequence:
    """Request to accept no new messages. 1.1 only. ``last_message_number`` is None if absent: no message was sent."""

    identifier: str
    last_message_number: int | None = None


@dataclass(slots=True)
class CloseSequenceResponse:
    """Answers CloseSequence."""

    identifier: str


@dataclass(slots=True)
class TerminateSequence:
    """The Sequence is over. ``last_message_number`` in 1.1 only. 2003/03 says it in a header."""

    identifier: str
    last_message_number: int | None = None


@dataclass(slots=True)
class TerminateSequenceResponse:
    """Answers TerminateSequence. 1.1 only."""

    identifier: str


@dataclass(slots=True)
class LastMessage:
    """1.0's empty-body message with the LastMessage action; its Sequence header carries the number."""


@dataclass(slots=True)
class Acknowledge:
    """An empty-body message with the SequenceAcknowledgement action: its headers are all it says."""


@dataclass(slots=True)
class RequestAcknowledgement:
    """An empty-body message with the AckRequested action."""


@dataclass(slots=True)
class MakeConnection:
    """A poll for one waiting message (WS-MakeConnection 3.2).

    Args:
        address: The address that the message must go to; "": any.
        identifier: The Sequence that the message must concern; "": any. Only drafts of the specification have it.
        unsupported: "{namespace}local" of the first other selection; "": none.
    """

    address: str = ""
    identifier: str = ""
    unsupported: str = ""


Control = (
    CreateSequence
    | CreateSequenceResponse
    | CloseSequence
    | CloseSequenceResponse
    | TerminateSequence
    | TerminateSequenceResponse
    | LastMessage
    | Acknowledge
    | RequestAcknowledgement
    | MakeConnection
)
"""Content of an RM protocol message: its body or, if that is empty, its action."""


@dataclass(slots=True)
class Fault:
    """A SOAP fault, WS-RM's or any other.

    Args:
        code: Local name: one of the WS-RM fault codes (see ``core.faults``) when ``is_rm``; else the
            most specific code's local name, e.g. "ActionNotSupported", "MustUnderstand", "Sender".
        reason: English text.
        is_rm: Whether ``code`` is in a WS-RM namespace.
        is_addressing: Whether ``code`` is in a WS-Addressing namespace.
        sender: True for Sender/Client, False for Receiver/Server.
        identifier: The Sequence it is about (detail), None if none is named.
        max_message_number: Detail of MessageNumberRollover in 1.1.
        acknowledgement: Detail of InvalidAcknowledgement: the offending header.
        detail: Other detail content: XML bytes, b"" if none. For an addressing or MustUnderstand fault, may be b"".
        code_namespace: Of the code of an application's own; "" for the codes of a specification.
        has_sequence_fault_header: Whether (SOAP 1.1) it came with a SequenceFault header. Not set by us.
        not_understood: The headers that a MustUnderstand fault from this side reports, as the envelope names them; or
            the selection of MakeConnection that an UnsupportedSelection fault reports.
        problem_header: The local name of the addressing property that an addressing fault from this side is about.
        problem_action: The action that ActionNotSupported from this side is about.
        action: The wsa:Action it came with, if a service's contract declares that one; "" for those of the
            specifications. Not set by us.
    """

    code: str
    reason: str
    is_rm: bool = False
    is_addressing: bool = False
    sender: bool = True
    identifier: str | None = None
    max_message_number: int | None = None
    acknowledgement: SequenceAcknowledgement | None = None
    detail: bytes = b""
    code_namespace: str = ""
    has_sequence_fault_header: bool = False
    not_understood: tuple[str, ...] = ()
    problem_header: str = ""
    problem_action: str = ""
    action: str = ""


# --- the envelope ----------------------------------------------------------------------------------------------------


class Expects(str, Enum):
    """What the senders of a route's messages expect."""

    ONE_WAY = "one_way"
    """The acknowledgement, at once."""
    REQUEST = "request"
    """A reply, and the acknowledgement together with it."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Destination of an application message, as the routing decided.

    Args:
        queues: The names of its queues; several queues each get a record. Empty: the message has no reader.
        replied: Whether a reader of the queues replies to requests; None: as the application's handlers declare.
        expects: What the route declares that its senders expect; None: each message declares it.
        is_sent_on: Whether a forwarder forwards the messages of each queue, which makes this side an intermediary.
        replies_at_once: Whether replies can come only in the HTTP responses of the readers' destinations. Then only
            a sender that cannot continue without a reply waits for one.
    """

    queues: tuple[str, ...]
    replied: bool | None = None
    expects: Expects | None = None
    is_sent_on: bool = False
    replies_at_once: bool = False


@dataclass(slots=True)
class Envelope:
    """One SOAP message, in or out.

    ``control`` and ``fault`` are what the Body says when it is WS-RM's or a fault; otherwise the application's
    ``body`` counts. A message may carry RM headers whatever its body is.

    Args:
        soap: Its SOAP version.
        addressing: Its WS-Addressing version; None when it has no addressing headers.
        rm: The WS-RM version of its RM headers, body or action; None when it has none.
        action: wsa:Action; "" when absent.
        to: wsa:To as it came; None when absent.
        message_id: wsa:MessageID; None when absent.
        relates_to: The reply relationship's wsa:RelatesTo; None when absent.
        reply_to, fault_to, from_: Endpoint references; None when absent (which 2005/08 reads as anonymous for ReplyTo).
        sequence: The Sequence header.
        acknowledgements: Every SequenceAcknowledgement header.
        ack_requested: Every AckRequested header.
        terminates: In only: the Sequence that a SequenceTerminate header ends in addition to the message (2003/03);
            "": none.
        control: The RM protocol message in the body, None for an application's message.
        fault: The fault in the body.
        headers: Foreign header blocks, each a self-contained XML element. (Out: written as they are.)
        known_block: In only: one of ``headers`` in a form that the wire knows, with what stands for that form, and its
            texts; None: there is no such block, or they were not taken out.
        headers_soap: Out only: the SOAP version of their attributes, such as mustUnderstand; "": that of ``soap``.
        body: The content of soap:Body, self-contained XML bytes, otherwise as it came; b"" for an empty body.
        not_understood: Names ("{namespace}local") of mustUnderstand headers for us that ``wire`` does not
            know; when the core receives the envelope, those that no component of this side knows.
        for_receiver: Those of them that are for the ultimate receiver alone: an intermediary passes them on.
        reference_parameters: Out only: the target's reference parameters, written as headers (marked in 2005/08).
        message_pending: Whether its sender has another message for the poll that it answers (WS-MakeConnection 3.3).
        contradiction: In only: how the Body and the Action contradict each other, "" if they do not.
        transport: In only: what its transport said of it, in the endpoint's own bytes, to be kept with its record.
        attachments: Its attachments, in the wire's own bytes; b"" for none.
        is_reply: Out only: whether it goes to a requester, so that a fault in its place ends the request.
        routed: In only: where an application message goes, or why it goes nowhere; None: to the queue that there is, or
            the first of several.
    """

    soap: SOAP
    addressing: Addressing | None = None
    rm: RM | None = None
    action: str = ""
    to: str | None = None
    message_id: str | None = None
    relates_to: str | None = None
    reply_to: EndpointReference | None = None
    fault_to: EndpointReference | None = None
    from_: EndpointReference | None = None
    sequence: Sequence | None = None
    acknowledgements: tuple[SequenceAcknowledgement, ...] = ()
    ack_requested: tuple[AckRequested, ...] = ()
    terminates: str = ""
    control: Control | None = None
    fault: Fault | None = None
    headers: tuple[bytes, ...] = ()
    known_block: tuple[bytes, object, tuple[str | None, ...]] | None = field(default=None, repr=False, compare=False)
    headers_soap: str = ""
    body: bytes = b""
    not_understood: tuple[str, ...] = ()
    for_receiver: tuple[str, ...] = ()
    reference_parameters: tuple[bytes, ...] = field(default=())
    message_pending: bool = False
    contradiction: str = ""
    transport: bytes = b""
    attachments: bytes = b""
    is_reply: bool = field(default=False, compare=False)
    routed: Routed | Fault | None = None

    @property
    def versions(self) -> Versions | None:
        """The combination it speaks, None while any part is unknown or they do not go together."""
        return _VERSIONS.get((self.rm, self.addressing, self.soap))


_VERSIONS: dict[tuple[RM | None, Addressing | None, SOAP], Versions] = {
    (versions.rm, versions.addressing, versions.soap): versions for versions in ALL_VERSIONS
}
