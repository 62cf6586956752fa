"""Sender: carries what the protocol transmits over HTTP and brings back what the peer answered."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial

from holdfast.core.events import Transmit
from holdfast.core.faults import HTTP_REFUSES_CREDENTIALS, LOCKS_ACCOUNT
from holdfast.core.messages import (
    CloseSequence,
    CreateSequence,
    Envelope,
    Fault,
    MakeConnection,
    TerminateSequence,
    is_polled,
)
from holdfast.core.origin import Origin, without_secrets
from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.envelopes.chain import pass_on
from holdfast.endpoint.envelopes.envelopes import Envelopes, Notes
from holdfast.endpoint.envelopes.head_spool import TOO_LARGE_REMEDY
from holdfast.endpoint.envelopes.processors import ExtraRequest, RequestFirst
from holdfast.endpoint.failures import brief
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.extra_requests import ExtraRequests
from holdfast.endpoint.sending.outboxes import forwarder_of
from holdfast.endpoint.sending.parties import origin_of
from holdfast.endpoint.sending.pauses import Pauses
from holdfast.endpoint.sending.stopped import TO_CREDENTIALS
from holdfast.exceptions import (
    EnvelopeError,
    HoldfastError,
    LimitExceeded,
    MessageFlowError,
    ProcessorError,
    clause,
)
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import AnswerSpooling, Outcome, Response, Streamed, Transport, TransportError, words_of
from holdfast.wire import action_of, http_headers, pack

RETRYABLE_STATUS = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that do not concern the request itself: the same request may succeed later."""

PAUSING_STATUS = (429, 503)
"""Statuses with a Retry-After that applies to the whole peer (RFC 6585 section 4, RFC 9110 section 15.6.4)."""


