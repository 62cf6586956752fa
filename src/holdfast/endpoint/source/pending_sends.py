"""Lanes: what the callers of a source wait for, outbox by outbox; and how far the source is. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from typing import Any

from holdfast.core.events import Declined
from holdfast.core.records import Record
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.source.message_ids import MessageIds
from holdfast.exceptions import DeliveryError, HoldfastError, PeerFault


@dataclass
class Progress:
    """How far a source is.

    Attributes:
        stored: Messages durable here since it was opened.
        acknowledged: Messages the destination has acknowledged since.
        outstanding: Messages durable here that are not acknowledged.
        resent: Transmissions of messages beyond the first since it was opened.
        declined: Messages since then that the service sent a fault for though they ask for no reply. They count as
            acknowledged.
        problem: Why nothing moves, "" while it does: the last failure of the transport, unless the destination has
            answered since; the last fault that it answered with; that it answers with nothing again and again; that
            its buffer is full (BufferRemaining); or the reason of a key that is stopped until :meth:`Source.resume`.
            Without any of these, ``retracted``, or that the store is an older copy.
        retracted: Names the messages that the destination acknowledged and no longer does, over all Sequences; "" if
            there are none. The store keeps them until a source was resumed and closed.
    """

    stored: int = 0
    acknowledged: int = 0
    outstanding: int = 0
    resent: int = 0
    declined: int = 0
    problem: str = ""
    retracted: str = ""
    _outdated: str = field(default="", repr=False)
    _failure: str = field(default="", repr=False)
    _stopped: dict[str, str] = field(default_factory=dict, repr=False)


def reset_progress(progress: Progress) -> None:
    """Begin all counts again: a program keeps the object, and opens its source again."""
    vars(progress).update(vars(Progress()))


def note_stopped(progress: Progress, key: str, reason: str) -> None:
    progress.problem = progress._stopped[key] = reason


def note_resumed(progress: Progress, key: str) -> None:
    if progress._stopped.pop(key, "") == progress.problem:
        note_progress(progress)


def note_progress(progress: Progress) -> None:
    """End the present problem. If a key is stopped, or messages are lost, that is the problem again."""
    progress.problem = next(iter(progress._stopped.values()), progress.retracted or progress._outdated)


def note_retracted(progress: Progress, text: str) -> None:
    progress.problem = progress.retracted = text


def note_outdated(progress: Progress, text: str) -> None:
    progress._outdated = text
    progress.problem = progress.problem or text


def note_failure(progress: Progress, reason: str) -> None:
    progress.problem = progress._failure = reason


def note_answer(progress: Progress) -> bool:
    """End a failure of the transport, as the destination answers. Returns whether that was the problem."""
    was_failing = progress._failure != "" and progress.problem == progress._failure
    progress._failure = ""
    if was_failing:
        note_progress(progress)
    return was_failing


NO_ROOM = "the destination has no room now: its buffer is full"
"""The problem while the destination advertises no room for another message."""


def note_room(progress: Progress, *, has_room: bool) -> bool:
    """Make a full buffer of the destination the problem, or end it. Returns whether the problem has changed."""
    before = progress.problem
    if before == NO_ROOM and has_room:
        note_progress(progress)
    elif before in ("", progress.retracted, progress._outdated) and not has_room:
        progress.problem = NO_ROOM
    return progress.problem != before


DECLINED_KEPT = 1000
"""For so many messages of a key a source knows the fault that the service sent."""


@dataclass(eq=False)
class Lane:
    """The futures of one outbox: by offset, who waits until the message is durable here, and there."""

    outbox: Outbox
    engine: InitVar[Engine]
    ids: MessageIds = field(init=False)
    submitted: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    acknowledged: dict[int, list[asyncio.Future[None]]] = field(default_factory=dict)
    declined: dict[int, PeerFault] = field(default_factory=dict)
    """By offset: the faults that the service sent for messages which it was not asked about, the last of them."""
    ended: asyncio.Future[None] | None = None
    stop_error: HoldfastError | None = None
    silent: tuple[str, int] = "", 0
    """The Sequence and the number of the latest message for which the log named the destination silent."""

    def __post_init__(self, engine: Engine) -> None:
        self.ids = MessageIds(engine, self.outbox)

    def check(self) -> None:
        """Check that sending has not stopped.

        Raises:
            DeliveryError: It has stopped; says why and what to do.
        """
        if self.stop_error is not None:
            raise self.stop_error

    def check_taking(self) -> None:
        """Check that a message may be stored, as :meth:`check`.

        Raises:
            DeliveryError: Sending has stopped. It is no PeerFault: the service never saw this message.
        """
        if isinstance(self.stop_error, PeerFault):
            raise DeliveryError(
                f"the message is not stored, because sending has stopped: {self.stop_error.message}",
                remedy=self.stop_error.remedy,
            )
        self.check()

    def tell_submitted(self, first: int, last: int) -> None:
        """Inform the callers of messages that are durable here."""
        for offset in range(first, last + 1):
            future = self.submitted.pop(offset, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def stored(self, offset: int) -> None:
        """Wait until the message at that offset, which was submitted, is durable here."""
        future = self.submitted.get(offset)
        if future is not None:
            await asyncio.shield(future)

    async def check_same(self, offset: int, record: Record) -> None:
        """Wait until the message at that offset is durable, and compare it with another of its MessageID.

        Raises:
            EnvelopeError: they differ.
        """
        await self.stored(offset)
        await self.ids.check_same(offset, record)

    def tell_acknowledged(self, first: int, last: int) -> None:
        """Inform the callers of messages that the destination has acknowledged."""
        waiting = self.acknowledged
        # The shorter of the two: many wait for one message, or few for thousands.
        if last - first < len(waiting):
            offsets = list(range(first, last + 1))
        else:
            offsets = [offset for offset in waiting if first <= offset <= last]
        for offset in offsets:
            for future in waiting.pop(offset, ()):
                if not future.done():
                    future.set_result(None)

    def tell_ended(self) -> None:
        """Inform the callers that wait for the end of the Sequence."""
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)
        self.ended = None

    def tell_declined(self, effect: Declined, progress: Progress) -> None:
        """The service refused the message at that offset, which it was not asked about."""
        progress.declined += 1
        if effect.offset >= 0:
            fault = effect.fault
            self.declined[effect.offset] = PeerFault(fault.reason, code=fault.code, detail=fault.detail)
            if len(self.declined) > DECLINED_KEPT:
                del self.declined[next(iter(self.declined))]

    def forget(self, offset: int, future: asyncio.Future[None]) -> None:
        """Remove the future of a caller that no longer waits."""
        waiting = self.acknowledged.get(offset, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del self.acknowledged[offset]

    def fail_all(self, error: BaseException, unstored: BaseException) -> None:
        """Fail every waiting caller after a store failure, with ``unstored`` if its message is not stored."""
        fail(self.submitted.values(), unstored)
        self.submitted.clear()
        self.fail_waiting(error)
        fail([self.ended] if self.ended is not None else [], error)

    def fail_waiting(self, error: BaseException) -> None:
        for waiting in self.acknowledged.values():
            fail(waiting, error)
        self.acknowledged.clear()


def place(outbox: Outbox, offset: int) -> str:
    """Return a message's Sequence and number in words, "" without a Sequence."""
    source = outbox.source
    if source is None or source.identifier is None:
        return ""
    number = offset - source.numbers.start + 1
    if number > source.numbers.with_record(number):
        return ""  # the next Sequence carries it
    return f" (number {number} of the Sequence {source.identifier})"


def named(outbox: Outbox) -> str:
    """Return the present Sequence of an outbox in words: its Identifier, and its key if it has one."""
    source = outbox.source
    identifier = source.identifier if source is not None and source.identifier else "that does not exist yet"
    return f"{identifier} (key {outbox.key!r})" if outbox.key else identifier


def fail(futures: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
            future.exception()  # the caller may no longer wait for it
