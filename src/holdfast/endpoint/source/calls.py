"""Calls: what the callers of a source wait for, and what the protocol's effects mean for them.

Owns the futures of sends, acknowledgements, replies and ends of Sequences, and the errors that end a wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from holdfast.core.events import (
    Acknowledged,
    Declined,
    Delivered,
    Discarded,
    Effect,
    Ended,
    FaultReceived,
    Stopped,
    Submitted,
    Unanswered,
    Unheard,
)
from holdfast.core.messages import ANONYMOUS, MAX_MESSAGE_NUMBER
from holdfast.core.records import Record
from holdfast.core.sending.outboxes.earlier_address import earlier_address
from holdfast.core.versions import Versions
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.engine.owning_loop import OwningLoop
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.stopped import (
    PERHAPS_ASKED,
    STILL_ASKED,
    stop_error,
    stored_error,
    unanswered_error,
    unheard_text,
    unstored_error,
)
from holdfast.endpoint.source.message_ids import GivenIds
from holdfast.endpoint.source.pending_sends import (
    Lane,
    Progress,
    fail,
    note_progress,
    note_resumed,
    note_stopped,
    place,
)
from holdfast.endpoint.source.replies import Replies, Reply
from holdfast.exceptions import DeliveryError, HoldfastError, NotAcknowledged
from holdfast.settings import check_seconds
from holdfast.store import IN_MEMORY, Store, shown

REPLY_SECONDS = 60.0
"""Seconds without an answer to a request after which the log names the destination silent: a handler takes time."""

_OF_LANES = (Submitted, Acknowledged, Discarded, Declined, Unheard, Stopped, Ended)
"""Effects about one outbox."""


class Calls:
    """Pending calls of a running source."""

    to = ""
    """The destination's URL, once the store has been read."""
    local = ANONYMOUS
    """The address for acknowledgements and replies."""
    here: Replies
    """The replies in the store."""

    def __init__(
        self,
        engine: Engine,
        owner: OwningLoop,
        progress: Progress,
        store: str | Path | Store,
        choices: list[tuple[Versions, bool]],
        envelopes: Envelopes,
    ) -> None:
        self._envelopes = envelopes
        self._engine = engine
        self.owner = owner
        self.progress = progress
        self._store = store
        self.choices = choices
        self.lanes: dict[str, Lane] = {}
        """Sequence key -> the futures of its outbox."""
        self.replies: dict[str, asyncio.Future[Reply]] = {}
        """MessageID of a request -> the future of its reply."""
        self._waiting: Counter[str] = Counter()
        """MessageID of a request -> how many callers wait for its reply."""
        self.given = GivenIds()
        self.asked: dict[str, Lane] = {}
        """MessageID of each request of this process that has no reply yet -> where it went."""

    def take_up(self) -> None:
        for outbox in list(self._engine.protocol.outbound.outboxes.values()):
            outbox.lifecycle.choices = self.choices
            lane = self.lanes[outbox.key] = Lane(outbox, self._engine)
            if outbox.lifecycle.stopped:
                waiting, stopped = outbox.records.waiting, outbox.lifecycle.as_stopped
                error = lane.stop_error = stop_error(stopped, self.to, waiting, shown(self._store), "", self._own())
                error.message = f"sending to {self.to} has stopped until you decide: {error.message}"
                self._tell_stopped(outbox.key, stopped.code, stopped.reason, error)
            self.progress.outstanding += outbox.records.waiting

    def lane(self, key: str) -> Lane:
        """Return the lane of a Sequence key. A missing one is created."""
        lane = self.lanes.get(key)
        if lane is None:
            outbox = self._engine.protocol.outbound.open(key, self.to, self.choices)
            lane = self.lanes[key] = Lane(outbox, self._engine)
        return lane

    async def find_same(self, lane: Lane, record: Record) -> int | None:
        """Return the offset of the stored message with the MessageID of ``record``; None without one.

        A request and its reply change places at one instant: the request is acknowledged when its reply is stored. So
        the caller must look for the reply after the last wait in here, before it stores the request.

        Raises:
            EnvelopeError: the stored message is another one.
        """
        message_id = record.message_id or ""
        while (known := await lane.ids.find(message_id)) is not None or self.here.is_reading:
            if known is None:
                await self.here.read()  # a stored reply, perhaps to this request
                continue
            await lane.check_same(known, record)
            # Replied, and the reply confirmed by another caller, during the comparison: then it is a new request.
            if not record.wants_reply or self.here.has(message_id) or not lane.outbox.records.is_acknowledged(known):
                return known
        return None

    def end(self, lane: Lane) -> asyncio.Future[None]:
        """End the Sequence of a lane once its messages are acknowledged. Returns the future of its end."""
        if lane.ended is None:
            lane.ended = asyncio.get_running_loop().create_future()
            lane.outbox.want_end(self._engine.clock())
            self._engine.touch()
        return lane.ended

    async def wait_acknowledged(
        self, lane: Lane, offset: int, timeout: float | None, message_id: str | None = None
    ) -> None:
        """Wait for the acknowledgement of one offset; see :meth:`Sent.acknowledged`."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        self.owner.check()
        if lane.outbox.records.is_acknowledged(offset):
            return
        waiting = lane.acknowledged.get(offset)
        if waiting is None:
            lane.check()
            if self._engine.failure is not None:
                raise self.safe_error(self._engine.failure)
            waiting = lane.acknowledged[offset] = []
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        try:
            if timeout is None:
                await future
            else:
                async with asyncio.timeout(timeout):
                    await future
        except NotAcknowledged:
            raise
        except TimeoutError:
            raise _not_acknowledged(
                message_id or "",
                f"the message {message_id}{place(lane.outbox, offset)} for {self.to} is not acknowledged after "
                f"{timeout} s{self.because()}",
                remedy=f"It is stored and Holdfast keeps retrying. {self.how_it_goes_on('it')}",
            ) from None
        finally:
            # Otherwise each wait that ended early would stay in memory.
            if future.cancelled():
                lane.forget(offset, future)

    async def flush(self, lane: Lane) -> None:
        if not lane.outbox.records.is_empty:
            await self.wait_acknowledged(lane, lane.outbox.records.end - 1, None)
        while not lane.outbox.records.is_empty:  # a later one may be acknowledged before an earlier one
            first = lane.outbox.records.first
            # Otherwise the loop would not wait, and nothing else would run in the thread.
            assert not lane.outbox.records.is_acknowledged(first), (lane.outbox.key, first)
            await self.wait_acknowledged(lane, first, None)

    async def reply(self, message_id: str, timeout: float | None) -> Reply:
        """Wait for the reply to a request; see :meth:`holdfast.Source.reply`."""
        future = self.replies.get(message_id)
        if future is None:
            future = self.replies[message_id] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] += 1
        try:
            async with asyncio.timeout(timeout):
                # Shielded: several callers may wait for the same reply.
                return await asyncio.shield(future)
        except NotAcknowledged:
            raise
        except TimeoutError:
            raise _not_acknowledged(
                message_id,
                f"no reply to {message_id} within {timeout} s{self.because()}",
                remedy=STILL_ASKED if message_id in self.asked else PERHAPS_ASKED,
            ) from None
        finally:
            self._waiting[message_id] -= 1
            if not self._waiting[message_id]:
                del self._waiting[message_id]
            # One caller that gives up takes the reply from no other.
            if self.replies.get(message_id) is future and (future.done() or message_id not in self._waiting):
                del self.replies[message_id]

    def how_it_goes_on(self, what: str) -> str:
        """Return the remedy for a wait that took too long."""
        if self._store == IN_MEMORY:
            lost = "they are" if what == "them" else "it is"
            return f"Wait again. If the process ends, {lost} lost: the store is in memory."
        return f"Wait again, or end the process: the next one continues with {what}."

    def _own(self) -> str:
        return " ".join(filter(None, (one._trouble() for one in self._envelopes.processors)))

    def because(self) -> str:
        """Return the present problem as the end of an error, "" without one."""
        return f"; {self.progress.problem}" if self.progress.problem else ""

    # --- what the protocol reports ---------------------------------------------------------------------------------

    def tell(self, effect: Effect) -> None:
        if isinstance(effect, _OF_LANES) and effect.key not in self.lanes:
            return  # a service offered a Sequence for the replies of callbacks: nobody here waits for what is in it
        if isinstance(effect, Submitted):
            self._submitted(effect)
        elif isinstance(effect, Acknowledged):
            self._acknowledged(effect)
        elif isinstance(effect, Delivered):
            self.here.delivered(effect.offset, effect.record)
        elif isinstance(effect, Discarded):
            self._discarded(effect)
        elif isinstance(effect, Unanswered):
            self._unanswered(effect)
        elif isinstance(effect, Declined):
            self.lanes[effect.key].tell_declined(effect, self.progress)
        elif isinstance(effect, FaultReceived):
            code, reason = effect.fault.code, effect.fault.reason
            said = f"{code} and {reason}" if code.startswith("HTTP ") else f"the fault {code}: {reason}"
            self.progress.problem = f"{self.to} answered with {said}"
        elif isinstance(effect, Unheard):
            self.progress.problem = unheard_text(
                effect, self.to, self.local, earlier_address(self.lanes[effect.key].outbox)
            )
            self._warn_of_silence(effect)
        elif isinstance(effect, Stopped):
            self._stopped(effect)
        elif isinstance(effect, Ended):
            self.lanes[effect.key].tell_ended()

    def _warn_of_silence(self, effect: Unheard) -> None:
        """Log a silent destination once for each message, and for a request only when its handler has had time.

        Earlier messages of the Sequence, which may be silent at the same time, are not logged any more.
        """
        if effect.wants_reply and effect.seconds < REPLY_SECONDS:
            return
        lane = self.lanes[effect.key]
        identifier, highest = lane.silent
        number = effect.number or MAX_MESSAGE_NUMBER + 1  # the end of the Sequence comes last
        if effect.identifier != identifier or number > highest:
            lane.silent = effect.identifier, number
            log.warning("destination.silent", key=effect.key, to=self.to, message_number=effect.number)

    def _submitted(self, effect: Submitted) -> None:
        count = effect.last - effect.first + 1
        self.progress.stored += count
        self.progress.outstanding += count
        self.lanes[effect.key].tell_submitted(effect.first, effect.last)

    def _acknowledged(self, effect: Acknowledged) -> None:
        count = effect.last - effect.first + 1
        self.progress.acknowledged += count
        self.progress.outstanding -= count
        note_progress(self.progress)
        self.lanes[effect.key].tell_acknowledged(effect.first, effect.last)

    def _discarded(self, effect: Discarded) -> None:
        self.progress.outstanding -= 1
        error = DeliveryError("the message was discarded and is not sent")
        fail(self.lanes[effect.key].acknowledged.pop(effect.offset, []), error)

    def replied(self, offset: int, record: Record) -> None:
        """Give a reply that is durable to the caller that waits for it."""
        if record.relates_to is None:
            return
        self.asked.pop(record.relates_to, None)
        self.here.put(record.relates_to, offset)
        if not self._waiting[record.relates_to]:
            # A reply counts as received once it is given, so one that no caller waits for stays in the store.
            self.replies.pop(record.relates_to, None)
            return
        future = self.replies.get(record.relates_to)
        if future is not None and not future.done():
            future.set_result(self.here.give(record.relates_to, record))

    def _unanswered(self, effect: Unanswered) -> None:
        self.asked.pop(effect.message_id, None)
        future = self.replies.get(effect.message_id)
        if future is not None:
            fail([future], unanswered_error(effect, self.to))

    def _stopped(self, effect: Stopped) -> None:
        lane = self.lanes[effect.key]
        waiting = lane.outbox.records.end - lane.outbox.records.first
        error = stop_error(effect, self.to, waiting, shown(self._store), self.because(), self._own())
        lane.stop_error = error
        self._tell_stopped(effect.key, effect.code, effect.reason, error)
        lane.fail_waiting(error)
        # The outbox of an earlier process's request is unknown, so its waiting callers fail as well.
        fail((reply for name, reply in self.replies.items() if self.asked.get(name, lane) is lane), error)
        if lane.ended is not None and not lane.ended.done():
            lane.ended.set_exception(error)
            lane.ended = None

    def _tell_stopped(self, key: str, code: str, reason: str, error: HoldfastError) -> None:
        log.error("sending.stopped", key=key, to=self.to, code=code, reason=reason)
        note_stopped(self.progress, key, " ".join(error.message.split()))

    def resumed(self, lane: Lane) -> None:
        """The operator resumes a lane: it is no problem any more, if it was stopped."""
        lane.stop_error = None
        note_resumed(self.progress, lane.outbox.key)

    def safe_error(self, error: BaseException) -> BaseException:
        """Return the error for callers with a stored message: it is safe, and the caller must not send it again."""
        return stored_error(error, shown(self._store), self.progress.outstanding)

    def store_failed(self, error: BaseException) -> None:
        self.fail_all(self.safe_error(error), unstored_error(error, shown(self._store)))

    def fail_all(self, error: BaseException, unstored: BaseException) -> None:
        """Fail all waiting calls: with ``error`` if their message is stored, else with ``unstored``."""
        for lane in self.lanes.values():
            lane.fail_all(error, unstored)
        fail(self.replies.values(), error)
        self.here.fail_all(error)


def _not_acknowledged(message_id: str, text: str, remedy: str) -> NotAcknowledged:
    error = NotAcknowledged(text, remedy=remedy)
    error.message_id = message_id
    return error
