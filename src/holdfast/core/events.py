"""What the core asks its shell to do, and what it tells it. A shell drains these after every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NewType

from holdfast.core.messages import Envelope, Fault
from holdfast.core.records import Record

BackChannel = NewType("BackChannel", object)
"""The shell's handle of one request that waits for its answer: made by the shell, of whatever it likes, and given back
to it in :class:`Respond`; opaque here."""


# --- to do -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Respond:
    """Answer the request: with the envelope, or with an empty 202 if there is none."""

    back_channel: BackChannel
    envelope: Envelope | None


@dataclass(slots=True)
class Transmit:
    """Send the envelope to the address and report: ``received`` what came back, or ``failed``.

    Args:
        to: A URI.
        envelope: What to send.
        source: ``local_id`` of the outbound Sequence that sends it, "" for an answer.
        number: The message number it carries, 0 if none.
        attempt: Which attempt of this process's it is, from 1; 0 for what is not repeated by us.
        left_at: When it left the core, in seconds; 0 if that is of no use.
        query: The forwarded message that it carries, if its answer may bring a reply though none is awaited.
        size: Bytes of the message that it carries, until its exchange has ended.
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
"""``take(records, now)``: goes on in the core with what was read. A method, or a ``partial`` of one."""


@dataclass(slots=True, eq=False)
class ReadWanted:
    """Read records of the store, and answer with :meth:`~holdfast.core.protocol.RMProtocol.records_read`, once.

    The core waits for no store: whoever needs a record that is not in memory asks, and goes on when it is there. What
    is asked for of one partition is answered in the order it was asked; of different ones in any order. Between
    asking and answer anything may happen, so that whoever asked looks again whether it still needs what came. A
    process that dies, or an endpoint that is closed, never answers.

    Args:
        queue: Of which.
        partition: Of it.
        start, end: Durable records with start <= offset < end are wanted. What comes is what the store cares to read
            at once: the first of those that are still there and any number of those that follow it, none if none is.
        take: What is to be done with them; the core's own, opaque to the shell.
    """

    queue: str
    partition: int
    start: int
    end: int
    take: TakeRecords


@dataclass(slots=True, eq=False)
class Handle:
    """Give the record to the application's handler, and say once how that went: ``handled``, ``handled_alone`` or
    ``handling_failed`` of :class:`~holdfast.core.handling.delivery.Handling`.

    Args:
        queue: Where it is: the queue that is handled, or that of the dead letters.
        partition: Of that.
        offset: In that.
        record: The message; of a letter as it was delivered.
        attempt: How often it has been handed over, this time included.
    """

    queue: str
    partition: int
    offset: int
    record: Record
    attempt: int


# --- told ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Delivered:
    """A durable record is in the queue for the application. ``record`` is None if it must be read from the store; with
    ``count`` that many are, this one the first of them.

    At a source these are the replies; their ``relates_to`` is the MessageID of the request.
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
        key: The outbox.
        first, last: Offsets in it.
        identifier: The Sequence that they went in.
        number: That of the first in it.
    """

    key: str
    first: int
    last: int
    identifier: str
    number: int


@dataclass(slots=True)
class NotQueued:
    """The message is accepted and will be acknowledged, and goes into no queue.

    Args:
        identifier: Its Sequence.
        number: Its number there.
        why: A few words that never change.
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
        key: The outbox.
        offset: Of the message in it, -1 if its acknowledgement came first.
        message_id: The message's, None if the fault names none.
        fault: What the service says.
    """

    key: str
    offset: int
    message_id: str | None
    fault: Fault


@dataclass(slots=True)
class Discarded:
    """Somebody gave up the message at ``offset`` of the outbox ``key``: it is not sent, and that is durable."""

    key: str
    offset: int


@dataclass(slots=True)
class Unanswered:
    """The destination has the request with that MessageID, of the outbox ``key``, and will send no reply."""

    key: str
    message_id: str


@dataclass(slots=True)
class Unheard:
    """The destination answers with success and nothing, again and again: whether it has the message nobody knows.

    Args:
        key: The outbox.
        identifier: The Sequence.
        number: The message; 0 for the request that ends the Sequence.
        times: How often it was answered so.
        wants_reply: Whether it is a request, whose reply may take its time.
    """

    key: str
    identifier: str
    number: int
    times: int
    wants_reply: bool


@dataclass(slots=True)
class Ended:
    """The outbox ``key`` has nothing more to send and its Sequence is over."""

    key: str


@dataclass(slots=True)
class Stopped:
    """The outbox ``key`` sends nothing more until somebody decides: why, and which offsets are in doubt.

    Args:
        key: The outbox.
        code: "CreateSequenceRefused", another fault code, or "given up".
        reason: What the peer said, or what happened.
        first, last: Offsets of messages that were transmitted and are not acknowledged; first > last: none.
        refused: The message that the peer refused: its Sequence and number; None if it is not about one message.
        in_doubt: The numbers of the lost Sequence that the peer may have, such as "3-3 5-6"; "" if that is not known.
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
    """Something an operator wants to read: a line of the log, with what it is about.

    Args:
        name: A few words that never change, e.g. "sequence.created", "message.duplicate_dropped", "gap".
        identifier: The Sequence, "" if none.
        number: The message number, 0 if none.
        level: "debug", "info", "warning" or "error".
        detail: More, as key and value.
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
