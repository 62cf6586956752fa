"""A .NET service host with a reliable session, scripted: what it answers, what it refuses, and what it cuts off.

Like the real one it keeps sessions in memory, delivers in order, drops what follows a gap, and resets the connection
for what its reader cannot take. Each refusal is written down, so that a test can say which rule a client broke.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from lxml import etree
from wcf import wire
from wcf.transport import Exchange, Losses, Message, read_message

PATH = f"/service{os.getpid()}"
"""No client of another process's test finds a service here, where that test's server had the same port before."""
_NO_OFFER = (
    "The endpoint at {url} processes reply sessions. The create sequence request must contain an offer for a return "
    "sequence. This is likely caused by a binding mismatch."
)
_OFFER = (
    "The endpoint at {url} only processes one-way sessions. The create sequence request must not contain an offer. "
    "This is likely caused by a binding mismatch."
)
_REFUSED = (
    "The request to create a reliable session has been refused by the RM Destination. {} "
    "The channel could not be opened."
)


_REQUESTS = frozenset((wire.ECHO, wire.FAIL, wire.NOTHING))
_OPERATIONS = _REQUESTS | {wire.NOTIFY}
_DISPATCHER = "http://schemas.microsoft.com/net/2005/12/windowscommunicationfoundation/dispatcher"
_CLOSED = "The Sequence is closed and cannot accept new messages."
_NO_MORE = (
    "The user of the remote endpoint's reliable session expects no more messages and a new message arrived. Due to "
    "this the reliable session cannot continue."
)
_MISMATCH = (
    "The message with Action '{}' cannot be processed at the receiver, due to a ContractFilter mismatch at the "
    "EndpointDispatcher. This may be because of either a contract mismatch (mismatched Actions between sender and "
    "receiver) or a binding/security mismatch between the sender and the receiver.  Check that sender and receiver "
    "have the same contract and the same binding (including security requirements, e.g. Message, Transport, None)."
)
_FAILED = (
    f'<XTrouble xmlns="{wire.CONTRACT_NS}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    ' xmlns:xsd="http://www.w3.org/2001/XMLSchema"><Reason>out of bread</Reason><Number>1</Number></XTrouble>'
)
"""The detail of the fault that the contract declares."""


@dataclass(slots=True)
class Delivered:
    """One message as the application got it."""

    sequence: str
    number: int
    action: str
    body: Any
    message_id: str | None

    @property
    def text(self) -> str:
        """The text of the contract's body element."""
        return self.body.findtext(f"{{{wire.CONTRACT_NS}}}body", "") if self.body is not None else ""


@dataclass(slots=True)
class _Reply:
    number: int
    action: str
    content: str
    relates_to: str | None
    last: bool = False
    status: int = 200


@dataclass(slots=True)
class Session:
    """One session, and what it was told."""

    identifier: str
    offered: str
    created: bytes
    message_id: str
    received: set[int] = field(default_factory=set)
    last: int | None = None
    closed: bool = False
    broken: bool = False
    """Ended by an exception of the service."""
    terminated: bool = False
    faulted: bool = False
    close_said: int | None = None
    replies: dict[int, asyncio.Future[_Reply]] = field(default_factory=dict)
    sent_replies: int = 0
    acknowledged_replies: set[int] = field(default_factory=set)
    final_said: bool = False
    told_full: bool = False
    last_activity: float = 0.0

    @property
    def complete(self) -> bool:
        return self.received == set(range(1, max(self.received, default=0) + 1))


