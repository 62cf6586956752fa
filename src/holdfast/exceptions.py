"""Every error that Holdfast raises on purpose, as one tree. The bottom layer: it imports no other Holdfast module.

::

    HoldfastError
    ├── ConfigurationError            a setting is wrong: names it and the nearest valid one
    │   └── ConfigurationMistakes     a configuration file has errors: lists all of them with their lines
    ├── EnvelopeError                 bytes that are not a valid SOAP message (the peer's mistake)
    │   ├── VersionMismatch           not a SOAP 1.1 or 1.2 envelope
    │   ├── MustUnderstand            a mandatory header that the endpoint does not understand
    │   ├── AddressingError           WS-Addressing headers missing, doubled or malformed
    │   └── LimitExceeded             too large, too deep, too many headers
    ├── SequenceFault                 one subclass per WS-RM fault code, raised by Holdfast or sent by the peer
    │   ├── SequenceTerminated        ├── UnknownSequence         ├── InvalidAcknowledgement
    │   ├── MessageNumberRollover     ├── CreateSequenceRefused   ├── SequenceClosed
    │   └── WSRMRequired              └── LastMessageNumberExceeded
    ├── ProcessorError                a processor's verdict on a message
    │   ├── UnknownExchange           the processor does not know this exchange: call the next processor
    │   ├── NotForThisRole            the exchange is not meant for this endpoint: call the next processor
    │   ├── MessageFlowError          the message cannot be processed now: the sender retries
    │   ├── ProcessingError           the message is wrong: rejected with a fault, or held for the operator
    │   └── ProcessorFailed           the processor raised any other error: a bug in it
    ├── PeerFault                     any other SOAP fault from the peer
    │   └── OperationFault            a fault that the WSDL declares for the operation, with its values
    ├── DeliveryError                 a promise to the application cannot be kept
    │   ├── NotAcknowledged           not acknowledged in time; Holdfast keeps the message and keeps retrying
    │   └── SequenceLost              the peer no longer knows the Sequence; lists the numbers in doubt
    └── StoreError                    a store operation failed
        ├── StoreLocked               another process has the store open: stop that process
        ├── StoreFormatError          written by another version: upgrade Holdfast, or use another directory
        │   └── StoreMissing          the store does not exist, and must not be created
        └── StoreFailed               a write failed: free space or repair the disk, then start again
            ├── StoreAway             the database does not answer yet: a starting endpoint waits for it
            └── StoreDamaged          stored data are damaged: holdfast store check, then a copy or repair

Any other exception that Holdfast raises is a bug in Holdfast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def clause(text: object) -> str:
    """Return a text, such as that of another program's error, without its final punctuation: a sentence goes on."""
    return str(text).rstrip().rstrip(".,:;?!")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, as in "1 row" and "2,000 rows"; a plural without "s" is given."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


FREE_SPACE = "Free space or repair the disk, then start again."
"""The remedy for a failed write to a disk."""


def message_of(error: BaseException) -> str:
    """Return the text of an error without its remedy."""
    return error.message if isinstance(error, HoldfastError) else str(error)


def repair_of(error: BaseException) -> str:
    """Return the remedy of a store that failed: only it knows whether it is on a disk, in a database or in Kafka."""
    return (error.remedy if isinstance(error, StoreError) else "") or FREE_SPACE


class HoldfastError(Exception):
    """Base of every deliberate error.

    Args:
        message: What happened, to which Sequence and number, and which messages are safe.
        remedy: What the reader can do about it; printed on a separate line.
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
        line: The line in the file, from 1.
        key: The full key: ``forwarders.orders.to``; "" for the file itself.
        what: What is wrong, as one sentence.
        remedy: How to fix it, as one sentence.
    """

    file: str
    line: int
    key: str
    what: str
    remedy: str

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        return f"{self.file}:{self.line}: {key}{clause(self.what)}. {self.remedy}".rstrip()


