"""Message: what a handler is given and what a request is answered with. Knows records and bodies, no protocol rule."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Self

from lxml import etree
from msgspec.structs import astuple

from holdfast.core.faults import HOLDFAST_NS, REPLY_TOO_LARGE
from holdfast.core.origin import without_secrets
from holdfast.core.records import Record
from holdfast.core.versions import SOAP
from holdfast.endpoint.arguments import check_class
from holdfast.endpoint.envelopes.attachments import (
    Attachment,
    decode_attachments,
    inline_attachments,
    inlined_body,
    inlined_headers,
)
from holdfast.endpoint.envelopes.transport_facts import read_facts
from holdfast.exceptions import DeliveryError, EnvelopeError, HoldfastError, PeerFault, clause
from holdfast.http.tls import PeerCertificate
from holdfast.settings import Within
from holdfast.wire import AROUND, body_content, check_action, check_header_blocks, parse_element, storable_text
from holdfast.wire.body import in_utf8
from holdfast.wire.names import SOAP_NS
from holdfast.wire.text import escape, escape_attribute

Body = str | bytes | etree._Element
"""What can be sent as a body: one XML element, as text, as bytes, or as an lxml element. Bytes are UTF-8, unless their
first bytes or their XML declaration name another encoding."""
BODY_TYPES = (str, bytes, bytearray, memoryview, etree._Element)
"""The classes of which a body may be, at run time."""


@dataclass
class Message:
    """One delivered message.

    Attributes:
        action: wsa:Action.
        body_bytes: The unchanged content of soap:Body, one self-contained XML element in UTF-8; b"" if it is empty.
        sequence: Identifier of the Sequence that carried the message.
        message_number: The number of the message in that Sequence.
        message_id, to, reply_to, relates_to: WS-Addressing values, None where absent.
        soap: "1.1" or "1.2".
        headers: The foreign header blocks, each an lxml element.
        received_at: When the message arrived, in seconds since 1970-01-01 UTC.
        delivered_at: When the message entered the queue, in the same unit: later than ``received_at`` if the
            destination held it until lower numbers arrived.
        attempt: 1 for the first known delivery to the handler; higher after a failure.
        http_headers: The HTTP headers of the request that the destination stores (``keep_http_headers=…``), by name in
            lower case.
        peer_certificate: The sender's TLS certificate, None if the server did not request one.
        user: The sender's user name, as :class:`UsernameTokenValidator` proved it; "" without one.
        attachments: The attachments, each an :class:`Attachment`, in the order in which they came. In MTOM, the body
            names them in ``xop:Include`` elements.
    """

    action: str
    body_bytes: bytes
    sequence: str
    message_number: int
    message_id: str | None
    to: str | None
    reply_to: str | None
    relates_to: str | None
    soap: str
    header_bytes: bytes
    received_at: Annotated[float, Within(0)]
    delivered_at: Annotated[float, Within(0)]
    attempt: int = 1
    http_headers: Mapping[str, str] = field(default_factory=dict)
    peer_certificate: PeerCertificate | None = None
    user: str = ""
    attachments: Sequence[Attachment] = ()

    @classmethod
    def from_record(cls, record: Record, attempt: int = 1) -> Self:
        """Return the message stored in a queue as ``record``."""
        message = cls(
            record.action,
            record.body,
            record.sequence,
            record.message_number,
            record.message_id,
            record.to,
            record.reply_to,
            record.relates_to,
            record.soap,
            record.headers,
            record.received_at,
            record.delivered_at,
            attempt,
            *(astuple(read_facts(record.transport)) if record.transport else ()),
        )
        if record.attachments:
            message.attachments = decode_attachments(record.attachments)
        return message

    @cached_property
    def body(self) -> etree._Element:
        """The body's element, parsed on first access.

        A body of several megabytes takes long to parse and blocks the event loop in an async handler. Use a plain
        handler, which runs in a thread, or ``await asyncio.to_thread(lambda: message.body)``.

        Raises:
            EnvelopeError: the body is empty, or has more than one element.
        """
        return parse_element(self.body_bytes)

    def inline_attachments(self) -> etree._Element:
        """Return the body with each ``xop:Include`` replaced by its attachment in base64, as a sender without MTOM
        writes it. The element is a copy; it needs memory for all of them.

        Raises:
            EnvelopeError: As for :attr:`body`; or the message has no attachment with a Content-ID that the body names.
        """
        return inline_attachments(parse_element(self.body_bytes), self.attachments)

    @cached_property
    def headers(self) -> list[etree._Element]:
        """The foreign header blocks."""
        return list(parse_element(b"<headers>" + self.header_bytes + b"</headers>"))

    def raise_for_fault(self) -> None:
        """Raise the fault if the body is one.

        Raises:
            PeerFault: with the reason, the code and the detail. Attachments that its XML names are in it, in base64.
            DeliveryError: the message replaces a reply that was too large.
        """
        # Before it is parsed: a reply may have megabytes.
        if b"Fault" not in self.body_bytes[:200]:
            return
        fault = self.body
        name = etree.QName(fault)
        if name.localname != "Fault" or "envelope" not in (name.namespace or ""):
            return
        headers = self.header_bytes
        if self.attachments:
            with contextlib.suppress(EnvelopeError):  # without one that it names, the fault is as it came
                fault = parse_element(inlined_body(self.body_bytes, self.attachments))
                headers = inlined_headers(headers, self.attachments)
        error = _peer_fault(fault)
        error.action, error.header_bytes = self.action, headers
        if error.code == REPLY_TOO_LARGE and any(HOLDFAST_NS in part.nsmap.values() for part in fault.iter("{*}*")):
            raise too_large_error("the service", self.relates_to or "", error.message)
        raise error


def too_large_error(to: str, message_id: str, reason: str) -> DeliveryError:
    return DeliveryError(
        f"{to} has the request {message_id}, but its reply is too large: {clause(reason)}",
        remedy="The operation was executed and the request is done. Before you repeat it with a new MessageID, check "
        "what it changed.",
    )


def _peer_fault(fault: etree._Element) -> PeerFault:
    def text(*paths: str) -> str:
        for path in paths:
            found = fault.xpath(f"string({path})")
            if isinstance(found, str) and found.strip():
                return found.strip()
        return ""

    # By local names, like the decoder: some stacks write the children of SOAP 1.1 in SOAP 1.2, or qualify them.
    code = text("*[local-name()='Code']//*[local-name()='Subcode']/*[local-name()='Value']")
    code = code or text("*[local-name()='Code']/*[local-name()='Value']", "*[local-name()='faultcode']") or "Receiver"
    detail = b""
    for part in fault.iterchildren("{*}detail", "{*}Detail"):
        elements = [etree.tostring(child, with_tail=False, encoding="utf-8") for child in part.iterchildren("{*}*")]
        # text is no detail entry, but some services write no other
        detail += b"".join(elements) if elements else escape(part.text or "").encode()
    reason = text("*[local-name()='Reason']/*[local-name()='Text']", "*[local-name()='Reason']/text()")
    reason = reason or text("*[local-name()='faultstring']", "text()")
    whole = etree.tostring(fault, with_tail=False, encoding="utf-8")
    reason = reason or "the peer answered with a fault"
    return PeerFault(reason, code=code.rpartition(":")[2], detail=detail, element=whole)


class ApplicationFault(HoldfastError):
    """Raised by a handler to answer a request with a SOAP fault instead of a reply. It is final: no further attempt.

    Args:
        reason: English text for the requester.
        sender: Whether the requester is to blame (Sender) or not (Receiver).
        detail: One XML element for the Detail, as text, bytes or an lxml element; empty for none.
        code: The service's own code, as "{namespace}Name" or "Name", the same as ``subcode``. Together with
            ``subcode``, it is the code above that: "Sender" or "Receiver", instead of ``sender``. "" for none.
        subcode: The service's own code: SOAP 1.2's Subcode. SOAP 1.1 has one code, so it is the faultcode there. ""
            for none.
        action: The wsa:Action of the fault, as the contract declares it; "" for WS-Addressing's own.
        headers: Header blocks: XML bytes, elements with namespaces, one after the other. A handler of
            ``@app.operation`` may also give a dict with the values of header blocks that the WSDL declares for faults
            (``soap:headerfault``), by their local names.

    Raises:
        ConfigurationError: An argument has the wrong type.
        EnvelopeError: the detail is not one XML element, a code is not a name, ``code`` is neither "Sender" nor
            "Receiver" together with a subcode, the action is WS-RM's or invalid, or the headers are not header blocks.
    """

    default_action = ""
    """The default action of a fault that the WSDL declares without an action, for WS-Addressing 2005/08."""

    def __init__(
        self,
        reason: str,
        *,
        sender: bool = True,
        detail: Body = b"",
        code: str = "",
        subcode: str = "",
        action: str = "",
        headers: bytes | Mapping[str, Any] = b"",
    ) -> None:
        check_class("headers", headers, (bytes, Mapping), optional=False)
        check_class("sender", sender, bool, optional=False)
        for argument, text in (("code", code), ("subcode", subcode), ("action", action)):
            check_class(f"the {argument} of a fault", text, str, optional=False)
        super().__init__(str(reason))
        self.sender = sender
        self.code = code
        self.subcode = subcode
        self.action = action
        self.headers = headers
        if action:
            check_action(action)
        if headers and isinstance(headers, bytes):
            check_header_blocks(headers)
        check_code("code", code)
        check_code("subcode", subcode)
        if code and subcode:
            name = etree.QName(code)
            if name.localname not in ("Sender", "Receiver") or name.namespace not in (None, *SOAP_NS.values()):
                raise EnvelopeError(
                    f"The code of a fault with a subcode must be Sender or Receiver, not {code!r}.",
                    remedy="Give only the service's own code as the subcode.",
                )
            self.sender = name.localname == "Sender"
        try:
            self.detail = body_bytes(detail, AROUND + 2)  # Fault and Detail
        except EnvelopeError as error:
            raise EnvelopeError(f"The detail of a fault must be one XML element: {error.message}") from None


def check_code(argument: str, name: str) -> None:
    """Check that a name is a valid code of a fault, or "".

    Raises:
        EnvelopeError: it is not a valid name, or its namespace is not a URI.
    """
    try:
        if name:
            etree.Element(name)
    except ValueError:
        text = f"The {argument} of a fault must be a name as {{namespace}}Name, not {name!r}."
        raise EnvelopeError(text) from None


def body_bytes(body: Body, around: int = AROUND) -> bytes:
    """A body as bytes, checked to be one well-formed element that receivers take, or nothing.

    Raises:
        EnvelopeError: it is not.
    """
    if type(body) is bytes and body.startswith(b"<") and not body.startswith(b"<?"):
        return body_content(body, around)
    if isinstance(body, etree._Element):
        return body_content(etree.tostring(body, with_tail=False, encoding="utf-8"), around)
    if not isinstance(body, BODY_TYPES):
        raise EnvelopeError(f"a body must be text, bytes or an lxml element, not {type(body).__name__}")
    try:
        # A text has no encoding, whatever its XML declaration names.
        data = body.encode() if isinstance(body, str) else in_utf8(bytes(body))
    except UnicodeEncodeError as error:
        raise EnvelopeError(f"the body is not Unicode text: {error}") from None
    if data.lstrip().startswith(b"<?xml"):
        data = etree.tostring(parse_element(data), encoding="utf-8")
    return body_content(data, around)


def detail_content(detail: bytes) -> bytes:
    """The content of a service's Detail, checked to be one that receivers take: elements, text or nothing.

    Raises:
        EnvelopeError: it is not.
    """
    body_content(b"<detail>%b</detail>" % detail, AROUND + 1)  # Fault
    return detail


def empty_response(body: bytes) -> bytes:
    """The reply's body of an operation that returns nothing: the request element's name with ``Response`` behind it, in
    its namespace, as WCF's own server answers; b"" for a request without an element."""
    if not body:
        return b""
    name = etree.QName(parse_element(body))
    # As text: what the request has as its namespace need not be a URI, and lxml makes no such element.
    namespace = f' xmlns="{escape_attribute(name.namespace)}"' if name.namespace else ""
    return f"<{name.localname}Response{namespace}/>".encode()