RETIRED_FOR = 300.0
"""Seconds that a replaced transport has to finish its requests in flight."""
_CREDENTIAL_FIELDS = ("authorization", "proxy-authorization", "cookie")
_ASK = "Check the URL, and that reliable messaging is enabled there."
_Written = tuple[str, bytes | Streamed, Notes | None, ExtraRequest | None]
"""Media type, "" for the usual one; content; notes for the answer; the request that follows."""
MOST_INLINED = 2
"""Messages to one address whose attachments are in memory at a time, because a signature is over them."""
_MOST_FIELDS = 256
"""Maximum number of actions with cached HTTP headers."""
_MOST_CLAIMED = 500
"""Maximum number of characters of the reason in a fault that is not accepted, for the caller's error."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """The transport and headers for one address.

    Args:
        headers: Added to every request, e.g. Authorization.

    Attributes:
        has_credentials: Whether one of the headers has them; asked in each turn of an outbox.
    """

    http: Transport
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    has_credentials: bool = field(init=False)

    def __post_init__(self) -> None:
        found = any(name.lower() in _CREDENTIAL_FIELDS for name in self.headers)
        object.__setattr__(self, "has_credentials", found)


class Sender:
    """Sends for one engine.

    Args:
        engine: Receives answers and failures.
        envelopes: Writes what is posted, and reads what comes back.
        headers: Added to every request, e.g. Authorization.
        on_transport_error: Called with each failure, e.g. to tell the user why nothing moves.
        on_answer: Called for each other answer.
        is_trusted: Whether this process may still send; None: always.
        spooling: Returns where large answers go; None: all of them are in memory.
    """

    def __init__(
        self,
        engine: Engine,
        http: Transport,
        envelopes: Envelopes,
        headers: Mapping[str, str] | None = None,
        on_transport_error: Callable[[Transmit, str], None] = lambda _sent, _reason: None,
        on_answer: Callable[[Transmit], None] = lambda _sent: None,
        is_trusted: Callable[[], bool] | None = None,
        spooling: AnswerSpooling | None = None,
    ):
        self._engine = engine
        self._spooling = spooling
        self._usual = self._spools(Way(http, dict(headers or {})))
        self.ways: dict[str, Way] = {}
        """Address -> its transport, if it differs from the default. The sender closes these transports in the end."""
        self._retired: list[Transport] = []
        """Replaced transports that still finish requests."""
        self._retiring = BackgroundTasks()
        self._envelopes = envelopes
        envelopes.on_unproven = self._unproven
        envelopes.has_given = self._has_given
        envelopes.fail_with(engine.fail)
        engine.has_credentials = self._may_have_credentials
        self._extra = ExtraRequests(
            envelopes, self._post_extra, self._post_again, self._extra_failed, self._extra_unread
        )
        self._on_transport_error = on_transport_error
        self._on_answer = on_answer
        self._is_trusted = is_trusted
        self._paused: dict[int, asyncio.Handle] = {}
        self._inlined: dict[str, set[int]] = {}
        """Address -> the messages to it with attachments in memory, until their exchanges are over."""
        self._to_inline: dict[str, deque[tuple[Transmit, bool]]] = {}
        """Address -> the messages that wait for those."""
        self._followed: Counter[tuple[str, type, int]] = Counter()
        """Delivered requests of the protocol, while a processor's request that follows them is not answered yet."""
        self._came: list[tuple[Transmit, Envelope | TransportError | None, str]] = []
        self._fields: dict[tuple[Way, str, str], Mapping[str, str]] = {}
        self.pauses = Pauses()
        self.on_reply: Callable[[Envelope], None] | None = None
        """Called with each envelope that answers a request, before the protocol receives it; None: nothing is."""
        self._is_stopped = False
        self.transmissions = 0
        self.retransmissions: Counter[str] = Counter()
        """Forwarder -> number of its retransmitted messages and Sequence requests; "" for all other outboxes."""

    def use(self, to: str, way: Way | None) -> None:
        """Replace the transport of an address; None: the default. Requests in flight continue."""
        old = self.ways.pop(to, None)
        if way is not None:
            self.ways[to] = self._spools(way)
        if old is not None:
            self._retired.append(old.http)
            asyncio.get_running_loop().call_later(RETIRED_FOR, self._retire, old.http)

    def _spools(self, way: Way) -> Way:
        """Let the transport write large answers to the store while they arrive."""
        if isinstance(way.http, HTTPClient):
            way.http.spooling = self._spooling
        return way

    def _retire(self, http: Transport) -> None:
        if not self._is_stopped:
            self._retired.remove(http)
            self._retiring.start(http.close())

    def transmit(self, sent: Transmit) -> None:
        """Send, and report the outcome later. The window of each Sequence bounds its messages in flight."""
        if sent.envelope.relates_to is None:
            self._post(sent)
            return
        # It answers a request. This turn of the loop may write the 202 for that request, so it leaves in the next turn.
        loop, pause = asyncio.get_running_loop(), self.pauses.before(sent)
        then = self._engine.ending(self._post_paused)
        self._paused[id(sent)] = loop.call_later(pause, then, sent) if pause else loop.call_soon(then, sent)

    def _post_paused(self, sent: Transmit) -> None:
        del self._paused[id(sent)]
        self._post(sent)

    def _count_again(self, sent: Transmit) -> None:
        outbox = self._engine.protocol.outbound.sequences.by_local_id.get(sent.source)
        self.retransmissions[(forwarder_of(outbox.key) or "") if outbox is not None else ""] += 1

    def _post(self, sent: Transmit) -> None:
        self.transmissions += 1
        if sent.attempt > 1:
            self._count_again(sent)
        self._write_and_post(sent)

    def _write_and_post(self, sent: Transmit, *, is_last: bool = False) -> None:
        """Write a message and post it.

        Args:
            is_last: Whether a processor has had its request before it, so that another one is of no use.
        """
        if not sent.number and _kind(sent) in self._followed:
            return  # its answer is here, and the protocol gets it soon: nothing comes after the request that follows
        if self._envelopes.must_inline(sent.envelope, sent.to):
            self._to_inline.setdefault(sent.to, deque()).append((sent, is_last))
            self._inline_next(sent.to)
        else:
            self._write_inlined(sent, is_last, None)

    def _inline_next(self, to: str) -> None:
        line, inlined = self._to_inline[to], self._inlined.setdefault(to, set())
        while line and len(inlined) < MOST_INLINED:
            sent, is_last = line.popleft()
            inlined.add(id(sent))
            self._envelopes.inline(sent.envelope, partial(self._write_inlined, sent, is_last))
        if not line and not inlined:
            del self._to_inline[to], self._inlined[to]

    def _is_over(self, sent: Transmit) -> None:
        """Let the next message have its attachments in memory, if this one had."""
        if id(sent) in self._inlined.get(sent.to, ()):
            self._inlined[sent.to].discard(id(sent))
            self._inline_next(sent.to)

    def _write_inlined(self, sent: Transmit, is_last: bool, problem: Exception | None) -> None:
        if problem is not None:
            self._post_written(sent, is_last, problem)
        # To sign what was inlined takes long.
        elif self._envelopes.writing_waits or (self._inlined and id(sent) in self._inlined.get(sent.to, ())):
            self._envelopes.aside(partial(self._write, sent), partial(self._post_written, sent, is_last))
        else:
            self._post_written(sent, is_last, self._write(sent))

    def _write(self, sent: Transmit) -> _Written | Exception:
        """Return a message as it is sent, or what keeps it from being sent."""
        try:
            root, notes, following = self._envelopes.write(sent)
            if sent.envelope.attachments:
                media, content = pack(sent.envelope, root)
                return media, content, notes, following
        except Exception as error:
            return error
        return "", root, notes, following

    def _post_written(self, sent: Transmit, is_last: bool, written: _Written | Exception) -> None:
        if not self._is_stopped and not self._is_posted(sent, is_last, written):
            self._is_over(sent)

    def _is_posted(self, sent: Transmit, is_last: bool, written: _Written | Exception) -> bool:
        """Post a message; return False if it does not leave now."""
        # Two nodes that send the same Sequence would give one number to two messages.
        if self._is_trusted is not None and not self._is_trusted():
            self._come(sent, TransportError("another node may have taken over this message", connected=False))
            return False
        if isinstance(written, RequestFirst):
            if is_last:
                reason = f"the answer to {written.request.envelope.action} does not have what a processor needs"
                self._extra_failed(sent, None, reason, False)
            else:
                self._extra.first(sent, written.request)
            return False
        if isinstance(written, MessageFlowError):
            reason = f"the message to {sent.to} cannot be written now: {written.message}"
            self._failed(sent, reason, is_unreachable=False, has_left=False)
            self._engine.touch()
            return False
        if isinstance(written, Exception):  # every attempt would fail in the same way
            self._unsendable(sent, written)
            return False
        media, content, notes, following = written
        envelope = sent.envelope
        way = self.ways.get(sent.to, self._usual)
        fields = self._fields_of(envelope, way)
        if media:
            fields = {**fields, "Content-Type": media}
        told: Callable[[Outcome], None] = partial(self._told, sent, notes)
        if following is not None:
            told = partial(self._follow, sent, following, told)
        if self._envelopes.tracing is not None and sent.number:
            fields, told = self._envelopes.tracing.forwarding(sent, fields, told)
        self._request(way, sent.to, content, fields, told)
        return True

    def _request(
        self,
        way: Way,
        to: str,
        content: bytes | Streamed,
        fields: Mapping[str, str],
        told: Callable[[Outcome], None],
    ) -> None:
        told = self._engine.ending(told)
        try:
            way.http.request("POST", to, content, fields, told)
        except Exception as error:  # a transport of the user's own: whatever it raises, the message is sent again
            told(TransportError(f"the transport failed to send to {to}: {brief(error)}", connected=True))

    def _post_again(self, sent: Transmit) -> None:
        """Write and post a message that has waited for a request of a processor's."""
        if not self._is_stopped:
            self._write_and_post(sent, is_last=True)

    def _post_extra(self, asked: Transmit, content: bytes, told: Callable[[Outcome], None]) -> None:
        way = self.ways.get(asked.to, self._usual)
        self._request(way, asked.to, content, self._fields_of(asked.envelope, way), told)

    def _follow(
        self, sent: Transmit, following: ExtraRequest, told: Callable[[Outcome], None], outcome: Outcome
    ) -> None:
        """Send the request that follows a delivered message, before anything is done with the message's answer."""
        if self._is_stopped or isinstance(outcome, TransportError) or not 200 <= outcome.status < 300:
            told(outcome)
        else:
            self._followed[_kind(sent)] += 1
            self._extra.afterwards(sent, following, partial(self._end_follow, sent, told, outcome))

    def _end_follow(self, sent: Transmit, told: Callable[[Outcome], None], outcome: Outcome) -> None:
        kind = _kind(sent)
        self._followed[kind] -= 1
        if not self._followed[kind]:
            del self._followed[kind]
        told(outcome)

    def _extra_failed(self, sent: Transmit, fault: Envelope | None, reason: str, is_unreachable: bool) -> None:
        """Report that a message did not leave, since the request before it failed: with a fault, or for a reason."""
        if self._is_stopped:
            return
        if fault is not None:
            self._come(sent, fault)
        else:
            self._failed(sent, reason, is_unreachable=is_unreachable, has_left=False)
            self._engine.touch()

    def _extra_unread(self, sent: Transmit, response: Response, error: EnvelopeError) -> None:
        """Report that a message did not leave, since the answer to the request before it is no SOAP message."""
        if not self._is_stopped:
            self._unread(sent, response, self._wait_of(sent, response), error, has_left=False)

    def _fields_of(self, envelope: Envelope, way: Way) -> Mapping[str, str]:
        """Return the HTTP headers of a request with that envelope. A cache holds the few common ones."""
        action = action_of(envelope)
        # ``_value_``: the property ``value`` of an Enum costs a call for each message.
        known = self._fields.get((way, envelope.soap._value_, action))
        if known is None:
            if len(self._fields) >= _MOST_FIELDS:
                self._fields.clear()
            known = {**http_headers(envelope.soap, action), **way.headers}
            self._fields[way, envelope.soap._value_, action] = known
        return known

    def _told(self, sent: Transmit, notes: Notes | None, outcome: Outcome) -> None:
        if self._is_stopped:
            return
        if self._inlined:
            self._is_over(sent)
        if isinstance(outcome, TransportError):
            self._come(sent, outcome)  # in order, because consecutive failures count
        else:
            self._answered(sent, notes, outcome)

    def _unsendable(self, sent: Transmit, error: Exception) -> None:
        """Report a message stored by an older version that cannot be written: it stops its outbox with a reason."""
        reason = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        log.error("message.unwritable", to=sent.to, message_number=sent.number, reason=reason)
        self._engine.protocol.outbound.exchanges.unsendable(sent, reason, self._engine.clock())
        self._engine.touch()

    def _failed(
        self,
        sent: Transmit,
        reason: str,
        *,
        is_unreachable: bool = True,
        has_left: bool = True,
        is_too_large: bool = False,
    ) -> None:
        log.debug("transmission.failed", to=sent.to, message_number=sent.number, reason=reason)
        self._on_transport_error(sent, reason)
        unreachable, not_accepted = (reason, "") if is_unreachable and not is_too_large else ("", reason)
        protocol, now = self._engine.protocol, self._engine.clock()
        if is_too_large:
            log.warning("answer.too_large", to=sent.to, message_number=sent.number, reason=reason)
        protocol.failed(sent, now, unreachable, has_left=has_left, not_accepted=not_accepted, is_too_large=is_too_large)

    def _answered(self, sent: Transmit, notes: Notes | None, response: Response) -> None:
        wait = self._wait_of(sent, response)
        if not response.body.strip() and response.spool is None and 200 <= response.status < 300:
            self._come(sent, None, _silence(sent, response))
            return
        self._envelopes.read(sent, response, notes, partial(self._read, sent, response, wait))

    def _wait_of(self, sent: Transmit, response: Response) -> float:
        """Return the seconds for which the destination asks to wait, and let its outboxes do so."""
        now = self._engine.clock()
        wait = retry_after(response, now)
        if wait > 0:
            wait = self._engine.protocol.outbound.pause(sent.to, wait, now)
            log.info("destination.retry_after", to=sent.to, status=response.status, seconds=round(wait, 3))
        return wait

    def _read(
        self, sent: Transmit, response: Response, wait: float, read: Envelope | EnvelopeError | ProcessorError
    ) -> None:
        if self._is_stopped:
            return
        if isinstance(read, EnvelopeError):
            self._unread(sent, response, wait, read)
        elif isinstance(read, ProcessorError):
            reason = f"the answer of {sent.to} is not accepted: {read.message}"
            if isinstance(sent.envelope.control, CreateSequence):
                reason = f"{clause(reason)}{_claimed(self._envelopes.claimed_fault(response))}"
            self._failed(sent, reason, is_unreachable=False)
            self._engine.touch()
        else:
            # A reply to a forwarded request is the requester's, with its mandatory headers.
            if self._envelopes.passes_on and read.relates_to is not None:
                pass_on(read)
            problem = ""
            if read.not_understood:
                names = " ".join(read.not_understood)
                problem = f"{sent.to} answers with mandatory headers that this endpoint does not understand: {names}"
            elif isinstance(sent.envelope.control, CreateSequence) and read.control is None and read.fault is None:
                problem = f"{sent.to} answered CreateSequence with an application's message. {_ASK}"
            self._come(sent, read, problem)

    def _come(self, sent: Transmit, what: Envelope | TransportError | None, problem: str = "") -> None:
        """Pass a peer's answer, or the reason for its absence, to the protocol.

        All answers of this turn of the loop and the next one are passed together. ``problem`` is the error in the
        answer.
        """
        if not self._came:
            loop = asyncio.get_running_loop()
            # Two turns later, so that answers which arrive together share one commit.
            loop.call_soon(loop.call_soon, self._engine.ending(self._hand_over))
        self._came.append((sent, what, problem))

    def _hand_over(self) -> None:
        came, self._came = self._came, []
        if self._is_stopped:
            return
        answers: list[tuple[Transmit, Envelope | None]] = []
        for sent, what, problem in came:
            if not isinstance(what, TransportError):
                if problem:
                    self._on_transport_error(sent, problem)
                else:
                    self._on_answer(sent)
                answers.append((sent, what))
                continue
            self._take_in(answers)
            answers = []
            is_too_large = what.is_too_large and 200 <= what.status < 300
            remedy = TOO_LARGE_REMEDY if is_too_large else what.remedy
            reason = f"{clause(what.message)}. {remedy}" if remedy else what.message
            self._failed(sent, reason, has_left=what.connected, is_too_large=is_too_large)
            # It left, and the connection broke off: the destination may have created a Sequence.
            if isinstance(sent.envelope.control, CreateSequence) and what.connected and not what.status:
                self._engine.protocol.outbound.creation.cut(sent, self._engine.clock())
        self._take_in(answers)
        self._engine.turn()

    def _take_in(self, answers: list[tuple[Transmit, Envelope | None]]) -> None:
        if answers:
            on_reply = self.on_reply
            if on_reply is not None:
                for _, envelope in answers:
                    if envelope is not None:
                        on_reply(envelope)
            self._engine.protocol.received_together(answers, self._engine.clock())

    @property
    def is_busy(self) -> bool:
        """Whether answers are on their way to the protocol."""
        return bool(self._came)

    def _unread(
        self, sent: Transmit, response: Response, wait: float, error: EnvelopeError, *, has_left: bool = True
    ) -> None:
        """Report an answer that is no SOAP message, to a message or to the request before it."""
        reason = words_of(response) or error.message
        if wait:
            reason += f"; the next attempt follows in {wait:.0f} s"
        is_success = 200 <= response.status < 300
        if is_success and has_left and isinstance(sent.envelope.control, TerminateSequence):
            # A one-way TerminateSequence needs no answer. gSOAP answers it with an envelope that no codec reads.
            self._come(sent, None)
            return
        reason = f"no SOAP message ({reason})"
        code = f"HTTP {response.status}"
        is_creation = isinstance(sent.envelope.control, CreateSequence)
        # A message whose credentials are refused would be refused again, until its account is locked.
        asks = sent.envelope.control is None or isinstance(sent.envelope.control, MakeConnection)
        is_refused = (bool(sent.number) or asks) and code in HTTP_REFUSES_CREDENTIALS
        is_refused |= isinstance(sent.envelope.control, CloseSequence | TerminateSequence) and code in LOCKS_ACCOUNT
        if is_refused or (is_creation and response.status not in RETRYABLE_STATUS):
            if code in HTTP_REFUSES_CREDENTIALS and self.ways.get(sent.to, self._usual).has_credentials:
                reason = f"{reason} {TO_CREDENTIALS}"
            # Only 3xx and 4xx concern the request: a page with 200 may say that the service is being maintained.
            envelope = Envelope(sent.envelope.soap, fault=Fault(code, reason, sender=300 <= response.status < 500))
            self._come(sent, envelope)
        else:
            is_too_large = is_success and has_left and isinstance(error, LimitExceeded)
            said = f"{sent.to} answered with HTTP {response.status} and {reason}"
            said = f"{clause(said)}. {TOO_LARGE_REMEDY}" if is_too_large else said
            self._failed(sent, said, has_left=has_left, is_too_large=is_too_large)
            self._engine.touch()

    def _unproven(self, envelope: Envelope, reason: str, came: Transmit | Exchange) -> None:
        """Report a reply that is too large to check who sent it."""
        if self._is_stopped:
            return
        if isinstance(came, Transmit):
            origin = Origin(came.to, query=came.query)
        else:
            origin = origin_of(came.request, envelope)
        self._engine.protocol.reply_unproven(envelope, reason, self._engine.clock(), origin)
        self._engine.touch()

    def _has_given(self, secret: str) -> bool:
        return self._engine.protocol.outbound.creation.has_given(secret)

    def _may_have_credentials(self, to: str) -> bool:
        return self.ways.get(to, self._usual).has_credentials or not self._envelopes.is_plain

    async def stop(self) -> None:
        """Abandon requests in flight: their messages are stored and will be sent again."""
        self._is_stopped = True
        for pause in self._paused.values():
            pause.cancel()
        for http in (*(way.http for way in (self._usual, *self.ways.values())), *self._retired):
            await http.close()
        await self._envelopes.close()