class ConfigurationMistakes(ConfigurationError):
    """A configuration file with mistakes.

    Args:
        mistakes: All mistakes, ordered by line.
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        told = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        lines = "".join(f"\n{mistake}" for mistake in mistakes)
        super().__init__(f"{mistakes[0].file} has {told}, and nothing of it is used:{lines}")
        self.mistakes = tuple(mistakes)


class EnvelopeError(HoldfastError):
    """Bytes that are not an acceptable SOAP message.

    Args:
        message: What is wrong.
        soap: The version of SOAP to answer in, "1.1" or "1.2"; "" while it is unknown.
    """

    def __init__(self, message: str, *, soap: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.soap = soap


class VersionMismatch(EnvelopeError):
    """The root element is not an Envelope of SOAP 1.1 or 1.2."""


class MustUnderstand(EnvelopeError):
    """A header marked mustUnderstand that the endpoint does not understand (SOAP 1.2 part 1, 2.4)."""


class AddressingError(EnvelopeError):
    """WS-Addressing headers that are missing, duplicated, malformed, or of two versions.

    Args:
        message: What is wrong.
        soap: As for :class:`EnvelopeError`.
        code: The fault code of WS-Addressing 2005/08 for it; "" if the element is not an addressing header.
        header: The local name of the header.
        addressing: The message's version of WS-Addressing.
    """

    def __init__(self, message: str, *, soap: str = "", code: str = "", header: str = "", addressing: str = "") -> None:
        super().__init__(message, soap=soap)
        self.code, self.header, self.addressing = code, header, addressing


class LimitExceeded(EnvelopeError):
    """An envelope that is larger or deeper, or has more headers, than the limits allow."""


class SequenceFault(HoldfastError):
    """A WS-RM fault; ``code`` is the local name of its subcode (WS-RM 1.2 section 4), which is also the class's name.

    Args:
        message: The reason text, from Holdfast or the peer.
        identifier: The Identifier of the affected Sequence, "" if none.
    """

    code = ""

    def __init_subclass__(cls) -> None:
        cls.code = cls.__name__

    def __init__(self, message: str, *, identifier: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.identifier = identifier


class SequenceTerminated(SequenceFault):
    """An unrecoverable error terminated the Sequence."""


class UnknownSequence(SequenceFault):
    """The Identifier does not belong to a known Sequence."""


class InvalidAcknowledgement(SequenceFault):
    """An acknowledgement that breaks the cumulative invariant."""


class MessageNumberRollover(SequenceFault):
    """A message number above the limit."""


class CreateSequenceRefused(SequenceFault):
    """The destination refused to create the Sequence."""


class SequenceClosed(SequenceFault):
    """The Sequence is closed and accepts no new messages."""


class WSRMRequired(SequenceFault):
    """The destination accepts only messages with WS-RM headers."""


class LastMessageNumberExceeded(SequenceFault):
    """A number above the one that carried LastMessage (WS-RM 1.0)."""


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
    """A processor's verdict on a message: one of four subclasses, with a reason that peers and logs may show.

    With :class:`UnknownExchange` and :class:`NotForThisRole`, the processor declines and the message continues to the
    next one. :class:`MessageFlowError` and :class:`ProcessingError` stop the message.
    """


class UnknownExchange(ProcessorError):
    """The processor does not know this exchange, so the endpoint calls the next one.

    Header blocks that this processor understands count as not understood by it.
    """


class NotForThisRole(ProcessorError):
    """The exchange is not meant for this role, such as a subscription sent to a source.

    The endpoint treats it like :class:`UnknownExchange`.
    """


class MessageFlowError(ProcessorError):
    """The message cannot be processed now, but may be later: a resource is unavailable.

    The endpoint rejects an incoming message with HTTP 503, so that its sender retries. It retries an outgoing message.

    Args:
        message: The reason.
        retry_after: For an incoming message, the seconds for which its sender should send nothing to this endpoint.
            0: no request to wait; the sender retries the message on its own schedule.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class ProcessingError(ProcessorError):
    """The message cannot be processed in its present form: a part of it is missing or wrong.

    The endpoint rejects an incoming message with a SOAP fault. An outgoing message stays in the store and stops its
    Sequence, with this error as the reason, until the operator decides. A reply leaves as a fault instead.

    Args:
        message: The fault's reason.
        sender: Whether the sender is at fault. True: the fault code is Sender (SOAP 1.1: Client), and the same message
            would fail again. False: it is Receiver (SOAP 1.1: Server), and a source retries the message; a reply waits.
        detail: XML bytes for the fault's Detail, b"" for none.
        code: A code of its own for the fault, ``"{namespace}local"``: the faultcode in SOAP 1.1, the Subcode in
            SOAP 1.2. "" for none.
    """

    def __init__(
        self, message: str, *, sender: bool = True, detail: bytes = b"", code: str = "", remedy: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.sender = sender
        self.detail = detail
        self.code = code


class ProcessorFailed(ProcessorError):
    """A bug in a processor: it raised another exception or returned a value. A processor never raises this itself."""


class PeerFault(HoldfastError):
    """A SOAP fault from the peer that is not a WS-RM fault.

    Args:
        message: The reason text.
        code: The fault code's local name ("Sender", "Receiver", or a subcode's).
        detail: The Detail element's content, XML bytes, b"" if none.
        element: The whole Fault element, XML bytes; b"" if Holdfast does not have it.

    Attributes:
        message_id: The MessageID of the request, if a call of a source raised the fault; otherwise "".
        action: The wsa:Action of the fault's message; "" if Holdfast does not have it.
        header_bytes: The foreign header blocks of the fault's message, XML bytes; b"" if Holdfast does not have them.
    """

    message_id = ""
    action = ""
    header_bytes = b""
    _tell: Callable[[], None] | None = None

    def __init__(
        self, message: str, *, code: str = "", detail: bytes = b"", element: bytes = b"", remedy: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code
        self.detail = detail
        self.element = element

    def done(self) -> None:
        """Confirm the stored reply with this fault, as :meth:`holdfast.Reply.done` does.

        It is needed only if you chose the MessageID of the request: otherwise, raising the fault confirms it.
        """
        if self._tell is not None:
            self._tell()


class OperationFault(PeerFault):
    """A fault that the service's WSDL declares for the called operation.

    Args:
        message, code, detail, element: As for :class:`PeerFault`.
        name: The name of the fault in the WSDL.
        value: The values of its detail: a dict of the fields, or the value of an element without fields.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str,
        value: Any,
        code: str = "",
        detail: bytes = b"",
        element: bytes = b"",
        remedy: str = "",
    ) -> None:
        super().__init__(message, code=code, detail=detail, element=element, remedy=remedy)
        self.name = name
        self.value = value


class DeliveryError(HoldfastError):
    """A delivery promise to the application that cannot be kept."""


class NotAcknowledged(DeliveryError, TimeoutError):
    """The acknowledgement or reply did not arrive within the caller's timeout. The message stays stored and is retried.

    Attributes:
        message_id: The MessageID of the message, with which :meth:`holdfast.Source.reply` returns a later reply; "" if
            the wait was for several messages.
    """

    message_id = ""


class SequenceLost(DeliveryError):
    """The peer no longer knows the Sequence: unacknowledged messages may or may not have arrived."""


class StoreError(HoldfastError):
    """A store operation failed."""


class StoreLocked(StoreError):
    """Another process has the store open."""


class StoreFormatError(StoreError):
    """The store has a format that this version does not read. Holdfast has not changed it."""


class StoreMissing(StoreFormatError):
    """The store does not exist, and the caller did not allow creating one."""


class StoreFailed(StoreError):
    """A write did not become durable. The endpoint acknowledged no later message."""


class StoreAway(StoreFailed):
    """The store's database does not answer; it may be starting.

    Args:
        patience: Seconds for which a starting endpoint waits for the database.
    """

    def __init__(self, message: str, *, remedy: str = "", patience: float = 0.0) -> None:
        super().__init__(message, remedy=remedy)
        self.patience = patience


class StoreTakenOver(StoreFailed):
    """Another process has opened the store, so this one writes nothing to it any more. In a cluster, that is the normal
    takeover of a partition."""


class StoreDamaged(StoreFailed):
    """The stored data differ from the data written. Holdfast reports this and never guesses the data."""