def fault_body(fault: ApplicationFault, soap: str) -> bytes:
    """The fault as the element that goes into soap:Body (SOAP 1.2 part 1, 5.4; SOAP 1.1, 4.4)."""
    name = fault.subcode or fault.code
    own = etree.QName(name) if name else None
    is_1_1 = soap == SOAP.V1_1.value
    namespace = SOAP_NS[SOAP(soap)]
    prefixes = {"s": namespace} | ({"c": own.namespace} if own is not None and own.namespace else {})
    own_code = "" if own is None else f"c:{own.localname}" if own.namespace else own.localname
    value = "s:Sender" if fault.sender else "s:Receiver"
    if not fault.subcode and own is not None and own.namespace == namespace:  # SOAP's own, such as MustUnderstand
        value, own_code = f"s:{own.localname}", f"s:{own.localname}" if is_1_1 else ""
    message = storable_text(without_secrets(fault.message))
    root = etree.Element(f"{{{namespace}}}Fault", nsmap=prefixes)
    if is_1_1:
        etree.SubElement(root, "faultcode").text = own_code or ("s:Client" if fault.sender else "s:Server")
        etree.SubElement(root, "faultstring").text = message
    else:
        code = etree.SubElement(root, f"{{{namespace}}}Code")
        etree.SubElement(code, f"{{{namespace}}}Value").text = value
        if own_code:
            subcode = etree.SubElement(code, f"{{{namespace}}}Subcode")
            etree.SubElement(subcode, f"{{{namespace}}}Value").text = own_code
        reason = etree.SubElement(etree.SubElement(root, f"{{{namespace}}}Reason"), f"{{{namespace}}}Text")
        reason.set("{http://www.w3.org/XML/1998/namespace}lang", "en")
        reason.text = message
    written = etree.tostring(root, encoding="utf-8")
    if not fault.detail:
        return written
    # As it is: lxml would drop the prefixes of its namespaces that have another one here, also those in xsi:type.
    tag, end = b"detail" if is_1_1 else b"s:Detail", b"</s:Fault>"
    return b"%b<%b>%b</%b>%b" % (written.removesuffix(end), tag, fault.detail, tag, end)
