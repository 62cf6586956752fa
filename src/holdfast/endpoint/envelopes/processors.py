"""Processors: what a program puts between the network and reliable messaging, and what each of them is given.

Owns the two public classes. Which processor is called when, and what becomes of what it says, is ``chain``'s.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lxml import etree

from holdfast.core.messages import ANONYMOUS_EPR, Envelope
from holdfast.endpoint.envelopes.message import Body, body_bytes
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.http.exchange import Request
from holdfast.http.tls import PeerCertificate
from holdfast.wire import check_action, check_header_blocks, parse_element
from holdfast.wire.names import SOAP_NS
from holdfast.wire.policy.assertions import Ability

Direction = Literal["inbound", "outbound"]
Role = Literal["source", "destination"]


class Processor:
    """A step applied to every envelope of an endpoint: a check, a header, a signature.

    Derive a class, and give an instance to ``holdfast.Destination(processors=[…])`` or ``holdfast.Source(…)``. An
    inbound envelope passes :meth:`inbound` of each processor, in the order of the list; then the protocol receives it.
    Before the endpoint reads it, its bytes pass :meth:`received`. An outbound envelope passes :meth:`outbound` of each,
    in the opposite order, and :meth:`encoded` once it is written: so the first processor of the list is next to the
    network. All messages pass, including the protocol's own, responses and faults, and every retransmission passes
    again.

    A method returns nothing, and the message proceeds. To stop the message, the method raises
    :class:`MessageFlowError` or :class:`ProcessingError`; to declare that the processor has no part in it,
    :class:`UnknownExchange` or :class:`NotForThisRole`; to answer a request itself, it calls
    :meth:`MessageContext.answer`. A processor that needs something from the receiver before it can write a request,
    such as a token, calls :meth:`MessageContext.request_first`.

    The endpoint calls processors in its event loop, one at a time, and everything else waits meanwhile. Do work that
    takes longer than a millisecond, or waits for anything, beforehand or elsewhere, or set :attr:`waits`.

    Attributes:
        understands: Names of header blocks, ``"{namespace}local"``, that it processes: the endpoint accepts a message
            that demands that one of them be understood (mustUnderstand). If no processor understands a mandatory
            block, the endpoint answers with the fault MustUnderstand, before it calls any processor.
        abilities: The demands of a service's policy that it meets, for :meth:`holdfast.Source.from_wsdl`.
        binds_sequences: Whether a destination with it demands that CreateSequence names the token that signs it.
        waits: Whether :meth:`received` and :meth:`inbound` may wait, for a database for example, and :meth:`outbound`
            for a message that the endpoint sends itself. The endpoint then calls them in another thread, still for one
            message at a time. For an answer in the HTTP response, :meth:`outbound` must not wait.
        roles: The endpoints that it is for. Another one refuses it: a class that only sends credentials would leave a
            destination open, and one that only checks requests would do nothing at a source.
        counterpart: The name of the class for the other endpoint, for that error.
        owns: Names of header blocks that it writes or checks as a whole. An endpoint refuses two processors that own
            the same one: a message would have the block twice, or one processor would remove it before the other.
    """

    understands: Collection[str] = ()
    abilities: Collection[Ability] = ()
    binds_sequences: bool = False
    waits: bool = False
    roles: Collection[str] = ("source", "destination")
    counterpart: str = ""
    owns: Collection[str] = ()
    _remembers_alone: bool = False
    """Whether it remembers in memory what was received: then another process would accept it again."""

    def _inlines(self, to: str) -> bool:
        """Return whether messages have their attachments in the body in base64, because its signature is over that.

        Args:
            to: The address that a message goes to, or that answers; "" for requests of peers and answers to them.
        """
        return False

    def _check_large(self, context: MessageContext) -> None:
        """Check a large message in another thread, for :meth:`inbound`, which the endpoint calls afterwards.

        Another processor may be called meanwhile, for another message. Nothing is checked here that another process
        owns, whereas :meth:`received` sees every message.
        """

    def _check_content(self, content: bytes) -> None:
        """Check that it can write a message, before the message is stored.

        Args:
            content: The header blocks and the body, one after the other.

        Raises:
            EnvelopeError: It never can.
        """

    def _secured_size(self, size: int) -> int:
        """Return the bytes of a message that it writes: encrypted, it is in base64.

        Args:
            size: Those of the content before.
        """
        return size

    def _trouble(self) -> str:
        """Return why peers refuse what it writes now, such as an expired certificate, as a sentence; "" for nothing."""
        return ""

    def _check_service(self, to: str) -> None:
        """Check that it can write requests to a service, when a source is made.

        Raises:
            ConfigurationError: It cannot.
        """

    def policy(self, *, is_https: bool) -> str:
        """Return what a destination with this processor demands, for the policy in its generated WSDL.

        Args:
            is_https: Whether clients reach the destination over https.

        Returns:
            Assertions as XML. The prefix ``wsp`` is that of WS-Policy 1.5; declare others in the elements.
        """
        return ""

    def received(self, context: MessageContext, data: bytes) -> bytes:
        """It came from the network: decrypt it, or return ``data`` itself.

        Large messages pass in another thread. To refuse a message, return it as it is and refuse it in :meth:`inbound`.
        A method that only checks a message belongs there, too.

        Args:
            context: As for :meth:`inbound`, with the message as it is without decryption.
            data: The message as received. Its size and form were checked.

        Returns:
            The envelope in UTF-8 that :meth:`inbound` and the protocol see instead. It is checked again.
        """
        return data

    def inbound(self, context: MessageContext) -> None:
        """A message came from the network."""

    def outbound(self, context: MessageContext) -> None:
        """A message is about to be written."""

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        """It is written, and about to leave.

        Args:
            context: As for :meth:`outbound`.
            data: The envelope in UTF-8, as it would go over the wire.

        Returns:
            What goes over the wire instead.
        """
        return data


@dataclass(frozen=True, slots=True)
class ExtraRequest:
    """A request of a processor's own, before or after one of the protocol's.

    Args:
        envelope: The request.
        key: What it is for: all messages with the same key wait for one request.
        notes: The notes with which it passes the processors.
    """

    envelope: Envelope
    key: str
    notes: dict[str, Any]


class RequestFirst(Exception):
    """A message cannot be written before another request is answered."""

    def __init__(self, request: ExtraRequest) -> None:
        super().__init__(request.key)
        self.request = request


class MessageContext:
    """One message on its way through an endpoint's processors.

    Attributes:
        envelope: The typed message; a processor changes the message by changing it: ``action``, ``body`` (bytes),
            ``sequence``, ``control`` (the content of one of the protocol's own messages), ``fault``, ``message_id`` …
        direction: "inbound": from the network. "outbound": from the application, or from the protocol itself.
        role: "destination" or "source": the endpoint that runs the processors. Both send and receive.
        is_answer: Whether it is, or was, the content of an HTTP response rather than of a request.
        data: Inbound: the bytes as received, encrypted if they were, for processors that check a signature. Outbound
            b"": see :meth:`Processor.encoded`.
        to: For our own requests: the URL that the message is posted to, or that answered. "" for requests of peers.
        attempt: Outbound, for messages that are retransmitted: 1 for the first time, as far as this process knows,
            more for a retransmission. 0 for anything else.
        notes: The processors' own notes. The two messages of one HTTP exchange share them: notes on an inbound request
            are there when it is answered on that connection, and notes on an outbound request when its response
            arrives. They are not stored: an answer that goes to an address begins with no notes.
        public_address: Inbound requests: ``DestinationHTTP.public_url``, if that is one address for all requests; else
            None.
    """

    __slots__ = (
        "_answer", "_elements", "_elements_of", "_headers", "_request", "attempt", "data", "direction", "envelope",
        "following", "is_answer", "is_answered", "notes", "preceding", "public_address", "role", "to",
    )  # fmt: skip

    def __init__(
        self,
        envelope: Envelope,
        direction: Direction,
        role: Role,
        notes: dict[str, Any],
        is_answer: bool,
        request: Request | None = None,
        data: bytes = b"",
        to: str = "",
        attempt: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.envelope = envelope
        self.direction = direction
        self.role = role
        self.notes = notes
        self.is_answer = is_answer
        self.data = data
        self.to = to
        self.attempt = attempt
        self.is_answered = False
        self.preceding: ExtraRequest | None = None
        self.following: ExtraRequest | None = None
        self.public_address: str | None = None
        self._answer: Envelope | None = None
        self._request = request
        self._headers = headers
        self._elements: list[list[etree._Element]] = []
        self._elements_of: tuple[bytes, ...] = ()

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def is_application(self) -> bool:
        """Whether its Body is the application's: neither a message of WS-ReliableMessaging nor a fault."""
        return self.envelope.control is None and self.envelope.fault is None

    @property
    def sequence(self) -> str:
        """Identifier of the Sequence that it is a message of, "" if of none."""
        sequence = self.envelope.sequence
        return sequence.identifier if sequence is not None else ""

    @property
    def message_number(self) -> int:
        """Its number there, 0 if in none."""
        sequence = self.envelope.sequence
        return sequence.message_number if sequence is not None else 0

    # --- what HTTP says -------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str | None:
        """``"address:port"`` of who asks us, None where that is not known and for what we ask."""
        return self._request.peer if self._request is not None else None

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The TLS certificate that it showed, None if it was not asked to."""
        return self._request.certificate if self._request is not None else None

    @property
    def user(self) -> str:
        """The user that sent the request, as a processor has proved; "" without proof.

        Set it on an inbound request once its proof is checked. A Sequence that a user created belongs to that user:
        the endpoint refuses messages of others that name it. Handlers read the name as ``message.user``.
        """
        return self._request.user if self._request is not None else ""

    @user.setter
    def user(self, name: str) -> None:
        if self._request is None or self.direction != "inbound":
            raise ConfigurationError(
                "only a received request has a user", remedy="Check context.is_answer and context.direction."
            )
        self._request.user = name

    @property
    def session(self) -> str:
        """The security session that the request belongs to, as a processor has proved; "" for none.

        Set it together with :attr:`user`. A Sequence that was created in a session belongs to it: the endpoint refuses
        messages of other sessions that name it, even of the same user.
        """
        return self._request.session if self._request is not None else ""

    @session.setter
    def session(self, name: str) -> None:
        if self._request is None or self.direction != "inbound":
            raise ConfigurationError(
                "only a received request has a session", remedy="Check context.is_answer and context.direction."
            )
        self._request.session = name

    @property
    def is_secure(self) -> bool:
        """Whether the message travels over TLS, as far as this endpoint sees."""
        if self._request is None:
            return self.to[:6].lower() == "https:"
        return self._request.secure

    @property
    def http_headers(self) -> Mapping[str, str]:
        """The HTTP headers of the request that came, or that is answered; of the answer to what we asked. By their
        names in lower case; empty for what we post."""
        if self._headers is None:
            came = self._request.headers if self._request is not None else {}
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in came.items()}
        return self._headers

    # --- header blocks --------------------------------------------------------------------------------------------

    def _parsed(self) -> list[list[etree._Element]]:
        """The elements of each of the envelope's ``headers``, which may hold several."""
        blocks = self.envelope.headers
        if self._elements_of is not blocks:
            self._elements = [list(parse_element(b"<headers>" + block + b"</headers>")) for block in blocks]
            self._elements_of = blocks
        return self._elements

    @property
    def headers(self) -> list[etree._Element]:
        """The header blocks that are neither WS-Addressing's nor WS-ReliableMessaging's. To change one, remove it and
        add another."""
        return [element for elements in self._parsed() for element in elements]

    def header(self, name: str) -> etree._Element | None:
        """Return the first header block called ``"{namespace}local"``, None if there is no such block."""
        return next((element for element in self.headers if element.tag == name), None)

    def add_header(self, block: Body, *, must_understand: bool = False) -> None:
        """Add a header block.

        Args:
            block: One namespaced XML element: text, UTF-8 bytes or an lxml element.
            must_understand: Whether a receiver that does not understand it must reject the message.

        Raises:
            EnvelopeError: it is not one such element, or is one of SOAP's, WS-Addressing's or WS-ReliableMessaging's.
        """
        data = body_bytes(block)
        if not data:
            raise EnvelopeError("the header block is empty", remedy="Give one XML element.")
        check_header_blocks(data)
        if must_understand:
            element = parse_element(data)
            element.set(f"{{{SOAP_NS[self.envelope.soap]}}}mustUnderstand", "1")
            data = etree.tostring(element, encoding="utf-8")
        self.envelope.headers = (*self.envelope.headers, data)

    def remove_header(self, name: str) -> None:
        """Remove every header block called ``"{namespace}local"``; the others stay as they are."""
        local = name.rpartition("}")[2].encode()
        # Parsed only if the name occurs at all.
        if not any(local in block for block in self.envelope.headers) or self.header(name) is None:
            return
        kept: list[bytes] = []
        for block, elements in zip(self.envelope.headers, self._parsed(), strict=True):
            staying = [element for element in elements if element.tag != name]
            if len(staying) == len(elements):
                kept.append(block)
            elif staying:
                kept.append(
                    b"".join([etree.tostring(element, with_tail=False, encoding="utf-8") for element in staying])
                )
        self.envelope.headers = tuple(kept)

    # --- answers --------------------------------------------------------------------------------------------------

    def answer(self, body: Body = b"", *, action: str = "", headers: bytes = b"") -> None:
        """Answer an inbound request instead of the protocol, which never sees it.

        The endpoint neither stores nor acknowledges anything of the request and calls no later processor; the answer
        passes :meth:`Processor.outbound` of all processors.

        Args:
            body: One XML element, or nothing.
            action: Its wsa:Action. Without one, and without a body, the answer is HTTP 202 and no message.
            headers: Header blocks, XML bytes.

        Raises:
            ConfigurationError: it is not an inbound request.
            EnvelopeError: the body, the action or the headers are not allowed in a message.
        """
        if self.is_answer or self.direction != "inbound":
            raise ConfigurationError(
                "only a received request can be answered", remedy="Check context.is_answer and context.direction."
            )
        content = body_bytes(body)
        if content or action:
            check_action(action)
            check_header_blocks(headers)
            asked = self.envelope
            answer = self._answer = Envelope(asked.soap, asked.addressing, action=action, body=content)
            answer.relates_to = asked.message_id
            answer.headers = (headers,) if headers else ()
        self.is_answered = True

    @property
    def given_answer(self) -> Envelope | None:
        """What :meth:`answer` was given; None: no message."""
        return self._answer

    # --- requests of processors -----------------------------------------------------------------------------------

    def request_first(
        self, body: Body, *, action: str, headers: bytes = b"", key: str = "", notes: dict[str, Any] | None = None
    ) -> None:
        """Send another request to the same address before this message.

        This message waits meanwhile. No further processor gets it now; once the request is answered, it passes all
        processors again, from the beginning. If the answer is a fault, it is the answer to this message too. If there
        is no answer, the message is sent again later, as any other.

        The request passes :meth:`Processor.outbound` of all processors, and its answer :meth:`Processor.inbound`.

        Args:
            body: One XML element.
            action: Its wsa:Action.
            headers: Header blocks, XML bytes.
            key: All messages to this address that wait for the same key wait for one request.
            notes: Notes on the request, for its answer.

        Raises:
            ConfigurationError: This is no request of this endpoint.
            EnvelopeError: The body, the action or the headers are not allowed in a message.
        """
        self.preceding = self._extra(body, action, headers, key, notes)

    def request_afterwards(
        self, body: Body, *, action: str, headers: bytes = b"", notes: dict[str, Any] | None = None
    ) -> None:
        """Send another request to the same address once this message is delivered, before its answer is processed.

        The message is delivered if its HTTP status is 2xx. The endpoint continues even if the other request fails.
        The arguments and the errors are those of :meth:`request_first`.
        """
        self.following = self._extra(body, action, headers, "", notes)

    def _extra(self, body: Body, action: str, headers: bytes, key: str, notes: dict[str, Any] | None) -> ExtraRequest:
        if self.is_answer or self.direction != "outbound":
            raise ConfigurationError(
                "a processor can send a request only before or after a request of this endpoint",
                remedy="Check context.is_answer and context.direction.",
            )
        check_action(action)
        check_header_blocks(headers)
        mine = self.envelope
        envelope = Envelope(mine.soap, mine.addressing, action=action, to=mine.to, body=body_bytes(body))
        envelope.message_id, envelope.reply_to = uuid.uuid4().urn, ANONYMOUS_EPR
        envelope.headers = (headers,) if headers else ()
        return ExtraRequest(envelope, key, notes or {})
