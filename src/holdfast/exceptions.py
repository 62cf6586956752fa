"""Every error Holdfast raises on purpose, as one tree. The bottom layer: imports nothing of ours.

::

    HoldfastError
    ├── ConfigurationError            a setting is wrong: says which, and the nearest right one
    │   └── ConfigurationMistakes     a configuration file with mistakes: says all of them, each with its line
    ├── EnvelopeError                 bytes that are no acceptable SOAP message (the peer's mistake)
    │   ├── VersionMismatch           not a SOAP 1.1 or 1.2 envelope
    │   ├── MustUnderstand            a mandatory header nobody here understands
    │   ├── AddressingError           WS-Addressing headers missing, doubled or malformed
    │   └── LimitExceeded             too large, too deep, too many headers
    ├── SequenceFault                 one subclass per WS-RM fault code, raised by us or told by the peer
    │   ├── SequenceTerminated        ├── UnknownSequence         ├── InvalidAcknowledgement
    │   ├── MessageNumberRollover     ├── CreateSequenceRefused   ├── SequenceClosed
    │   └── WSRMRequired              └── LastMessageNumberExceeded
    ├── ProcessorError                what a processor of an endpoint says of a message
    │   ├── UnknownExchange           it knows nothing of this exchange: the next processor
    │   ├── NotForThisRole            it has nothing to do at this endpoint: the next processor
    │   ├── MessageFlowError          not now: whoever sent it, or we, try again
    │   ├── ProcessingError           not as it is: refused with a fault, or not sent until somebody decides
    │   └── ProcessorFailed           it raised anything else: a bug in it
    ├── PeerFault                     any other SOAP fault the peer answered with
    ├── DeliveryError                 a promise to the application cannot be kept
    │   ├── NotAcknowledged           not acknowledged in time; the message is still stored and still tried
    │   └── SequenceLost              the peer no longer knows the sequence; says which numbers are in doubt
    └── StoreError                    named by the remedy
        ├── StoreLocked               another process has it open: stop that one
        ├── StoreFormatError          written by another version: upgrade Holdfast, or use another directory
        │   └── StoreMissing          there is none, and none was to be made
        └── StoreFailed               the disk said no: free space or repair, then start again
            ├── StoreAway             its database does not answer yet: an endpoint that starts waits for it
            └── StoreDamaged          what is there is not what was written: holdfast store check, then a copy or repair

Any other exception that leaves Holdfast is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class HoldfastError(Exception):
    """Base of every deliberate error.

    Args:
        message: What happened, to which sequence and number, and what is safe.
        remedy: What the reader can do about it; printed on a line of its own.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class ConfigurationError(HoldfastError):
    """A setting that cannot be used as given."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a configuration file.

    Attributes:
        file: The file.
        line: Its line there, from 1.
        key: The key, from the top of the file: ``forwarders.orders.to``; "" for the file itself.
        what: What is wrong, a sentence.
        remedy: The mend, another.
    """

    file: str
    line: int
    key: str
    what: str
    remedy: str

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        return f"{self.file}:{self.line}: {key}{self.what}{'' if self.what.endswith('.') else '.'} {self.remedy}"