class _Fault(Exception):
    """Answers with an RM fault and writes the reason down. ``detail`` is an RM element with prefix r."""

    def __init__(
        self, code: str, reason: str, session: Session | None = None, *, detail: str = "", relates: bool = True
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.session = session
        self.relates = relates
        self.detail = detail or (_identifier(session.identifier) if session else "")


def _identifier(value: str) -> str:
    return f"<r:Identifier>{wire.escape(value)}</r:Identifier>"


class _Reset(Exception):
    """Cuts the connection without an answer."""


class ScriptedWCFServer:
    """A service host on 127.0.0.1. Use it as ``async with``; ``url`` is where it listens.

    Args:
        versions: Anything with ``rm``, ``addressing`` and ``soap``: the binding, the only one it speaks.
        contract: "oneway" or "twoway".
        ordered: Whether it drops what follows a gap (the default binding) or takes messages in any order.
        inactivity: Seconds before scaling after which a silent session is gone: the connection of the first message
            behind the silence breaks, and then the server does not know the session.
        reply_delay: Seconds the Echo operation takes; the response is held open meanwhile.
        buffer: What it advertises as BufferRemaining; settable while it runs. A session that was told 0 and sends
            something new all the same finds it in ``while_full``, and dropped.
        pause: Seconds at most before a message is handled, each drawn at random, so that messages overtake each other.
        drop_requests, drop_responses, loss_rate, seed: See ``Losses``; exchanges are numbered as they arrive.
        mutate: Rewrites each answer's body before it leaves, given what it answers: to make a wrong server.
        silent: Kinds of message it takes and answers with an empty 202: another way to be wrong.
        resets: Whether it resets the connection for a version that it does not speak, as the real one was seen to do.
        throws: Texts of messages for which the operation throws, one-way ones too: the session is over then.
        typed: Whether the fault of the operation Fail has the contract's own Action; else it has the default one.
    """

    def __init__(
        self,
        versions: Any,
        contract: str = "twoway",
        *,
        ordered: bool = True,
        port: int = 0,
        time_scale: float = 1.0,
        inactivity: float = 600.0,
        reply_delay: float = 0.0,
        buffer: int = 8,
        pause: float = 0.0,
        drop_requests: Iterable[int | str] = (),
        drop_responses: Iterable[int | str] = (),
        loss_rate: float = 0.0,
        seed: int = 0,
        mutate: Callable[[str, bytes], bytes] | None = None,
        silent: Iterable[str] = (),
        throws: Iterable[str] = (),
        typed: bool = True,
        resets: bool = False,
    ) -> None:
        if contract not in ("oneway", "twoway"):
            raise ValueError(f"contract is 'oneway' or 'twoway', not {contract!r}")
        self.profile = wire.profile_of(versions)
        self.two_way = contract == "twoway"
        self.ordered = ordered
        self.buffer = buffer
        self.reply_delay = reply_delay
        self.content_type = self.profile.content_type
        self.url = ""
        self.sessions: dict[str, Session] = {}
        self.delivered: list[Delivered] = []
        self.refusals: list[str] = []
        self.while_full: list[int] = []
        self.dropped_after_gap: list[int] = []
        self.transcript: list[Exchange] = []
        self._port = port
        self._pause = pause
        self._chance = random.Random(seed)
        self._inactivity = inactivity * time_scale
        self._losses = Losses(drop_requests, drop_responses, loss_rate, seed)
        self._mutate = mutate
        self._silent = frozenset(silent)
        self._throws = frozenset(throws)
        self._typed = typed
        self._resets = resets
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._operations: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedWCFServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{PATH}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._operations:
            task.cancel()
        for writer, serving in self._connections.items():
            writer.transport.abort()
            serving.cancel()  # it may wait for the reply of an operation that was cancelled
        await asyncio.gather(*self._operations, *self._connections.values(), return_exceptions=True)
        await self._server.wait_closed()

    @property
    def texts(self) -> list[str]:
        """The delivered messages' texts, in the order of delivery."""
        return [message.text for message in self.delivered]

    # --- HTTP --------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[writer] = task
        try:
            while True:
                request = await read_message(reader, response=False)
                if request.start.split(" ")[1] != PATH:
                    writer.write(self._http(404, b""))
                    continue
                response = await self._exchange(request)
                if response is None:
                    writer.transport.abort()
                    return
                writer.write(response)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, which is its right, or the service ends
        finally:
            del self._connections[writer]
            writer.close()

    async def _exchange(self, request: Message) -> bytes | None:
        """The whole response, or None to cut the connection."""
        exchange = Exchange(len(self.transcript) + 1, _kind(request), request.body, request.head)
        self.transcript.append(exchange)
        if self._losses.loses_request(exchange):
            exchange.outcome = "request lost"
            return None
        if self._pause and exchange.kind in ("Notify", "Echo"):
            await asyncio.sleep(self._chance.random() * self._pause)
        try:
            exchange.status, body = await self._answer(request)
        except _Reset as error:
            self.refusals.append(f"reset: {error}")
            exchange.outcome = "reset"
            return None
        if exchange.kind in self._silent:
            exchange.status, body = 202, b""
        exchange.response = self._mutate(exchange.kind, body) if self._mutate and body else body
        if self._losses.loses_response(exchange):
            exchange.outcome = "response lost"
            return None
        exchange.outcome = "answered"
        return self._http(exchange.status, exchange.response)

    def _http(self, status: int, body: bytes) -> bytes:
        phrase = HTTPStatus(status).phrase
        head = f"HTTP/1.1 {status} {phrase}\r\nContent-Length: {len(body)}\r\nConnection: keep-alive\r\n"
        if body:
            head += f"Content-Type: {self.content_type}\r\n"
        return f"{head}Server: Kestrel\r\n\r\n".encode() + body

    async def _answer(self, request: Message) -> tuple[int, bytes]:
        content_type = request.headers.get("content-type", "")
        try:
            message = wire.read(self.profile, content_type, request.body)
        except wire.NotAsWCFReads as error:
            return self._unreadable(error, request.body)
        self._check_soap_action(request, message)
        try:
            return await self._dispatch(message)
        except _Fault as error:
            self.refusals.append(f"{error.code}: {error.reason}")
            if error.session is not None and error.code == "SequenceTerminated":
                error.session.faulted = True
            return 500, self._fault(error, message.message_id if error.relates else None)
        except wire.NotAsWCFReads as error:
            return self._unreadable(error, request.body)

    def _unreadable(self, error: wire.NotAsWCFReads, body: bytes) -> tuple[int, bytes]:
        p = self.profile
        if error.how == "reset" or self._resets:
            raise _Reset(error.reason)
        self.refusals.append(f"{error.how}: {error.reason}")
        if error.how == "content-type":
            return 415, b""
        if error.how == "wrong-rm":
            reason = f"Only {p.rm_name} messages are processed by this endpoint"
            return 500, self._fault(_Fault("CreateSequenceRefused", reason), _message_id_in(body))
        return 500, self._soap_fault(error.how, error.reason, _message_id_in(body))

    def _check_soap_action(self, request: Message, message: wire.Read) -> None:
        said = request.headers.get("soapaction", "").strip('"') if self.profile.soap == "1.1" else ""
        if said and said != message.action:
            raise _Reset(f"SOAPAction {said!r} is not the Action {message.action!r}")

    # --- the protocol ------------------------------------------------------------------------------------------------

    async def _dispatch(self, message: wire.Read) -> tuple[int, bytes]:
        self._forget_the_silent()
        if message.control == "CreateSequence":
            return 200, self._create(message)
        self._look_at_acknowledgement(message)
        session = self._session_of(message)
        if session is None:
            return self._without_reliable_messaging(message)
        session.last_activity = time.monotonic()
        self._take_acknowledgement(session, message)
        if message.control == "TerminateSequence":
            return self._terminate(session, message)
        if message.control == "CloseSequence" and self.profile.rm == "1.1":
            return 200, self._close(session, message)
        if message.sequence is not None:
            return await self._take(session, message, message.sequence)
        return 200, self._acknowledgement(session)

    def _forget_the_silent(self) -> None:
        since = time.monotonic() - self._inactivity
        silent = [session for session in self.sessions.values() if session.last_activity < since]
        for session in silent:
            del self.sessions[session.identifier]
        if silent:
            raise _Reset(f"inactivity: nothing came for {' and '.join(one.identifier for one in silent)}")

    def time_out(self) -> None:
        """Let the inactivity timeout of every session pass."""
        for session in self.sessions.values():
            session.last_activity = float("-inf")

    def _look_at_acknowledgement(self, message: wire.Read) -> None:
        """Before anything else, as the real server does: whatever Sequence the message is in."""
        ack = message.acknowledgement
        if ack is not None and all(session.offered != ack.identifier for session in self.sessions.values()):
            reason = "The value of wsrm:Identifier is not a known Sequence identifier."
            raise _Fault("UnknownSequence", reason, detail=_identifier(ack.identifier))

    def _session_of(self, message: wire.Read) -> Session | None:
        named = [message.sequence.identifier] if message.sequence else []
        named += [message.ack_requested] if message.ack_requested else []
        if message.control in ("CloseSequence", "TerminateSequence"):
            named.append(message.body.findtext(f"{{{self.profile.rm_ns}}}Identifier", "").strip())
        elif not named and message.acknowledgement is not None:
            offered = message.acknowledgement.identifier
            named = [session.identifier for session in self.sessions.values() if session.offered == offered]
            named = named or [offered]
        for identifier in named:
            session = self.sessions.get(identifier)
            if session is None:
                reason = "The value of wsrm:Identifier is not a known Sequence identifier."
                raise _Fault("UnknownSequence", reason, detail=_identifier(identifier))
            if session.faulted:
                reason = "The Sequence has been terminated due to an unrecoverable error."
                raise _Fault("SequenceTerminated", reason, session)
        return self.sessions[named[0]] if named else None

    def _without_reliable_messaging(self, message: wire.Read) -> tuple[int, bytes]:
        if self.profile.rm == "1.1":
            raise _Fault("WsrmRequired", "The incoming message is not a WS-ReliableMessaging 1.1 message")
        reason = f"The message with Action '{message.action}' cannot be processed at the receiver"
        self.refusals.append(f"ActionNotSupported: {message.action}")
        return 500, self._soap_fault("ActionNotSupported", reason, message.message_id)

    def _refuse(self, reason: str) -> _Fault:
        return _Fault("CreateSequenceRefused", _REFUSED.format(reason))

    def _create(self, message: wire.Read) -> bytes:
        p = self.profile
        if message.message_id is None:
            raise _Reset("CreateSequence without MessageID")
        try:
            found = wire.children_in_order(p, message.body, [("AcksTo", True), ("Expires", False), ("Offer", False)])
            acks_to = wire.address_of(p, found["AcksTo"])
            offer = self._read_offer(found.get("Offer"), acks_to)
        except wire.NotAsWCFReads as error:
            raise self._refuse(f"{error.reason}.") from None
        if message.reply_to is None and p.addressing == "2004/08":
            raise self._refuse("The request has no ReplyTo.")
        if (reply_to := message.reply_to or p.anonymous) != acks_to:
            raise self._refuse(f"AcksTo {acks_to} is not the ReplyTo {reply_to}.")
        if acks_to != p.anonymous:
            raise self._refuse(f"This endpoint answers on the HTTP response only, not at {acks_to}.")
        if self.two_way and not offer:
            raise self._refuse(_NO_OFFER.format(url=self.url))
        if offer and not self.two_way:
            if p.rm == "1.0":
                raise self._refuse(_OFFER.format(url=self.url))
            offer = ""
        known = next((session for session in self.sessions.values() if offer and session.offered == offer), None)
        session = known or self._new_session(message, found, offer)
        if session.message_id != message.message_id:
            raise self._refuse(f"The offered sequence {offer} is in use.")
        return session.created

    def _read_offer(self, element: Any, acks_to: str) -> str:
        """The offered Identifier, "" when there is no Offer."""
        p = self.profile
        if element is None:
            return ""
        if p.rm == "1.0":
            allowed = [("Identifier", True), ("Expires", False)]
            return (wire.children_in_order(p, element, allowed)["Identifier"].text or "").strip()
        allowed = [("Identifier", True), ("Endpoint", True), ("Expires", False), ("IncompleteSequenceBehavior", False)]
        found = wire.children_in_order(p, element, allowed)
        if (endpoint := wire.address_of(p, found["Endpoint"])) != acks_to:
            raise wire.NotAsWCFReads(f"Offer/Endpoint {endpoint} is not the AcksTo {acks_to}")
        return (found["Identifier"].text or "").strip()

    def _new_session(self, message: wire.Read, found: dict[str, Any], offer: str) -> Session:
        p = self.profile
        identifier = wire.new_id()
        expires = f"<Expires>{found['Expires'].text}</Expires>" if "Expires" in found else ""
        behavior = "DiscardFollowingFirstGap" if self.ordered else "NoDiscard"
        incomplete = f"<IncompleteSequenceBehavior>{behavior}</IncompleteSequenceBehavior>" if p.rm == "1.1" else ""
        address = wire.escape(message.to or self.url)
        accept = f"<Accept><AcksTo><a:Address>{address}</a:Address></AcksTo></Accept>" if offer else ""
        body = (
            f'<CreateSequenceResponse xmlns="{p.rm_ns}"><Identifier>{identifier}</Identifier>'
            f"{expires}{incomplete}{accept}</CreateSequenceResponse>"
        )
        assert message.message_id is not None
        headers = [wire.action(p.action("CreateSequenceResponse")), wire.relates_to(message.message_id)]
        headers += self._anonymous_to()
        session = Session(identifier, offer, wire.envelope(p, headers, body), message.message_id)
        session.last_activity = time.monotonic()
        self.sessions[identifier] = session
        return session

    def _take_acknowledgement(self, session: Session, message: wire.Read) -> None:
        ack = message.acknowledgement
        if ack is None:
            return
        if not session.offered or ack.identifier != session.offered:
            reason = "The value of wsrm:Identifier is not a known Sequence identifier."
            raise _Fault("UnknownSequence", reason, session, detail=_identifier(ack.identifier))
        if ack.ranges and ack.ranges[-1][1] > session.sent_replies:
            session.faulted = True
            reason = "The SequenceAcknowledgement violates the cumulative Acknowledgement invariant."
            detail = wire.acknowledgement(self.profile, ack.identifier, ack.numbers)
            raise _Fault("InvalidAcknowledgement", reason, session, detail=detail)
        session.acknowledged_replies |= ack.numbers
        session.final_said = session.final_said or ack.final

    async def _take(self, session: Session, message: wire.Read, header: wire.SequenceHeader) -> tuple[int, bytes]:
        number = header.number
        if number in session.received:
            return await self._repeat(session, number)
        if session.last is not None and number > session.last and self.profile.rm == "1.0":
            reason = (
                "The value for wsrm:MessageNumber exceeds the value of the MessageNumber accompanying a LastMessage "
                "element in this Sequence."
            )
            raise _Fault("LastMessageNumberExceeded", reason, session)
        if session.closed or session.terminated:
            code = "SequenceClosed" if self.profile.rm == "1.1" else "SequenceTerminated"
            raise _Fault(code, _CLOSED, session)
        if session.broken:
            if self.profile.rm == "1.1":
                raise _Fault("SequenceClosed", _CLOSED, session, relates=False)
            raise _Fault("SequenceTerminated", _NO_MORE, session, relates=False)
        if self.buffer == 0 and session.told_full:
            self.while_full.append(number)
            return 202, b""
        if self.ordered and number != len(session.received) + 1:
            self.dropped_after_gap.append(number)
            return 202, b""
        self._check_addressing(session, message)
        session.received.add(number)
        if header.last:
            session.last = number
        is_last_message = message.action == self.profile.action("LastMessage")
        delivered = Delivered(session.identifier, number, message.action, message.body, message.message_id)
        is_declined = not is_last_message and (message.action not in _OPERATIONS or delivered.text in self._throws)
        if not is_last_message and not is_declined:
            self.delivered.append(delivered)
        if self.two_way and (is_last_message or is_declined or self._is_request(message)):
            session.replies[number] = asyncio.get_running_loop().create_future()
            operating = self._decline if is_declined else self._operate
            task = asyncio.create_task(operating(session, message, number))
            self._operations.add(task)
            task.add_done_callback(self._operations.discard)
        return await self._repeat(session, number)

    def _is_request(self, message: wire.Read) -> bool:
        """Whether the contract has a reply for it, whatever headers it comes with."""
        return message.action in _REQUESTS

    def _check_addressing(self, session: Session, message: wire.Read) -> None:
        if not self.two_way or not self._is_request(message) or message.action == self.profile.action("LastMessage"):
            return
        if message.message_id is None:
            raise _Fault("SequenceTerminated", "A request has no MessageID.", session)
        reply_to = message.reply_to or (self.profile.anonymous if self.profile.addressing == "2005/08" else None)
        if reply_to != self.profile.anonymous:
            raise _Fault("SequenceTerminated", f"The ReplyTo of a request is {reply_to}, not anonymous.", session)

    async def _operate(self, session: Session, message: wire.Read, number: int) -> None:
        """Runs the operation, and keeps its reply as the next message of the offered sequence."""
        if message.action == self.profile.action("LastMessage"):
            session.sent_replies += 1
            reply = _Reply(session.sent_replies, message.action, "", None, last=True)
        else:
            if self.reply_delay:
                await asyncio.sleep(self.reply_delay)
            session.sent_replies += 1
            reply = _Reply(session.sent_replies, f"{message.action}Response", "", message.message_id)
            if message.action == wire.FAIL:
                reply.action = f"{wire.FAIL}Fault" if self._typed else self.profile.application_fault_action
                reply.status = 500
                reply.content = self._reply_fault("", wire.CONTRACT_NS, "OutOfBread", "no such order", _FAILED)
            elif message.action == wire.NOTHING:
                reply.content = f'<NothingResponse xmlns="{wire.CONTRACT_NS}"/>'
            else:
                reply.content = _response_to(message.body)
        session.replies[number].set_result(reply)

    async def _decline(self, session: Session, message: wire.Read, number: int) -> None:
        """The message is accepted. What the service says of it is the next message of the offered Sequence, also for
        one that asks for no reply; after an exception the session takes nothing more."""
        session.sent_replies += 1
        if message.action not in _OPERATIONS:
            reason = _MISMATCH.format(message.action)
            content = self._reply_fault("Sender", self.profile.wsa_ns, "ActionNotSupported", reason)
            action = f"{self.profile.wsa_ns}/fault"
        else:
            content = self._reply_fault("Receiver", _DISPATCHER, "InternalServiceFault", "boom")
            action = f"{_DISPATCHER}/fault"
            session.broken = True
        reply = _Reply(session.sent_replies, action, content, message.message_id, status=500)
        session.replies[number].set_result(reply)

    async def _repeat(self, session: Session, number: int) -> tuple[int, bytes]:
        """The answer to a message that was taken, however often it comes: its reply, or an acknowledgement."""
        future = session.replies.get(number)
        if future is None:
            return 200, self._acknowledgement(session)
        reply = await asyncio.shield(future)  # one repeat's end must not end the operation for the others
        headers = [
            wire.sequence(session.offered, reply.number, last=reply.last),
            self._ack_header(session),
            wire.action(reply.action),
        ]
        if reply.relates_to is not None:
            headers.append(wire.relates_to(reply.relates_to))
        headers += self._anonymous_to()
        application = bool(reply.content) and reply.status == 200
        return reply.status, wire.envelope(self.profile, headers, reply.content, application=application)

    def _close(self, session: Session, message: wire.Read) -> bytes:
        self._check_ending(session, message)
        session.closed = True
        return self._ended(session, message, "CloseSequenceResponse")

    def _terminate(self, session: Session, message: wire.Read) -> tuple[int, bytes]:
        if self.profile.rm == "1.1":
            self._check_ending(session, message)
            session.closed = session.terminated = True
            return 200, self._ended(session, message, "TerminateSequenceResponse")
        if session.last is None or not session.complete or max(session.received) != session.last:
            reason = "TerminateSequence came before every message up to the last one."
            raise _Fault("SequenceTerminated", reason, session)
        session.terminated = True
        if not self.two_way:
            return 202, b""
        headers = [self._ack_header(session), wire.action(self.profile.action("TerminateSequence"))]
        headers += self._anonymous_to()
        return 200, wire.about_sequence(self.profile, headers, "TerminateSequence", session.offered)

    def _check_ending(self, session: Session, message: wire.Read) -> None:
        """The closing rules of RM 1.1."""
        name = message.control
        found = wire.children_in_order(self.profile, message.body, [("Identifier", True), ("LastMsgNumber", False)])
        last = wire.number_of(found["LastMsgNumber"].text, "LastMsgNumber") if "LastMsgNumber" in found else 0
        if message.message_id is None:
            raise _Reset(f"{name} without MessageID")
        if message.reply_to not in (None, self.profile.anonymous):
            raise _Fault("SequenceTerminated", f"The ReplyTo of {name} is not anonymous.", session)
        if session.close_said is not None and session.close_said != last:
            reason = f"LastMsgNumber was {session.close_said} in an earlier message and is {last} in {name}."
            raise _Fault("SequenceTerminated", reason, session)
        if last < max(session.received, default=0):
            reason = f"LastMsgNumber {last} in {name} is below a number that was received."
            raise _Fault("SequenceTerminated", reason, session)
        if name == "TerminateSequence" and session.received != set(range(1, last + 1)):
            raise _Fault("SequenceTerminated", f"TerminateSequence says {last}; not all of it came.", session)
        if self.two_way and session.sent_replies and not session.final_said:
            raise _Fault("SequenceTerminated", f"{name} carries no final acknowledgement of the replies.", session)
        if len(session.acknowledged_replies) < session.sent_replies:
            raise _Fault("SequenceTerminated", f"{name} came before every reply was acknowledged.", session)
        session.close_said = last

    # --- what it says ------------------------------------------------------------------------------------------------

    def _anonymous_to(self) -> list[str]:
        """What 2004/08 adds to every answer."""
        p = self.profile
        return [wire.to(p.anonymous)] if p.addressing == "2004/08" else []

    def _ack_header(self, session: Session) -> str:
        final = self.profile.rm == "1.1" and session.closed
        session.told_full = self.buffer == 0
        return wire.acknowledgement(self.profile, session.identifier, session.received, final=final, buffer=self.buffer)

    def _acknowledgement(self, session: Session) -> bytes:
        headers = [self._ack_header(session), wire.action(self.profile.action("SequenceAcknowledgement"))]
        return wire.envelope(self.profile, headers + self._anonymous_to())

    def _ended(self, session: Session, message: wire.Read, name: str) -> bytes:
        assert message.message_id is not None
        headers = [self._ack_header(session), wire.action(self.profile.action(name))]
        headers += [wire.relates_to(message.message_id), *self._anonymous_to()]
        return wire.about_sequence(self.profile, headers, name, session.identifier)

    def _fault(self, fault: _Fault, message_id: str | None) -> bytes:
        """An RM fault in the shape the real server gives it."""
        p = self.profile
        headers = []
        if p.soap == "1.1" and fault.detail:
            detail = f"<r:Detail>{fault.detail}</r:Detail>" if p.rm == "1.1" else fault.detail
            headers.append(f"<r:SequenceFault><r:FaultCode>r:{fault.code}</r:FaultCode>{detail}</r:SequenceFault>")
        if fault.session is not None and fault.code == "SequenceClosed":
            headers.append(self._ack_header(fault.session))
        headers += self._fault_headers(message_id)
        reason = wire.escape(fault.reason)
        if p.soap == "1.2":
            has_prefix = any("<r:" in header for header in headers)
            declared = "" if has_prefix else f' xmlns:r="{p.rm_ns}"'
            detail = f"<s:Detail>{fault.detail.replace('>', declared + '>', 1)}</s:Detail>" if fault.detail else ""
            value = f"<s:Value>r:{fault.code}" if has_prefix else f'<s:Value xmlns:a="{p.rm_ns}">a:{fault.code}'
            body = (
                f"<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode>{value}</s:Value></s:Subcode></s:Code>"
                f'<s:Reason><s:Text xml:lang="">{reason}</s:Text></s:Reason>{detail}</s:Fault>'
            )
            return wire.envelope(p, headers, body)
        code = "<faultcode>s:Client</faultcode>"
        if not fault.detail:
            code = f'<faultcode xmlns:a="{p.rm_ns}">a:{fault.code}</faultcode>'
        return wire.envelope(p, headers, f"<s:Fault>{code}<faultstring>{reason}</faultstring></s:Fault>")

    def _soap_fault(self, code: str, reason: str, message_id: str | None) -> bytes:
        """A fault that is not about reliable messaging."""
        p = self.profile
        text = wire.escape(reason)
        namespace = p.wsa_ns if code == "ActionNotSupported" else p.soap_ns
        known = code in ("MustUnderstand", "VersionMismatch", "ActionNotSupported")
        name = code if known else ("Client" if p.soap == "1.1" else "Sender")
        if p.soap == "1.1":
            body = f'<s:Fault><faultcode xmlns:a="{namespace}">a:{name}</faultcode><faultstring>{text}</faultstring>'
        elif name == "ActionNotSupported":
            body = (
                "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode>"
                f'<s:Value xmlns:a="{namespace}">a:{name}</s:Value></s:Subcode></s:Code>'
                f'<s:Reason><s:Text xml:lang="">{text}</s:Text></s:Reason>'
            )
        else:
            body = (
                f"<s:Fault><s:Code><s:Value>s:{name}</s:Value></s:Code>"
                f'<s:Reason><s:Text xml:lang="">{text}</s:Text></s:Reason>'
            )
        return wire.envelope(p, self._fault_headers(message_id), f"{body}</s:Fault>")

    def _reply_fault(self, code: str, namespace: str, name: str, reason: str, detail: str = "") -> str:
        """The body of a fault that is a message of the offered Sequence: ``name`` is the subcode, or the code if there
        is no ``code``."""
        declared = "" if namespace == self.profile.wsa_ns else f' xmlns:a="{namespace}"'
        text = wire.escape(reason)
        if self.profile.soap == "1.1":
            detail = f"<detail>{detail}</detail>" if detail else ""
            return (
                f"<s:Fault><faultcode{declared}>a:{name}</faultcode><faultstring>{text}</faultstring>{detail}</s:Fault>"
            )
        value = f"<s:Value{declared}>a:{name}</s:Value>"
        if code:
            value = f"<s:Value>s:{code}</s:Value><s:Subcode>{value}</s:Subcode>"
        detail = f"<s:Detail>{detail}</s:Detail>" if detail else ""
        reason = f'<s:Reason><s:Text xml:lang="">{text}</s:Text></s:Reason>'
        return f"<s:Fault><s:Code>{value}</s:Code>{reason}{detail}</s:Fault>"

    def _fault_headers(self, message_id: str | None) -> list[str]:
        p = self.profile
        headers = [wire.action(p.fault_action)]
        if message_id is not None:
            headers.append(wire.relates_to(message_id))
        return [*headers, wire.to(p.anonymous)] if p.addressing == "2004/08" else headers


def _kind(request: Message) -> str:
    """The last part of the Action, however broken the rest is; "?" when there is none."""
    found = re.search(rb"<(?:[\w.-]+:)?Action[^>]*>([^<]*)<", request.body)
    return found.group(1).decode("latin-1").strip().rpartition("/")[2] if found else "?"


def _message_id_in(body: bytes) -> str | None:
    """The MessageID of an envelope the strict reader did not take."""
    for element in etree.fromstring(body, etree.XMLParser(recover=True)).iter("{*}MessageID"):
        return (element.text or "").strip()
    return None


def _response_to(body: Any) -> str:
    """What the Echo operation answers: the same content under the name with Response appended."""
    if body is None:
        return ""
    name = etree.QName(body)
    response = etree.Element(f"{{{name.namespace}}}{name.localname}Response", nsmap={None: name.namespace})
    response.text = body.text
    response.extend(deepcopy(child) for child in body)
    etree.cleanup_namespaces(response)
    return str(etree.tostring(response, encoding="unicode"))
