"""A .NET client with a reliable session, scripted: its envelopes, its window, its timers, and its intolerance.

It is as strict as the real client where that one is strict, and says precisely what it did not like: SessionFaulted.
Where the real one would stall for ever (an answer it cannot read) it faults at once: a test then fails with a reason.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from lxml import etree
from wcf import wire
from wcf.transport import Exchange, Losses, Message, read_message

_RETRY_FLOOR = 0.4
"""Seconds added to the round trip before the first retransmission: about half a second with an ordinary one."""

_MAX_RETRIES = 8
_REQUEST_INTERVAL = 10.0
_LEAST_REQUEST_INTERVAL = 0.2  # in whatever scale: a busy machine is not to use up the tries
"""Seconds between tries of CreateSequence, CloseSequence and TerminateSequence."""

_REQUEST_TRIES = 6
_TRANSIENT = (408, 429, 502, 503, 504)


class SessionFaulted(Exception):
    """The session is dead and the application gets an exception; nothing recovers it.

    Args:
        reason: What was wrong, in a sentence.
        code: The fault's local name when a fault of the peer's killed it.
        recognised: Whether .NET would have taken that fault for the RM fault it means to be.
    """

    def __init__(self, reason: str, code: str = "", *, recognised: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.recognised = recognised


class ApplicationFault(Exception):
    """The operation answered with a fault; the session lives on."""


class _Entry:
    """One message in the window."""

    __slots__ = ("kind", "last_attempt", "message_id", "number", "render", "result", "retries", "transferred")

    def __init__(self, kind: str, render: Callable[[int], bytes], message_id: str | None) -> None:
        self.kind = kind
        self.render = render
        self.message_id = message_id
        self.number = 0
        self.transferred = False
        self.retries = 0
        self.last_attempt = 0.0
        self.result: asyncio.Future[wire.Read | None] = asyncio.get_running_loop().create_future()


class ScriptedWCFClient:
    """One reliable session of a .NET client.

    Args:
        url: Where to connect.
        versions: Anything with ``rm``, ``addressing`` and ``soap``.
        contract: "oneway" (no Offer) or "twoway" (always an Offer; one-way operations travel in it too).
        to: The logical address in wsa:To when it is another than ``url`` (a proxy, another host name).
        time_scale: Factor on every timer of .NET's (not on measured round trips).
        longest_round_trip: Seconds; a longer one, which is a busy machine's doing, is measured as this.
        inactivity: Seconds, before scaling: half of it idle brings an AckRequested; all of it silent, and no less than
            ten minutes of the clock, kills the session.
        drop_requests, drop_responses, loss_rate, seed: See ``Losses``.
        mutate: Rewrites each envelope before it leaves, given its kind: to make a deliberately wrong client.
    """

    def __init__(
        self,
        url: str,
        versions: Any,
        contract: str = "twoway",
        *,
        to: str | None = None,
        time_scale: float = 1.0,
        longest_round_trip: float = math.inf,
        inactivity: float = 600.0,
        max_window: int = 8,
        drop_requests: Iterable[int | str] = (),
        drop_responses: Iterable[int | str] = (),
        loss_rate: float = 0.0,
        seed: int = 0,
        mutate: Callable[[str, bytes], bytes] | None = None,
    ) -> None:
        if contract not in ("oneway", "twoway"):
            raise ValueError(f"contract is 'oneway' or 'twoway', not {contract!r}")
        self.profile = wire.profile_of(versions)
        self.two_way = contract == "twoway"
        self.to = to or url
        self.scale = time_scale
        self.transcript: list[Exchange] = []
        self.slow_close: list[str] = []
        self.early_acknowledgements: list[tuple[int, int]] = []
        self.identifier = ""
        self.offered = wire.new_id() if self.two_way else ""
        self.replies: dict[int, bytes] = {}
        self.peer_buffer: int | None = None
        self.quota = 2**31 - 1
        self.window_size = 1
        self.last = 0
        self._location = urlsplit(url)
        self._inactivity = inactivity * time_scale
        self._silence = max(self._inactivity, 600.0)  # a busy machine may be silent for all of a scaled one
        self._losses = Losses(drop_requests, drop_responses, loss_rate, seed)
        self._mutate = mutate
        self._max_window = max_window
        self._threshold = self._loss_window = max_window
        self._congestion_acks = 0
        self._startup = True
        self._window: list[_Entry] = []
        self._window_start = 1
        self._acknowledged: set[int] = set()
        self._waiting: deque[tuple[asyncio.Future[None], _Entry]] = deque()
        self._to_resend: deque[_Entry] = deque()
        self._longest_rtt = longest_round_trip
        self._rtt = self._rtt_error = self._timeout = 0.0
        self._retry_timer: asyncio.TimerHandle | None = None
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._poke = asyncio.Event()
        self._last_local = self._last_remote = 0.0
        self._reply_to: dict[int, str | None] = {}
        self._closing = False
        self._finals_due = False
        self._dead: SessionFaulted | None = None

    # --- what a test calls -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """CreateSequence, repeated every ten seconds with the same MessageID and Offer until it is answered."""
        message_id = wire.new_id()
        began = time.monotonic()
        response = await self._ask("CreateSequence", lambda: self._create_sequence(message_id), mandatory=True)
        assert response is not None
        self._rtt = min(time.monotonic() - began, self._longest_rtt)
        self._rtt_error = self._rtt / 2
        self._set_timeout()
        self._check_created(response, message_id)
        self._last_local = self._last_remote = time.monotonic()
        self._spawn(self._poll())

    async def notify(self, key: str, number: int, body: str = "hello") -> None:
        """The one-way operation. Returns when its first attempt has ended (one-way) or it is acknowledged (two-way)."""
        content = _operation("notify", key, number, body)
        entry = await self._add(_Entry("Notify", self._renderer(wire.NOTIFY, content), None))
        await self._first_attempt(entry)
        if self.two_way:
            await self._outcome(entry)

    async def echo(self, key: str, number: int, body: str = "hello") -> str:
        """The request/reply operation: the body of its reply. Raises ApplicationFault for an application's fault."""
        identifier = wire.new_id()
        content = _operation("echo", key, number, body)
        entry = await self._add(_Entry("Echo", self._renderer(wire.ECHO, content, identifier), identifier))
        await self._first_attempt(entry)
        reply = await self._outcome(entry)
        if reply is None or reply.body is None:
            raise self._die("the answer to a request did not provide a meaningful reply")
        if reply.fault is not None:
            raise ApplicationFault(reply.fault.reason)
        element = reply.body.find(f"{{{wire.CONTRACT_NS}}}body")
        return (element.text or "") if element is not None else etree.tostring(reply.body).decode()

    async def close(self) -> None:
        """Ends the session the way of its version; returns when it is over."""
        if self._dead:
            raise self._dead
        self._closing = True
        if self.profile.rm == "1.0":
            entry = await self._add(_Entry("LastMessage", self._last_message, None))
            self.last = entry.number
            await self._first_attempt(entry)
            reply = await self._outcome(entry)
            if self.two_way and (reply is None or not self._is_last_message(reply)):
                self.slow_close.append("LastMessage was not answered by a LastMessage of the offered sequence")
        await self._drained()
        self._check_replies_are_whole()
        if self.profile.rm == "1.0":
            await self._terminate_10()
        else:
            self.last = self._window_start - 1
            await self._close_11()
        await self.abort()
        if self._dead:
            raise self._dead

    def idle(self, seconds: float) -> None:
        """As if nothing had been sent for so long."""
        self._last_local -= seconds
        self._poke.set()

    async def abort(self) -> None:
        """Stops every timer and connection without another word."""
        if self._retry_timer:
            self._retry_timer.cancel()
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def __aenter__(self) -> ScriptedWCFClient:
        try:
            await self.open()
        except BaseException:
            await self.abort()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                await self.close()
            finally:
                await self.abort()
        else:
            await self.abort()

    def sent(self, kind: str) -> list[Exchange]:
        """The exchanges of that kind, repeats included."""
        return [exchange for exchange in self.transcript if exchange.kind == kind]

    # --- what it says ------------------------------------------------------------------------------------------------

    def _create_sequence(self, message_id: str) -> bytes:
        p = self.profile
        anonymous = f"<a:Address>{p.anonymous}</a:Address>"
        headers = [wire.action(p.action("CreateSequence")), wire.message_id(message_id)]
        if p.addressing == "2004/08":
            headers.append(wire.reply_to_anonymous(p))
        headers.append(wire.to(self.to))
        offer = ""
        if self.two_way:
            offer = f"<Offer><Identifier>{self.offered}</Identifier>"
            if p.rm == "1.1":
                offer += f"<Endpoint>{anonymous}</Endpoint>"
                offer += "<IncompleteSequenceBehavior>DiscardFollowingFirstGap</IncompleteSequenceBehavior>"
            offer += "</Offer>"
        body = f'<CreateSequence xmlns="{p.rm_ns}"><AcksTo>{anonymous}</AcksTo>{offer}</CreateSequence>'
        return wire.envelope(p, headers, body)

    def _renderer(self, action: str, content: str, message_id: str | None = None) -> Callable[[int], bytes]:
        def render(number: int) -> bytes:
            headers = [*self._acknowledgement(), wire.sequence(self.identifier, number), wire.action(action)]
            if message_id is not None:
                headers += [wire.message_id(message_id), wire.reply_to_anonymous(self.profile)]
            return wire.envelope(self.profile, [*headers, wire.to(self.to)], content, application=True)

        return render

    def _last_message(self, number: int) -> bytes:
        p = self.profile
        header = wire.sequence(self.identifier, number, last=True)
        return wire.envelope(
            p, [*self._acknowledgement(), header, wire.action(p.action("LastMessage")), wire.to(self.to)]
        )

    def _ack_requested(self) -> bytes:
        p = self.profile
        headers = [*self._acknowledgement(), wire.ack_requested(self.identifier)]
        return wire.envelope(p, [*headers, wire.action(p.action("AckRequested")), wire.to(self.to)])

    def _acknowledgement(self) -> list[str]:
        """The header that acknowledges the replies; none before the first reply."""
        if not self.replies:
            return []
        return [wire.acknowledgement(self.profile, self.offered, self.replies, final=self._finals_due)]

    def _ending(self, name: str, message_id: str | None) -> bytes:
        p = self.profile
        headers = []
        if self.two_way:
            headers.append(wire.acknowledgement(p, self.offered, self.replies, final=True))
        headers.append(wire.action(p.action(name)))
        if message_id is not None:
            headers.append(wire.message_id(message_id))
            if p.addressing == "2004/08":
                headers.append(wire.reply_to_anonymous(p))
        last = self.last if p.rm == "1.1" else 0
        return wire.about_sequence(p, [*headers, wire.to(self.to)], name, self.identifier, last)

    # --- closing -----------------------------------------------------------------------------------------------------

    async def _terminate_10(self) -> None:
        if not self.two_way:
            await self._exchange("TerminateSequence", self._ending("TerminateSequence", None))
            return
        message_id = wire.new_id()
        answer = await self._ask(
            "TerminateSequence", lambda: self._ending("TerminateSequence", message_id), mandatory=False
        )
        if answer is None:
            self.slow_close.append("TerminateSequence was not answered by a TerminateSequence of the offered sequence")
            return
        self._check_identifiers(answer)
        if answer.control != "TerminateSequence" or _identifier(self.profile, answer) != self.offered:
            raise self._die("TerminateSequence is not answered by a TerminateSequence of the offered sequence")

    async def _close_11(self) -> None:
        self._finals_due = True
        for name in ("CloseSequence", "TerminateSequence"):
            message_id = wire.new_id()

            def render(name: str = name, message_id: str = message_id) -> bytes:
                return self._ending(name, message_id)

            answer = await self._ask(name, render, mandatory=name == "CloseSequence")
            if answer is None:
                self.slow_close.append(f"{name} was not answered")
            elif answer.fault is None:
                self._check_ended(answer, name, message_id)

    def _check_ended(self, answer: wire.Read, name: str, message_id: str) -> None:
        self._check_identifiers(answer)
        if answer.control != f"{name}Response":
            raise self._die(f"{name} is answered by {answer.control or answer.action}")
        if answer.relates_to != message_id:
            raise self._die(f"{name}Response relates to {answer.relates_to}, not to {message_id}")
        if _identifier(self.profile, answer) != self.identifier:
            raise self._die(f"{name}Response names another sequence")
        final = answer.acknowledgement
        if final is None or not final.final:
            raise self._die(f"{name}Response has no acknowledgement with Final")
        expected = [(1, self.last)] if self.last else []
        if final.ranges != expected:
            raise self._die(f"the final acknowledgement in {name}Response is {final.ranges}, not {expected}")

    def _is_last_message(self, reply: wire.Read) -> bool:
        return reply.action == self.profile.action("LastMessage") and reply.sequence is not None and reply.sequence.last

    def _check_replies_are_whole(self) -> None:
        missing = [number for number in range(1, max(self.replies, default=0)) if number not in self.replies]
        if missing:
            raise self._die(f"the replies' numbers have gaps: {missing} never came")

    async def _drained(self) -> None:
        while self._window:
            await asyncio.wait([self._window[0].result])
            if self._dead:
                raise self._dead
            await asyncio.sleep(0)

    # --- requests of the session itself ------------------------------------------------------------------------------

    async def _ask(self, kind: str, render: Callable[[], bytes], *, mandatory: bool) -> wire.Read | None:
        """Sends until answered, every ten seconds, six times; a late answer to an earlier try counts too."""
        pending: set[asyncio.Task[wire.Read | None]] = set()
        interval = max(_REQUEST_INTERVAL * self.scale, _LEAST_REQUEST_INTERVAL)
        try:
            for _ in range(_REQUEST_TRIES):
                pending.add(asyncio.create_task(self._one_try(kind, render())))
                deadline = time.monotonic() + interval
                while (left := deadline - time.monotonic()) > 0:
                    if not pending:
                        await asyncio.sleep(left)
                        break
                    done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        if (answer := task.result()) is not None:
                            return answer
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        if mandatory:
            raise self._die(f"{kind} was sent {_REQUEST_TRIES} times and never answered")
        return None

    async def _one_try(self, kind: str, envelope: bytes) -> wire.Read | None:
        answer = await self._exchange(kind, envelope)
        if answer is None or answer.fault is None:
            return answer
        if kind == "TerminateSequence" and self.profile.rm == "1.1" and answer.fault.code == "UnknownSequence":
            return answer
        raise self._die_of_fault(answer.fault)

    def _check_created(self, response: wire.Read, message_id: str) -> None:
        p = self.profile
        if response.control != "CreateSequenceResponse":
            raise self._die(f"CreateSequence is answered by {response.control or response.action}")
        if response.action != p.action("CreateSequenceResponse"):
            raise self._die(f"CreateSequenceResponse has the action {response.action}")
        if response.relates_to != message_id:
            raise self._die(f"CreateSequenceResponse relates to {response.relates_to}, not to {message_id}")
        allowed = [("Identifier", True), ("Expires", False)]
        allowed += [("IncompleteSequenceBehavior", False)] if p.rm == "1.1" else []
        found = self._strictly(wire.children_in_order, p, response.body, [*allowed, ("Accept", False)])
        self.identifier = (found["Identifier"].text or "").strip()
        if not self.identifier:
            raise self._die("CreateSequenceResponse names no sequence")
        if ("Accept" in found) != self.two_way:
            said = "is missing though a sequence was offered" if self.two_way else "is there though none was offered"
            raise self._die(f"Accept {said}")
        if self.two_way:
            acks_to = self._strictly(wire.children_in_order, p, found["Accept"], [("AcksTo", True)])["AcksTo"]
            address = self._strictly(wire.address_of, p, acks_to)
            if address != self.to:
                raise self._die(f"Accept/AcksTo is {address!r}, which is not the request's To {self.to!r}")

    def _strictly(self, reader: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return reader(*arguments)
        except wire.NotAsWCFReads as error:
            raise self._die(error.reason) from None

    # --- the window --------------------------------------------------------------------------------------------------

    async def _add(self, entry: _Entry) -> _Entry:
        """Waits for room in the window and the peer's buffer, in turn, and takes the next number."""
        if self._dead:
            raise self._dead
        if self._waiting or not self._has_room():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, entry))
            await turn
        else:
            self._reserve(entry)
        return entry

    def _reserve(self, entry: _Entry) -> None:
        entry.number = self._window_start + len(self._window)
        entry.last_attempt = time.monotonic()
        self._window.append(entry)
        if len(self._window) == 1:
            self._arm()
        self.quota -= 1

    def _has_room(self) -> bool:
        return len(self._window) < self.window_size and self.quota > 0

    def _admit(self) -> None:
        while self._waiting and self._has_room():
            turn, entry = self._waiting.popleft()
            if not turn.done():
                self._reserve(entry)
                turn.set_result(None)

    async def _first_attempt(self, entry: _Entry) -> None:
        try:
            await self._send(entry)
        except SessionFaulted as error:
            raise self._die_once(error) from None

    async def _outcome(self, entry: _Entry) -> wire.Read | None:
        return await asyncio.shield(entry.result)

    async def _send(self, entry: _Entry) -> None:
        answer = await self._exchange(entry.kind, entry.render(entry.number))
        self._last_local = time.monotonic()
        if answer is not None and not self._dead:
            self._take(answer, entry)

    def _arm(self) -> None:
        if self._retry_timer:
            self._retry_timer.cancel()
        if self._window and not self._dead:
            self._retry_timer = asyncio.get_running_loop().call_later(self._timeout, self._retry)

    def _retry(self) -> None:
        """The timer ran out: the first message again, a window of one, and twice the time."""
        if not self._window or self._dead:
            return
        entry = self._window[0]
        entry.retries += 1
        entry.last_attempt = time.monotonic()
        if entry.retries > _MAX_RETRIES:
            self._die(f"message {entry.number} was retried {_MAX_RETRIES} times: maximum retry count exceeded")
            return
        self._congestion_acks = 0
        self._threshold = max(1, self.window_size // 2)
        self._loss_window = self.window_size
        self.window_size = 1
        self._timeout *= 2
        self._startup = False
        self._spawn(self._send_again(entry))
        self._arm()

    async def _send_again(self, entry: _Entry) -> None:
        # It may arrive before this begins, and the session go on to its end: what is said then would come too early.
        if not entry.transferred:
            await self._send(entry)

    def _set_timeout(self) -> None:
        self._timeout = max(_RETRY_FLOOR * self.scale + self._rtt, self._rtt + 4 * self._rtt_error)

    def _transferred(self, numbers: set[int]) -> None:
        """Marks messages as arrived, slides the window, lets it grow, and sends again what follows a loss."""
        for entry in self._window:
            if entry.number in numbers:
                entry.transferred = True
                if not self.two_way and not entry.result.done():
                    entry.result.set_result(None)
        slide = 0
        while slide < len(self._window) and self._window[slide].transferred:
            slide += 1
        in_flight = max(0, min(self.window_size, len(self._window)) - slide)
        if self.peer_buffer is not None:
            self.quota = self.peer_buffer - in_flight
        if slide:
            self._slide(slide)
        self._poke.set()
        self._admit()

    def _slide(self, slide: int) -> None:
        now = time.monotonic()
        for entry in self._window[:slide]:
            error = min(now - entry.last_attempt, self._longest_rtt) - self._rtt
            self._rtt_error += (abs(error) - self._rtt_error) / 8
            self._rtt += error / 8
        self._set_timeout()
        old_end = self._window_start + self.window_size
        del self._window[:slide]
        self._window_start += slide
        first = self._grow(slide, old_end)
        for entry in self._window[first : self.window_size]:
            if not entry.transferred and entry not in self._to_resend:
                self._to_resend.append(entry)
        if self._to_resend:
            self._spawn(self._resend())
        self._arm()

    def _grow(self, slide: int, old_end: int) -> int:
        """Slow start, then one step for many acknowledgements. Returns the first place in the window to send again."""
        beyond = max(0, old_end - self._window_start)
        if self.window_size <= self._threshold:
            self.window_size = min(self._max_window, self._threshold + 1, self.window_size + slide)
            return beyond if self._startup else 0
        self._congestion_acks += slide
        segment = max(1, (self._loss_window - self._threshold) // 8)
        if self._congestion_acks > (self.window_size - self._threshold) * self.window_size // segment:
            self._congestion_acks = 0
            self.window_size = min(self._max_window, self.window_size + 1)
        return beyond

    async def _resend(self) -> None:
        # These do not count towards the eight: only the timer's retries of the first message do, so that
        # what a run ends with does not hang on how many answers crossed each other.
        while self._to_resend:
            entry = self._to_resend.popleft()
            if not entry.transferred:
                entry.last_attempt = time.monotonic()
                await self._send(entry)

    # --- what it is answered -----------------------------------------------------------------------------------------

    def _take(self, answer: wire.Read, entry: _Entry | None) -> None:
        """Judges an answer to a message (``entry``) or to a lone AckRequested (None)."""
        if answer.fault is not None and answer.sequence is None:
            raise self._die_of_fault(answer.fault)
        self._check_identifiers(answer)
        ack = answer.acknowledgement
        if ack is None:
            if self.two_way or answer.control or answer.body is not None:
                raise self._die("an answer without an acknowledgement")
            return
        sent = self._window_start + len(self._window) - 1
        if ack.ranges and ack.ranges[-1][1] > sent:
            raise self._die(f"the acknowledgement {ack.ranges} covers numbers never sent: the last one was {sent}")
        if ack.final and not self._finals_due:
            raise self._die("the peer closed the sequence by itself")
        self.peer_buffer = ack.buffer if ack.buffer is not None else self.peer_buffer
        self._last_remote = time.monotonic()
        if self.two_way:
            self._take_two_way(answer, ack, entry)
        else:
            self._take_one_way(ack)

    def _take_one_way(self, ack: wire.Acknowledgement) -> None:
        known = self._acknowledged
        if known - ack.numbers and ack.numbers - known:
            raise self._die(f"the acknowledgement {ack.ranges} forgets numbers acknowledged before")
        self._acknowledged |= ack.numbers
        self._transferred(ack.numbers)

    def _take_two_way(self, answer: wire.Read, ack: wire.Acknowledgement, entry: _Entry | None) -> None:
        if entry is not None and entry.number not in ack:
            raise self._die(f"the answer to message {entry.number} acknowledges {ack.ranges}, not this message")
        for other in self._window:
            if other is not entry and other.kind == "Echo" and other.number in ack and not other.result.done():
                self.early_acknowledgements.append((len(self.transcript), other.number))
        if answer.sequence is not None:
            self._take_reply(answer, answer.sequence, entry)
        if entry is None:
            self._transferred(set())
            return
        if entry.kind == "Echo" and answer.sequence is None:
            raise self._die(f"message {entry.number} is acknowledged without its reply: no meaningful reply")
        if not entry.result.done():
            entry.result.set_result(answer)
        self._transferred({entry.number})

    def _take_reply(self, answer: wire.Read, header: wire.SequenceHeader, entry: _Entry | None) -> None:
        if entry is None:
            raise self._die("a reply in the answer to a lone AckRequested")
        if entry.kind == "Echo" and answer.relates_to != entry.message_id:
            raise self._die(f"the reply relates to {answer.relates_to}, the request was {entry.message_id}")
        if header.number > self._window_start + len(self._window) - 1:
            raise self._die(f"reply number {header.number} though fewer messages were sent")
        if header.last and not self._closing:
            raise self._die("the peer ended the offered sequence by itself")
        before = next((number for number, owner in self._reply_to.items() if owner == _owner(entry)), header.number)
        if before != header.number:
            raise self._die(f"the reply to message {entry.number} had the number {before} and now {header.number}")
        if self._reply_to.setdefault(header.number, _owner(entry)) != _owner(entry):
            raise self._die(f"reply number {header.number} is used for two requests")
        if self.replies.setdefault(header.number, answer.body_bytes) != answer.body_bytes:
            raise self._die(f"reply {header.number} came again with another body")

    def _check_identifiers(self, answer: wire.Read) -> None:
        if answer.acknowledgement is not None and answer.acknowledgement.identifier != self.identifier:
            raise self._die(f"an acknowledgement of an unknown sequence {answer.acknowledgement.identifier}")
        if answer.sequence is not None and (not self.two_way or answer.sequence.identifier != self.offered):
            raise self._die(f"a message of an unknown sequence {answer.sequence.identifier}")
        if answer.ack_requested is not None and answer.ack_requested != self.offered:
            raise self._die(f"an AckRequested for an unknown sequence {answer.ack_requested}")

    # --- timers ------------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """The keep-alive, and the question whether the peer has room again."""
        while not self._dead:
            full = self.quota <= 0
            interval = self._inactivity / (16 if full else 2)
            deadline = min(self._last_local + interval, self._last_remote + self._silence)
            self._poke.clear()
            try:
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with what it waits for.
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._poke.wait()
            except TimeoutError:
                if time.monotonic() - self._last_remote >= self._silence:
                    raise self._die("nothing came from the peer for the whole inactivity timeout") from None
                self._last_local = time.monotonic()
                answer = await self._exchange("AckRequested", self._ack_requested())
                if answer is not None:
                    self._take(answer, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except SessionFaulted as error:
                self._die_once(error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before it began, it would be missed

    # --- death -------------------------------------------------------------------------------------------------------

    def _die(self, reason: str) -> SessionFaulted:
        return self._die_once(SessionFaulted(reason))

    def _die_of_fault(self, fault: wire.FaultBody) -> SessionFaulted:
        text = f"{fault.code}: {fault.reason}"
        return self._die_once(SessionFaulted(text, fault.code, recognised=fault.recognised))

    def _die_once(self, error: SessionFaulted) -> SessionFaulted:
        """The first reason is the session's; every waiting call gets it."""
        if self._dead is None:
            self._dead = error
            if self._retry_timer:
                self._retry_timer.cancel()
            turns: list[asyncio.Future[Any]] = [turn for turn, _ in self._waiting]
            for future in [*turns, *(entry.result for entry in self._window)]:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # counts as looked at, should nobody be waiting
            self._poke.set()
        return self._dead

    # --- HTTP --------------------------------------------------------------------------------------------------------

    async def _exchange(self, kind: str, envelope: bytes) -> wire.Read | None:
        """One HTTP exchange. None for everything that .NET meets by sending again."""
        envelope = self._mutate(kind, envelope) if self._mutate else envelope
        exchange = Exchange(len(self.transcript) + 1, kind, envelope, self._head(kind, envelope))
        self.transcript.append(exchange)
        if self._losses.loses_request(exchange):
            exchange.outcome = "request lost"
            return None
        try:
            message = await self._roundtrip(exchange.request_head + envelope)
        except (OSError, asyncio.IncompleteReadError):
            exchange.outcome = "no connection"
            return None
        exchange.status, exchange.response, exchange.response_headers = message.status, message.body, message.headers
        if self._losses.loses_response(exchange):
            exchange.outcome = "response lost"
            return None
        exchange.outcome = "answered"
        return self._read(message)

    def _read(self, message: Message) -> wire.Read | None:
        if message.status in _TRANSIENT or (message.status in (200, 202) and not message.body):
            return None
        if message.status == 202:
            raise self._die("HTTP 202 with a body")
        if message.status not in (200, 500):
            raise self._die(f"HTTP {message.start.split(' ', 1)[1]}")
        try:
            answer = wire.read(self.profile, message.headers.get("content-type", ""), message.body)
        except wire.NotAsWCFReads as error:
            raise self._die(error.reason) from None
        if message.status == 500 and answer.fault is None:
            raise self._die("HTTP 500 without a fault")
        return answer

    def _head(self, kind: str, envelope: bytes) -> bytes:
        uri = {"Notify": wire.NOTIFY, "Echo": wire.ECHO}.get(kind) or self.profile.action(kind)
        lines = [
            f"POST {self._location.path or '/'} HTTP/1.1",
            f"Host: {self._location.netloc}",
            "Cache-Control: no-cache, max-age=0",
        ]
        if self.profile.soap == "1.1":
            lines.append(f'SOAPAction: "{uri}"')
        lines += [
            "Accept-Encoding: gzip, deflate",
            f"Content-Type: {self.profile.content_type}",
            f"Content-Length: {len(envelope)}",
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def _roundtrip(self, request: bytes) -> Message:
        if self._idle:
            connection = self._idle.pop()
            try:
                return await self._on_connection(connection, request)
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
            except OSError:
                pass
            # An idle connection the server had closed meanwhile: .NET takes a fresh one, without telling anybody.
        host, port = self._location.hostname or "", self._location.port or 80
        return await self._on_connection(await asyncio.open_connection(host, port), request)

    async def _on_connection(
        self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes
    ) -> Message:
        reader, writer = connection
        try:
            writer.write(request)
            message = await read_message(reader, response=True)
        except BaseException:
            writer.close()
            raise
        if message.headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append(connection)
        return message


def _owner(entry: _Entry) -> str:
    return entry.message_id or f"message {entry.number}"


def _operation(name: str, key: str, number: int, body: str) -> str:
    return (
        f'<{name} xmlns="{wire.CONTRACT_NS}"><key>{escape(key)}</key><number>{number}</number>'
        f"<body>{escape(body)}</body></{name}>"
    )


def _identifier(profile: wire.Profile, answer: wire.Read) -> str:
    return answer.body.findtext(f"{{{profile.rm_ns}}}Identifier", "").strip() if answer.body is not None else ""