class ConfigurationMistakes(ConfigurationError):
    """A configuration file with mistakes.

    Args:
        mistakes: All of them, in the order of their lines.
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        told = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        lines = "".join(f"\n{mistake}" for mistake in mistakes)
        super().__init__(f"{mistakes[0].file} has {told}, and nothing of it is used:{lines}")
        self.mistakes = tuple(mistakes)


class EnvelopeError(HoldfastError):
    """Bytes that are not an acceptable SOAP message.

    ``soap`` is the version to answer in ("1.1" or "1.2"), "" while it is unknown.
    """

    def __init__(self, message: str, *, soap: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.soap = soap


class VersionMismatch(EnvelopeError):
    """The root element is not an Envelope of SOAP 1.1 or 1.2."""


class MustUnderstand(EnvelopeError):
    """A header marked mustUnderstand that nobody here understands (SOAP 1.2 part 1, 2.4)."""


class AddressingError(EnvelopeError):
    """WS-Addressing headers that are missing, doubled, of two versions or malformed."""


class LimitExceeded(EnvelopeError):
    """Larger, deeper or with more headers than the limits allow."""


class SequenceFault(HoldfastError):
    """A WS-RM fault; ``code`` is the local name of its subcode (WS-RM 1.2 section 4).

    Args:
        message: The reason text, ours or the peer's.
        identifier: The Sequence it is about, "" if none.
    """

    code = ""

    def __init__(self, message: str, *, identifier: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.identifier = identifier


class SequenceTerminated(SequenceFault):
    """The Sequence ended by an unrecoverable error."""

    code = "SequenceTerminated"


class UnknownSequence(SequenceFault):
    """The Identifier is not that of a known Sequence."""

    code = "UnknownSequence"


class InvalidAcknowledgement(SequenceFault):
    """An acknowledgement that breaks the cumulative invariant."""

    code = "InvalidAcknowledgement"


class MessageNumberRollover(SequenceFault):
    """A message number above the limit."""

    code = "MessageNumberRollover"


class CreateSequenceRefused(SequenceFault):
    """The destination does not want this Sequence."""

    code = "CreateSequenceRefused"


class SequenceClosed(SequenceFault):
    """The Sequence is closed and takes no new message."""

    code = "SequenceClosed"


class WSRMRequired(SequenceFault):
    """The destination takes messages with WS-RM headers only."""

    code = "WSRMRequired"


class LastMessageNumberExceeded(SequenceFault):
    """A number above the one that carried LastMessage (WS-RM 1.0)."""

    code = "LastMessageNumberExceeded"


SEQUENCE_FAULTS: dict[str, type[SequenceFault]] = {
    fault.code: fault
    for fault in (
        SequenceTerminated,
        UnknownSequence,
        InvalidAcknowledgement,
        MessageNumberRollover,
        CreateSequenceRefused,
        SequenceClosed,
        WSRMRequired,
        LastMessageNumberExceeded,
    )
}


class ProcessorError(HoldfastError):
    """What a processor says of a message. It raises one of the four below, and a reason that peers and logs may show.

    :class:`UnknownExchange` and :class:`NotForThisRole` let the message on: the processor has no part in it.
    :class:`MessageFlowError` and :class:`ProcessingError` stop it.
    """


class UnknownExchange(ProcessorError):
    """The processor knows nothing of this exchange. The next one is called; header blocks that this one understands
    count as not understood by it."""


class NotForThisRole(ProcessorError):
    """The exchange is not meant for this role, such as a subscription that comes to a source. Like
    :class:`UnknownExchange`."""


class MessageFlowError(ProcessorError):
    """The message cannot go on now, and may later: what it takes is not to be had.

    One that came is not taken, and its sender is told to try again (HTTP 503). One that is to leave is tried again.

    Args:
        message: Why.
        retry_after: Seconds that the sender of one that came is asked to leave this endpoint alone, with all that it
            has for it. 0: not asked; it tries this message again when it sees fit.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class ProcessingError(ProcessorError):
    """The message cannot go on as it is: something is missing in it, or wrong.

    One that came is not taken, and answered with a SOAP fault. One that is to leave stops its Sequence, with this for
    the reason, until somebody decides: it stays stored.

    Args:
        message: Why; the fault's reason.
        sender: Whether who sent it is to blame: the fault is Sender (SOAP 1.1: Client), which says that the same
            message will fare no better. If not it is Receiver (Server), and a source tries again.
        detail: XML bytes for the fault's Detail, b"" for none.
    """

    def __init__(self, message: str, *, sender: bool = True, detail: bytes = b"", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.sender = sender
        self.detail = detail


class ProcessorFailed(ProcessorError):
    """A processor raised something else, or returned something: a bug in it. Nobody raises this on purpose."""


class PeerFault(HoldfastError):
    """A SOAP fault of the peer's that is not one of WS-RM's.

    Args:
        message: The reason text.
        code: The fault code's local name ("Sender", "Receiver", or a subcode's).
        detail: The Detail element's content, XML bytes, b"" if none.
    """

    def __init__(self, message: str, *, code: str = "", detail: bytes = b"", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code
        self.detail = detail


class DeliveryError(HoldfastError):
    """A delivery promise that cannot be kept, told to whoever was promised."""


class NotAcknowledged(DeliveryError, TimeoutError):
    """The acknowledgement did not come in the time the caller gave; the message stays stored and is still tried."""


class SequenceLost(DeliveryError):
    """The peer no longer knows the Sequence, so unacknowledged messages may or may not have arrived."""


class StoreError(HoldfastError):
    """The store could not do what was asked."""


class StoreLocked(StoreError):
    """Another process has the store open."""


class StoreFormatError(StoreError):
    """The store was written in a format this version does not read; it has not been touched."""


class StoreMissing(StoreFormatError):
    """There is no store there, and none was to be made."""


class StoreFailed(StoreError):
    """A write did not become durable; nothing after it was acknowledged."""


class StoreAway(StoreFailed):
    """The store's database does not answer; it may be starting.

    Args:
        patience: Seconds for which an endpoint that starts waits for it.
    """

    def __init__(self, message: str, *, remedy: str = "", patience: float = 0.0) -> None:
        super().__init__(message, remedy=remedy)
        self.patience = patience


class StoreDamaged(StoreFailed):
    """What is in the store is not what was written to it; it is said so, and never guessed."""
