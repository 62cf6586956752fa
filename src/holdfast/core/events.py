"""Effects: requests of the core to its shell, and its reports. A shell drains them after every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NewType

from holdfast.core.messages import Envelope, Fault
from holdfast.core.records import Record

BackChannel = NewType("BackChannel", object)
"""The shell's handle of one request that waits for its answer. The shell creates it from any object, and the core
returns it in :class:`Respond`; it is opaque to the core."""


# --- to do -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Respond:
    """Answer the request with the envelope, or with an empty 202 without one."""

    back_channel: BackChannel
    envelope: Envelope | None


@dataclass(slots=True)
class Transmit:
    """Send the envelope to the address, and report the answer to ``received`` or the failure to ``failed``.

    Args:
        to: A URI.
        source: ``local_id`` of the outbound Sequence that sends it, "" for an answer.
        number: The message number in it, 0 for none.
        attempt: The count of this process's attempts, from 1; 0 for an envelope that this side does not repeat.
        left_at: When it left the core, in seconds; 0 if unused.
        query: The forwarded message in it, if the answer may contain a reply although no reply is expected.
        size: Bytes of the message in it, until its exchange has ended.
    """

    to: str
    envelope: Envelope
    source: str = ""
    number: int = 0
    attempt: int = 0
    left_at: float = 0.0
    query: Record | None = None
    size: int = 0


TakeRecords = Callable[[list[tuple[int, Record]], float], None]
"""``take(records, now)``: continues in the core with the records read. A method, or a ``partial`` of one."""


@dataclass(slots=True, eq=False)
class ReadWanted:
    """Read records of the store, and answer with :meth:`~holdfast.core.protocol.RMProtocol.records_read`, once.

    The core never waits for a store: a component that needs a record outside memory requests it and continues when the
    record arrives. Requests for one partition are answered in their order; requests for different partitions in any
    order. The state may change between request and answer, so the component must check again whether it still needs the
    records. If the process dies or the endpoint is closed, there is no answer.

    Args:
        start, end: Requests the durable records with start <= offset < end. The store decides how many it reads at
            once: the first existing record of the range and any number of later ones, or an empty list if the
            range has no existing record.
        take: The function of the core that receives the records; opaque to the shell.
    """

    queue: str
    partition: int
    start: int
    end: int
    take: TakeRecords


@dataclass(slots=True, eq=False)
class Handle:
    """Pass the record to the application's handler, and report the result once.

    Report it to ``handled``, ``handled_alone`` or ``handling_failed`` of
    :class:`~holdfast.core.handling.delivery.HandlerSchedule`.

    Args:
        queue: The queue of the record: the handlers' queue, or the queue of dead letters.
        record: The message; for a dead letter, as it was delivered.
        attempt: How often a handler has received it, including this time.
    """

    queue: str
    partition: int
    offset: int
    record: Record
    attempt: int


# --- told ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Delivered:
    """A durable record is in the queue for the application.

    ``record`` is None if it must be read from the store. ``count`` is the number of durable messages, with this one as
    the first; 0 if another queue of its route already counts it. At a source, the records are replies; their
    ``relates_to`` is the MessageID of the request.
    """

    queue: str
    partition: int
    offset: int
    record: Record | None
    count: int = 1


@dataclass(slots=True)
class Submitted:
    """The messages at offsets ``first <= offset <= last`` of the outbox ``key`` are durable here."""

    key: str
    first: int
    last: int


@dataclass(slots=True)
class Acknowledged:
    """The destination has the messages at offsets ``first <= offset <= last`` of the outbox ``key``.

    Args:
        identifier: The Sequence that carried them.
        number: Number of the first message in the Sequence.
    """

    key: str
    first: int
    last: int
    identifier: str
    number: int


@dataclass(slots=True)
class NotQueued:
    """The message is accepted and will be acknowledged, but not stored in a queue.

    Args:
        why: The reason, in a few fixed words.
    """

    identifier: str
    number: int
    why: str


@dataclass(slots=True)
class FaultReceived:
    """The peer answered with a fault, or sent one."""

    fault: Fault


@dataclass(slots=True)
class Declined:
    """The service sent a fault for a message that asks for no reply, and its destination acknowledges the message.

    Args:
        offset: Offset of the message in the outbox, -1 if its acknowledgement arrived first.
        message_id: MessageID of the message, None if the fault names none.
    """

    key: str
    offset: int
    message_id: str | None
    fault: Fault


@dataclass(slots=True)
class Discarded:
    """The message at ``offset`` of the outbox ``key`` was discarded and will not be sent. The decision is durable."""

    key: str
    offset: int


@dataclass(slots=True)
class Unanswered:
    """The destination has the request with that MessageID, of the outbox ``key``, and no reply will arrive.

    Args:
        message_id: Of the request.
        too_large: Why the reply cannot be received; "" if the destination sends none.
    """

    key: str
    message_id: str
    too_large: str = ""


@dataclass(slots=True)
class Unheard:
    """The destination repeatedly gives empty success answers, so it is unknown whether it has the message.

    Args:
        number: The message; 0 for the request that ends the Sequence.
        times: The number of empty answers.
        wants_reply: Whether the message is a request, with a reply that may take time.
        seconds: Since the first transmission of the message.
    """

    key: str
    identifier: str
    number: int
    times: int
    wants_reply: bool
    seconds: float


@dataclass(slots=True)
class Ended:
    """The outbox ``key`` has sent every message, and its Sequence has ended."""

    key: str


@dataclass(slots=True)
class Stopped:
    """The outbox ``key`` stops until the operator decides; gives the reason and the offsets in doubt.

    Args:
        code: "CreateSequenceRefused", another fault code, or "given up".
        reason: The peer's answer, or the cause.
        first, last: Offsets of messages that were transmitted and are not acknowledged; first > last: none.
        refused: Sequence and number of the message that the peer refused; None if the reason is not one message.
        in_doubt: The numbers of the lost Sequence that the peer may have, such as "3-3 5-6"; "" if unknown.
    """

    key: str
    code: str
    reason: str
    first: int
    last: int
    refused: tuple[str, int] | None = None
    in_doubt: str = ""


@dataclass(slots=True)
class Incident:
    """An event for the operator's log.

    Args:
        name: A few fixed words, e.g. "sequence.created", "message.duplicate_dropped", "gap".
        identifier: The Sequence, "" for none.
        number: The message number, 0 for none.
        level: "debug", "info", "warning" or "error".
        detail: Additional fields.
    """

    name: str
    identifier: str = ""
    number: int = 0
    level: str = "info"
    detail: dict[str, Any] | None = None


Effect = (
    Respond
    | Transmit
    | ReadWanted
    | Handle
    | Delivered
    | Submitted
    | Acknowledged
    | NotQueued
    | FaultReceived
    | Declined
    | Discarded
    | Unanswered
    | Unheard
    | Ended
    | Stopped
    | Incident
)
