"""The one way in and the one way out of an endpoint: bytes to the envelopes of its protocol, and back.

Inbound bytes are decoded, pass the processors and reach the protocol; outbound envelopes pass the processors, are
encoded and sent. Nothing else in an endpoint reads or writes envelopes. Owns the responses to a peer that sends no
valid envelope, to a message that a processor stopped, and to an answer that cannot be written. Knows no rule of the
protocol.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Transmit
from holdfast.core.faults import MUST_UNDERSTAND, VERSION_MISMATCH, addressing_fault
from holdfast.core.messages import Envelope, Fault
from holdfast.core.records import Record
from holdfast.core.versions import SOAP, Addressing
from holdfast.endpoint.envelopes.attachments import has_parts, inline_envelope
from holdfast.endpoint.envelopes.chain import Chain, most_bytes_of
from holdfast.endpoint.envelopes.decoder import OFF_LOOP, Decoder, Failed, Opening, Outcome
from holdfast.endpoint.envelopes.fault_replies import replace_unwritable
from holdfast.endpoint.envelopes.head_spool import HeadSpool, head_in, replace_reply, unproven_reason
from holdfast.endpoint.envelopes.http_media import (
    CONTENT_TYPES,
    DEFERRED,
    UNWRITABLE,
    is_package,
    put_off,
    put_off_after_bug,
    status_of_sender,
    stream_answer,
)
from holdfast.endpoint.envelopes.package_spool import PackageSpool
from holdfast.endpoint.envelopes.processors import ExtraRequest, MessageContext, Processor, RequestFirst, Role
from holdfast.endpoint.envelopes.spools import Spools
from holdfast.endpoint.envelopes.tracing import Tracing
from holdfast.endpoint.failures import brief, reason_of
from holdfast.endpoint.logs import log
from holdfast.exceptions import (
    AddressingError,
    EnvelopeError,
    LimitExceeded,
    MessageFlowError,
    MustUnderstand,
    ProcessingError,
    ProcessorError,
    StoreError,
    VersionMismatch,
    clause,
)
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import Response, Streamed
from holdfast.http.server.refusals import BODY_TOO_LARGE, NEEDS_TLS, Refusal
from holdfast.wire import DEFAULT, Limits, MissingPart, encode, pack, soap_of_content_type

_STATE = attrgetter(*(one.name for one in fields(Envelope)))
"""Everything that a processor may change in an envelope. A copy by ``copy`` takes five times as long."""
_REPLACED = "reply.replaced_by_fault"
_UNWRITTEN = b"The answer could not be written; ask again.\n"

_CODES: dict[type[EnvelopeError], str] = {VersionMismatch: VERSION_MISMATCH, MustUnderstand: MUST_UNDERSTAND}

T = TypeVar("T")
Notes = dict[str, Any]
Take = Callable[[Exchange, Envelope, Fault | None], None]
"""Processes an inbound envelope; if there is a fault, it only answers with that fault."""
Elsewhere = Callable[[Exchange, Envelope], bool]
"""Says whether an envelope is another process's, which answers the exchange then."""
Unproven = Callable[[Envelope, str, "Transmit | Exchange"], None]
"""Receives the headers of a message, the reason why the rest is not read, and how it came: as the answer to a
transmission, or in an exchange."""
Passed = Callable[[ProcessorError | None], None]
"""Receives the error of the processor that stops a message, None if none does."""
Answered = Callable[[Outcome], None]
"""Receives the envelope that answers our request, or the reason why there is no envelope."""