def _claimed(fault: Fault | None) -> str:
    """Return what a fault in an answer that is not accepted says, as the end of a sentence."""
    if fault is None:
        return ""
    return f'. It claims to be the fault {fault.code}: "{fault.reason[:_MOST_CLAIMED]}"'


def _kind(sent: Transmit) -> tuple[str, type, int]:
    """Return what a transmission and its repeats have in common."""
    return sent.source, type(sent.envelope.control), sent.number


def retry_after(response: Response, now: float) -> float:
    """Return the seconds in a destination's Retry-After header; 0 if it is absent or unreadable.

    Args:
        now: Seconds since 1970-01-01 UTC.
    """
    said = response.headers.get("retry-after", "").strip() if response.status in PAUSING_STATUS else ""
    if said.isascii() and said.isdigit():
        return float(said[:12])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - now) if said else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _silence(sent: Transmit, response: Response) -> str:
    """Return what is wrong with an empty answer; "" if nothing is."""
    if not isinstance(sent.envelope.control, CreateSequence):
        return ""
    reply_to = sent.envelope.reply_to
    if reply_to is None or reply_to.is_anonymous:
        return f"{sent.to} answered CreateSequence with HTTP {response.status} and no content. {_ASK}"
    if sent.attempt < 2 or is_polled(reply_to.address):
        return ""  # its response is on its way
    here = without_secrets(reply_to.address)
    return (
        f"{sent.to} has answered CreateSequence {sent.attempt} times with HTTP {response.status} and no content: "
        f"it must send its responses and replies to {here}; check that it can reach that address"
    )