class Envelopes(Spools):
    """Reads and writes every envelope of one endpoint, in the event loop's thread.

    Args:
        incidents: Counts errors, by name.
        processors: The processors of each envelope, the first next to the network.
        limits: The limits of one envelope.

    Raises:
        ConfigurationError: one of the processors is not a processor.
    """

    def __init__(
        self, role: Role, incidents: Counter[str], processors: Iterable[Processor] = (), limits: Limits = DEFAULT
    ) -> None:
        self._incidents = incidents
        self._decoder = Decoder(limits)
        self._chain = Chain(role, processors, incidents, most_bytes_of(limits))
        self._is_plain = self._chain.is_empty
        self.has_message: Callable[[Envelope], bool] = lambda _: False
        """Whether the message in an envelope was accepted before."""
        self.on_unproven: Unproven = lambda _envelope, _reason, _came: None
        """Learns of a reply that is too large for the processors to check who sent it."""
        self.declared: Mapping[str, Collection[str]] = {}
        """Action -> the header blocks that the service's description declares for it, so that handlers know them."""
        self.public_address: str | None = None
        """The address at which clients reach the endpoint, for processors; None: it is not known."""
        self.tracing: Tracing | None = None
        """Reports messages as spans; None: tracing is off."""
        self._responding: set[asyncio.Future[None]] = set()

    def fail_with(self, fail: Callable[[BaseException], None]) -> None:
        """Set what is called with an unexpected error in what follows from an envelope that a thread has read."""
        self._decoder.fail = fail

    @property
    def processors(self) -> Sequence[Processor]:
        """The processors, in the order of the list."""
        return self._chain.processors

    @property
    def is_plain(self) -> bool:
        """Whether there are no processors."""
        return self._is_plain

    @property
    def passes_on(self) -> bool:
        """Whether messages may be forwarded."""
        return self._chain.passes_on

    def pass_messages_on(self) -> None:
        """Keep the headers for the ultimate receiver, because the endpoint forwards messages."""
        self._chain.passes_on = True

    def submitting(self, record: Record, commit: GroupCommit) -> None:
        """Begin the trace of a message that a source accepts."""
        if self.tracing is not None:
            self.tracing.submitting(record, commit)

    # --- in -------------------------------------------------------------------------------------------------------

    def receive(self, exchange: Exchange, take: Take, is_elsewhere: Elsewhere | None = None) -> None:
        """Read what an HTTP request brings and make the call with it, now or soon. If it is no envelope, or a processor
        stops or answers it, it is answered here; and if it ``is_elsewhere``, there, where processors get it, too."""
        request, opening = exchange.request, None
        if self._chain.receives:
            exchange.notes = {}
            opening = partial(self._open_request, exchange)
        chain, failed = self._chain, partial(put_off_after_bug, exchange)
        if isinstance(request.spool, HeadSpool):
            self._receive_head(exchange, take, request.spool)
            return
        if not (isinstance(request.spool, PackageSpool) or exchange.is_package):
            received = partial(self._received, exchange, take, is_elsewhere)
            self._decoder.read(request.body, received, opening, waits=chain.opening_waits, failed=failed)
            return
        then, inlines = partial(self._unpacked, exchange, take, is_elsewhere), chain.inlines("")
        if isinstance(request.spool, PackageSpool):
            self._decoder.read_spooled(request.spool, then, opening, inlines=inlines, failed=failed)
        else:
            media, waits = request.headers[b"content-type"].decode("latin-1"), chain.opening_waits
            self._decoder.read_package(media, request.body, then, opening, waits=waits, inlines=inlines, failed=failed)

    @property
    def _makes_requests(self) -> bool:
        return self._chain.role == "source" or self.passes_on

    def _open_request(self, exchange: Exchange, envelope: Envelope, data: bytes) -> bytes:
        return self._chain.received(self._context_of(exchange, envelope, data), data)

    def _context_of(self, exchange: Exchange, envelope: Envelope, data: bytes) -> MessageContext:
        # By position, as for an answer: two arguments by name take as long as all others.
        context = MessageContext(envelope, "inbound", self._chain.role, exchange.notes, False, exchange.request, data)
        context.public_address = self.public_address
        return context

    def _unpacked(
        self, exchange: Exchange, take: Take, is_elsewhere: Elsewhere | None, read: Outcome, root: bytes
    ) -> None:
        if isinstance(read, MissingPart):
            read = self._repeated(read)
        if not isinstance(read, Envelope) or is_elsewhere is None or not is_elsewhere(exchange, read):
            exchange.request.body = root  # what processors check; another process needs all parts
            self._received(exchange, take, None, read)

    def _repeated(self, read: MissingPart) -> Outcome:
        """Return the envelope of a repeat without its attachments: they are stored, and the repeat is acknowledged."""
        return read.envelope if read.envelope is not None and self.has_message(read.envelope) else read

    def _received(self, exchange: Exchange, take: Take, is_elsewhere: Elsewhere | None, read: Outcome) -> None:
        if isinstance(read, MissingPart):
            read = self._repeated(read)
        if isinstance(read, LimitExceeded) and self._is_for_replies(exchange.request.target) is not False:
            self._receive_head(exchange, take, head_in(exchange.request, self.limits, read))
        elif isinstance(read, EnvelopeError):
            self._refuse(exchange, read)
        elif isinstance(read, ProcessorError):
            put_off(exchange, DEFERRED, read)
        elif is_elsewhere is not None and is_elsewhere(exchange, read):
            return
        else:
            if read.not_understood and read.action in self.declared:
                self._chain.leave_to_handlers(read, self.declared[read.action])
            if self._is_plain:
                take(exchange, read, None)
            else:
                self._process(exchange, take, read)

    def _receive_head(self, exchange: Exchange, take: Take, spool: HeadSpool) -> None:
        """Read a request beyond a limit. A reply is replaced by an error for its requester; others are refused."""

        def refuse() -> None:
            if exchange.request.spool is not spool:
                self._refuse(exchange, spool.problem)
                return
            refusal = refuse_as_soap(BODY_TOO_LARGE, exchange.request.headers, exchange.request.peer)
            exchange.respond(refusal.status, refusal.text.encode(), refusal.content_type)

        def read(found: Outcome, root: bytes) -> None:
            exchange.request.body = root  # what processors check
            if not replace_reply(found, spool.problem, is_forwarded=self.passes_on):
                refuse()
                return
            log.warning("answer.too_large", to=exchange.request.peer, message_number=0, reason=spool.problem.message)
            context = self._context_of(exchange, found, root)
            self._pass(context, partial(checked, found), partial(put_off_after_bug, exchange))

        def checked(found: Envelope, error: ProcessorError | None) -> None:
            if error is None:
                take(exchange, found, None)
            else:
                # A refusal would be unsigned as well, and its receiver would take this address for unreachable.
                exchange.respond(202)
                self.on_unproven(found, unproven_reason(spool.problem), exchange)

        if exchange.notes is None:
            exchange.notes = {}
        opening = partial(self._open_request, exchange) if self._chain.receives else None
        self._decoder.read_head(spool, read, opening, partial(put_off_after_bug, exchange))

    def _process(self, exchange: Exchange, take: Take, envelope: Envelope) -> None:
        if exchange.notes is None:
            exchange.notes = {}
        context = self._context_of(exchange, envelope, exchange.request.body)
        self._pass(context, partial(self._passed, exchange, take, context), partial(put_off_after_bug, exchange))

    def _pass(self, context: MessageContext, then: Passed, failed: Failed | None = None) -> None:
        """Pass a message to the processors; make the call with the error that stops it, if any, now or soon."""
        chain = self._chain
        if chain.waits:
            self._decoder.aside(partial(chain.stopping, context), then, failed)
        elif chain.checks_large and len(context.data) >= OFF_LOOP:
            self._decoder.aside(
                partial(chain.failure, context), lambda error: then(error or chain.stopping(context)), failed
            )
        else:
            then(chain.stopping(context))

    def _passed(self, exchange: Exchange, take: Take, context: MessageContext, error: ProcessorError | None) -> None:
        if isinstance(error, ProcessingError):
            namespace, _, local = error.code[1:].partition("}")
            code = local or ("Sender" if error.sender else "Receiver")
            fault = Fault(code, error.message, sender=error.sender, detail=error.detail, code_namespace=namespace)
            take(exchange, context.envelope, fault)
        elif error is not None:
            put_off(exchange, DEFERRED, error)
        elif context.is_answered:
            self.respond(exchange, context.given_answer)
        else:
            take(exchange, context.envelope, None)

    def _refuse(self, exchange: Exchange, error: EnvelopeError) -> None:
        self._incidents["envelope.refused"] += 1
        log.info("envelope.refused", peer=exchange.request.peer, reason=error.message)
        declared = soap_of_content_type(exchange.request.headers.get(b"content-type", b"").decode("latin-1"))
        soap = SOAP(error.soap) if error.soap else declared or SOAP.V1_1
        code = _CODES.get(type(error), "Sender")
        status = status_of_sender(soap) if code == "Sender" else 500
        answer = Envelope(soap, fault=Fault(code, error.message))
        if isinstance(error, AddressingError) and error.addressing:
            answer.addressing = Addressing(error.addressing)
            answer.fault = addressing_fault(error.code, error.message, header=error.header)
        self.respond(exchange, answer, status)

    def read(self, sent: Transmit, response: Response, notes: Notes | None, answered: Answered) -> None:
        """Read the HTTP response to a request, then call ``answered`` with its envelope or the error, now or soon.

        Args:
            notes: As :meth:`write` gave them.
            answered: Receives the result.
        """

        def take(found: Outcome) -> None:
            if isinstance(found, LimitExceeded):
                self._read_head(sent, response, notes, answered, head_in(response, self.limits, found))
            else:
                answered(found)

        if isinstance(response.spool, PackageSpool):
            then = partial(self._answer_unpacked, sent, response, notes, take)
            opening = self._opening_of(sent, response, notes)
            self._decoder.read_spooled(response.spool, then, opening, inlines=self._chain.inlines(sent.to))
        elif isinstance(response.spool, HeadSpool):
            self._read_head(sent, response, notes, answered, response.spool)
        # Some services send one envelope with the media type of a package.
        elif response.body[:1] != b"<" and is_package(media := response.content_type):
            unpacked = partial(self._answer_unpacked, sent, response, notes, take)
            opening = self._opening_of(sent, response, notes)
            chain = self._chain
            self._decoder.read_package(
                media, response.body, unpacked, opening, waits=chain.opening_waits, inlines=chain.inlines(sent.to)
            )
        elif notes is None:
            self._decoder.read(response.body, take)
        else:
            received = partial(self._answered, sent, response, notes, take)
            opening = self._opening_of(sent, response, notes)
            self._decoder.read(response.body, received, opening, waits=self._chain.opening_waits)

    def claimed_fault(self, response: Response) -> Fault | None:
        """Return the fault in an answer that a processor stopped, None without one. Only its text may be used."""
        return self._decoder.claimed_fault(response.body)

    def _opening_of(self, sent: Transmit, response: Response, notes: Notes | None) -> Opening | None:
        if notes is None or not self._chain.receives:
            return None
        return lambda envelope, data: self._chain.received(
            self._context_of_answer(sent, response, notes, envelope, data), data
        )

    def _context_of_answer(
        self, sent: Transmit, response: Response, notes: Notes, envelope: Envelope, data: bytes
    ) -> MessageContext:
        return MessageContext(
            envelope,
            "inbound",
            self._chain.role,
            notes,
            is_answer=True,
            data=data,
            to=sent.to,
            headers=response.headers,
        )

    def _answer_unpacked(
        self, sent: Transmit, response: Response, notes: Notes | None, answered: Answered, read: Outcome, root: bytes
    ) -> None:
        if notes is None:
            answered(read)
        else:
            self._answered(sent, replace(response, body=root), notes, answered, read)

    def _answered(self, sent: Transmit, response: Response, notes: Notes, answered: Answered, read: Outcome) -> None:
        if isinstance(read, Envelope):
            context = self._context_of_answer(sent, response, notes, read, response.body)
            self._pass(context, lambda error: answered(read if error is None else error))
        else:
            answered(read)

    def _read_head(
        self, sent: Transmit, response: Response, notes: Notes | None, answered: Answered, spool: HeadSpool
    ) -> None:
        """Read an answer beyond a limit. If it is a reply, its requester gets an error instead."""

        def read(found: Outcome, root: bytes) -> None:
            is_success = 200 <= response.status < 300
            if is_success and replace_reply(found, spool.problem, is_forwarded=self.passes_on):
                self._answered(sent, replace(response, body=root), notes or {}, partial(checked, found), found)
            else:
                answered(spool.problem)

        def checked(claimed: Envelope, found: Outcome) -> None:
            if isinstance(found, Envelope):
                log.warning("answer.too_large", to=sent.to, message_number=sent.number, reason=spool.problem.message)
                answered(found)
                return
            # Processors may demand what only the whole message proves, such as a signature of its body.
            answered(spool.problem)
            self.on_unproven(claimed, unproven_reason(spool.problem), sent)

        self._decoder.read_head(spool, read, self._opening_of(sent, response, notes))

    @property
    def limits(self) -> Limits:
        return self._decoder.limits

    def use(self, limits: Limits) -> None:
        self._decoder.use(limits)
        self._chain.most_bytes = most_bytes_of(limits)

    def process_with(self, processors: Iterable[Processor]) -> None:
        """Replace the processors, for messages that are not yet read or written."""
        chain = Chain(self._chain.role, processors, self._incidents, self._chain.most_bytes)
        chain.passes_on = self._chain.passes_on
        self._chain, self._is_plain = chain, chain.is_empty

    def add_processor(self, processor: Processor) -> None:
        """Put a processor before the others, next to the network."""
        self.process_with((processor, *self._chain.processors))

    @property
    def writing_waits(self) -> bool:
        """Whether :meth:`write` may wait, so that it must be called :meth:`aside`."""
        return self._chain.writing_waits

    def aside(self, work: Callable[[], T], then: Callable[[T], None], failed: Failed | None = None) -> None:
        """Do what takes long with an envelope where large ones are read, as :meth:`Decoder.aside` does."""
        self._decoder.aside(work, then, failed)

    # --- out ------------------------------------------------------------------------------------------------------

    def respond(
        self,
        exchange: Exchange,
        envelope: Envelope | None,
        status: int = 0,
        problem: Exception | None = None,
        *,
        is_fault: bool = False,
    ) -> None:
        """Answer an HTTP request.

        Args:
            envelope: The response, None for an empty one: 202. A reply that a processor refuses is replaced by a fault,
                because each repeat would be refused as well. If another response cannot be written, the answer is 503:
                an accepted message is stored, and the answer to a repeated request may say so.
            status: The HTTP status, if it differs from SOAP's for that envelope.
            problem: Why its attachments cannot be put into it; None if they can, or need not.
            is_fault: Whether it is that fault.
        """
        if envelope is None:
            exchange.respond(202)
            return
        if envelope.attachments and problem is None and self.must_inline(envelope, ""):
            self.inline(envelope, partial(self.respond, exchange, envelope, status))
            return
        media = CONTENT_TYPES[envelope.soap]
        try:
            if problem is not None:
                raise problem
            root = encode(envelope) if self._is_plain else self._answer(exchange, envelope)
            content: bytes | Streamed = root
            if envelope.attachments:
                told, content = pack(envelope, root)
                media = told.encode()
        except ProcessorError as error:
            if not is_fault and self._replace(envelope, error):
                self.respond(exchange, envelope, status, is_fault=True)
            else:
                put_off(exchange, _UNWRITTEN, error)
        except Exception as error:
            self._incidents[UNWRITABLE] += 1
            log.error(UNWRITABLE, peer=exchange.request.peer, error=brief(error), exception=reason_of(error))
            put_off(exchange, _UNWRITTEN)
        else:
            status = status or (200 if envelope.fault is None else 500)
            if isinstance(content, bytes):
                exchange.respond(status, content, media)
            else:
                self._respond_streamed(exchange, status, content, media)

    def _respond_streamed(self, exchange: Exchange, status: int, content: Streamed, media: bytes) -> None:
        """Answer with a content that is too large for memory, as fast as the peer reads it."""
        responding = asyncio.ensure_future(stream_answer(exchange, status, content, media))
        self._responding.add(responding)
        responding.add_done_callback(self._responding.discard)

    def _answer(self, exchange: Exchange, envelope: Envelope) -> bytes:
        if exchange.notes is None:
            exchange.notes = {}
        context = MessageContext(envelope, "outbound", self._chain.role, exchange.notes, True, exchange.request)
        self._chain.outbound(context)
        return self._chain.encoded(context, encode(context.envelope))

    def write(self, sent: Transmit, given: Notes | None = None) -> tuple[bytes, Notes | None, ExtraRequest | None]:
        """Return the content of an HTTP request, encoded again for every attempt, the notes for its response, and the
        request that follows it.

        Raises:
            RequestFirst: another request comes before it.
            MessageFlowError: it cannot be written now.
            Exception: it cannot be written, whatever the reason.
        """
        if self._is_plain:
            return encode(sent.envelope), None, None
        try:
            return self._write(sent, given)
        except ProcessingError as error:
            if not self._replace(sent.envelope, error):
                raise
            return self._write(sent, given)

    def _write(self, sent: Transmit, given: Notes | None) -> tuple[bytes, Notes | None, ExtraRequest | None]:
        notes: Notes = {} if given is None else given
        # Every attempt passes the processors again, so what they changed must not remain.
        before = _STATE(sent.envelope)
        context = MessageContext(
            sent.envelope,
            "outbound",
            self._chain.role,
            notes,
            is_answer=False,
            to=sent.to,
            attempt=sent.attempt,
        )
        self._chain.outbound(context)
        if context.preceding is not None:
            sent.envelope = Envelope(*before)  # the processors get it again, as it was
            raise RequestFirst(context.preceding)
        return self._chain.encoded(context, encode(context.envelope)), notes, context.following

    def inline(self, envelope: Envelope, then: Callable[[Exception | None], None]) -> None:
        """Put the attachments of a message into it, then make the call.

        Args:
            then: Receives the reason why that is impossible, None if there is none.
        """
        self.aside(partial(self._inlined, envelope), then)

    def must_inline(self, envelope: Envelope, to: str) -> bool:
        """Whether a message needs its attachments in it, because a signature is over them.

        Args:
            to: The address that it goes to; "" for an answer.
        """
        return bool(envelope.attachments) and self._chain.inlines(to) and has_parts(envelope.attachments)

    def _inlined(self, envelope: Envelope) -> ProcessorError | None:
        try:
            inline_envelope(envelope, self.most_content)
        except EnvelopeError as error:
            refusal = ProcessingError(f"The message cannot be signed: {clause(error.message)}.", remedy=error.remedy)
            return None if self._replace(envelope, refusal) else refusal
        except (OSError, StoreError) as error:
            return MessageFlowError(f"the attachments cannot be read from the store: {brief(error)}")
        return None

    def _replace(self, envelope: Envelope, error: ProcessorError) -> bool:
        """Replace a reply that a processor refuses, and each repeat of it. Return whether it is one."""
        action, number = envelope.action, envelope.sequence and envelope.sequence.message_number
        is_final = isinstance(error, ProcessingError) and error.sender
        if not is_final or not replace_unwritable(envelope, error.message):
            return False
        self._incidents[_REPLACED] += 1
        log.error(_REPLACED, action=action, relates_to=envelope.relates_to, message_number=number, reason=error.message)
        return True

    @property
    def most_content(self) -> int:
        """Maximum bytes of a body that peers accept."""
        return self._chain.most_bytes - DEFAULT.max_header_bytes

    def check_content(self, body: bytes, headers: bytes = b"", attachments: bytes = b"") -> None:
        """Check that the processors can write a message, before it is stored.

        Raises:
            EnvelopeError: They never can.
        """
        if not self._is_plain:
            self._chain.check_content(body, headers, attachments, self.most_content)

    # --- life -----------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether something is being read."""
        return self._decoder.is_busy

    async def close(self) -> None:
        """Wait until everything is read and taken."""
        await self._decoder.close()


_TOLD_AS_SOAP = {
    # WCF's client reports a fault only if the status is 500; of any other response it reports the HTTP status.
    BODY_TOO_LARGE: ("The message is larger than this endpoint accepts. Send a smaller one.", 413),
    NEEDS_TLS: ("This port speaks https. Change http to https in the URL.", 500),
}
"""Refusal of the HTTP server -> reason of the fault, and the HTTP status of a SOAP 1.2 fault."""


def refuse_as_soap(refusal: Refusal, headers: Mapping[bytes, bytes], peer: str | None) -> Refusal:
    """Log a request that the HTTP server refuses for its size or coding, or for http at a port for https, or the other
    way round. Answer a SOAP message that is too large, or not in TLS, with a fault: its sender reads faults, and would
    otherwise send the same message again and again."""
    given = headers.get(b"content-type", b"").decode("latin-1")
    log.info("request.refused", peer=peer, status=refusal.status, reason=refusal.text, media=given[:100])
    soap = soap_of_content_type(given)
    if refusal not in _TOLD_AS_SOAP or soap is None:
        return refusal
    reason, status = _TOLD_AS_SOAP[refusal]
    text = encode(Envelope(soap, fault=Fault("Sender", reason))).decode()
    status = 500 if soap is SOAP.V1_1 else status
    return Refusal(status, refusal.reason, text, refusal.headers, CONTENT_TYPES[soap], refusal.retry_after)
