"""Bytes to typed envelopes, in this order: size, encoding, fast paths, complete path.

The fast paths decode the envelopes they know (``forms``: a header that differs from an earlier one only in its values;
``fast``: the usual shape) and return None for all others. The complete path here decodes those, and raises all errors.
"""

from __future__ import annotations

import re

from holdfast.core.messages import ANONYMOUS_EPR, Envelope, MakeConnection, TerminateSequence
from holdfast.core.versions import RM
from holdfast.exceptions import EnvelopeError, LimitExceeded
from holdfast.wire import addressing as wsa
from holdfast.wire import rm
from holdfast.wire.decoding.fast import decode_usual
from holdfast.wire.decoding.forms import decode_known, learn
from holdfast.wire.decoding.kept import check_kept
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.faults import FAULT_HEADER_NAMES, decode_fault
from holdfast.wire.limits import DEFAULT, Limits
from holdfast.wire.make_connection import decode_make_connection, is_pending
from holdfast.wire.names import (
    EMPTY_CONTROLS,
    FAULT_ACTIONS,
    MC_ACTION,
    MC_NAME,
    MC_PENDING_NAME,
    RESERVED_ACTIONS,
    RM_HEADER_NAMES,
    RM_OF_ACTION,
    RM_OF_NS,
    ROLE_ATTRIBUTE,
    ROLES_OF_OURS,
    SECURITY_BINDING_NAMES,
    SOAP_NS,
    is_for_receiver,
)
from holdfast.wire.text import MARKS, UNMARKED
from holdfast.wire.tree import Document, Node, has_many_attributes, parse


def decode(data: bytes, *, limits: Limits = DEFAULT) -> Envelope:
    """Decode one SOAP 1.1 or 1.2 message with its WS-Addressing and WS-RM headers.

    The whole document is checked for well-formedness. An application's body is left as bytes. RM messages with a body
    element, faults and unusual headers cost three to four times as much as a plain message.

    Args:
        data: The HTTP body: UTF-8, UTF-16 with a byte order mark, or the encoding of the XML declaration.
        limits: Limits on its size and cost.

    Raises:
        VersionMismatch: The root is not a known Envelope.
        LimitExceeded: It is larger, deeper or has more headers than the limits allow.
        AddressingError: An addressing property is doubled or malformed.
        EnvelopeError: Anything else that makes it unacceptable: not well-formed, a DOCTYPE, two Sequence headers, an
            invalid message number. No other exception is raised.
    """
    if len(data) > limits.max_bytes:
        raise LimitExceeded(f"the message has {len(data)} bytes, but the limit is {limits.max_bytes}")
    start = data[:2]
    # UTF-8 without a declaration, which nearly every peer sends, needs no look at its encoding.
    if start == b"<?" or start == b"<\0" or start[:1] != b"<":
        data = as_utf8(data)
    # Before the parser, which would hold all attributes of a tag at once.
    if len(data) > limits.max_attributes and has_many_attributes(data, limits.max_attributes):
        raise LimitExceeded(f"an element has more than {limits.max_attributes} attributes")
    # Fastest first. Each path decodes only what it certainly decodes like the complete one.
    envelope = decode_known(data, limits)
    if envelope is None:
        envelope = decode_usual(data, limits)
        if envelope is None:
            envelope = decode_any(data, limits)
        else:
            learn(data, envelope)
        # A shorter message cannot contain too long a URI.
        if len(data) > limits.max_uri:
            check_kept(envelope, limits)
    if envelope.control is not None or envelope.action in RESERVED_ACTIONS:
        envelope.contradiction = _contradiction(envelope)
    return envelope


def _contradiction(envelope: Envelope) -> str:
    """Describe a contradiction between the Action and the Body of a control message or fault; "" without one."""
    action, control = envelope.action, envelope.control
    if isinstance(control, MakeConnection):
        return "" if action == MC_ACTION else f"The Body is a MakeConnection message, but the Action is {action!r}."
    if control is not None:
        dialect = DIALECTS[envelope.rm] if envelope.rm is not None else None
        if dialect is not None and dialect.read_actions.get(action) is type(control):
            return ""
        if dialect is not None and dialect.terminate_header and action not in RESERVED_ACTIONS:
            return ""  # a header says it, which any message may carry
        return f"The Body is a {type(control).__name__} message of WS-ReliableMessaging, but the Action is {action!r}."
    if action in FAULT_ACTIONS and envelope.fault is not None:
        return ""
    return f"The Action is {action!r}, but the Body does not match it."


# --- encodings -------------------------------------------------------------------------------------------------------

_DECLARATION = re.compile(
    r"<\?xml\s+version\s*=\s*(?:\"1\.0\"|'1\.0')(?:\s+encoding\s*=\s*[\"']([A-Za-z][A-Za-z0-9._\-]*)[\"'])?"
    r"(?:\s+standalone\s*=\s*(?:\"(?:yes|no)\"|'(?:yes|no)'))?\s*\?>",
    re.ASCII,
)
_CODECS = re.compile(
    r"(?:utf-?8|utf-?16(?:-?[lb]e)?|(?:us-)?ascii|iso-8859-(?:[1-9]|1[013456])|windows-125[0-8])", re.IGNORECASE
)


def as_utf8(data: bytes) -> bytes:
    """Remove the byte order mark and XML declaration, and re-encode other encodings as UTF-8.

    Raises:
        EnvelopeError: The encoding is not supported, or the bytes are not in it.
    """
    codec = UNMARKED.get(data[:2], "")
    for mark, name in MARKS.items():
        if data.startswith(mark):
            codec, data = name, data[len(mark) :]
            break
    head = data[:400].decode(codec or "ascii", "replace")
    declaration = _DECLARATION.match(head)
    if declaration is None:
        if head.startswith("<?xml"):
            raise EnvelopeError("the XML declaration is malformed or has a version other than 1.0")
        return data if codec in ("", "utf-8") else _transcode(data, codec)
    declared = declaration[1] or "utf-8"
    # A list, because Python has codecs that are no encodings, and some expand without bound.
    if _CODECS.fullmatch(declared) is None:
        raise EnvelopeError(f"the encoding {declared!r} is not supported", remedy="Send UTF-8")
    width = 2 if codec.startswith("utf-16") else 1
    content = data[declaration.end() * width :].lstrip() if width == 1 else data[declaration.end() * 2 :]
    return _transcode(content, codec or declared)


def _transcode(data: bytes, codec: str) -> bytes:
    if codec.lower() in ("utf-8", "utf8", "us-ascii", "ascii"):
        return data
    try:
        return data.decode(codec).encode()
    except (UnicodeError, LookupError) as error:
        raise EnvelopeError(f"the bytes are not valid {codec}: {error}") from None


# --- the complete path -----------------------------------------------------------------------------------------------


def decode_any(data: bytes, limits: Limits) -> Envelope:
    """Decode any envelope in UTF-8 without XML declaration; :func:`decode` lists the errors."""
    document = parse(data, limits)
    envelope = Envelope(document.soap)
    try:
        _read(document, envelope, limits)
    except EnvelopeError as error:
        error.soap = error.soap or document.soap.value
        raise
    return envelope


def _read(document: Document, envelope: Envelope, limits: Limits) -> None:
    envelope.addressing = wsa.version_of(document.headers)
    roles = ROLES_OF_OURS[document.soap]
    role_attribute = ROLE_ATTRIBUTE[document.soap]
    foreign: list[Node] = []
    seen: set[str] = set()
    for node in document.headers:
        role = node.attributes.get(role_attribute, "").strip()
        ours = role in roles
        if ours and node.name in RM_HEADER_NAMES:
            _read_rm_header(node, envelope, limits)
        # Blocks of another version of WS-Addressing are foreign.
        elif ours and envelope.addressing and wsa.HEADER_NAMES.get(node.name) is envelope.addressing:
            wsa.decode_header(node, envelope, envelope.addressing, seen)
        elif ours and node.name == MC_PENDING_NAME:
            envelope.message_pending = is_pending(node)
        else:
            foreign.append(node)
            # SOAP 1.2 part 1, 2.4: only blocks for this node count.
            if ours and _is_not_understood(node, SOAP_NS[document.soap]):
                envelope.not_understood += (f"{{{node.namespace}}}{node.local}",)
                if is_for_receiver(node.name, role):
                    envelope.for_receiver += envelope.not_understood[-1:]
    if document.content is not None:
        foreign = _read_content(document, document.content, envelope, foreign, limits)
    else:
        envelope.body = document.body
        if not document.body and (empty := EMPTY_CONTROLS.get(envelope.action)) is not None:
            envelope.control = empty()
    # The version of 2003/03 ends a Sequence with a header block, alone or in addition to another message.
    if envelope.terminates and not document.body and not (envelope.sequence or envelope.control or envelope.fault):
        envelope.control, envelope.terminates = TerminateSequence(envelope.terminates), ""
    # An empty body, such as LastMessage's: only the action names the version.
    if envelope.action in RM_OF_ACTION and envelope.rm is None:
        envelope.rm = RM_OF_ACTION[envelope.action]
    envelope.headers = tuple([node.raw() for node in foreign])


def _is_not_understood(node: Node, soap_ns: str) -> bool:
    if node.name in SECURITY_BINDING_NAMES:
        return True
    mandatory = node.attributes.get(soap_ns + "}mustUnderstand", "").strip() in ("1", "true")
    return mandatory and node.name not in FAULT_HEADER_NAMES


def _speak(envelope: Envelope, version: RM) -> None:
    # A Sequence lives in one version, so a message has one.
    if envelope.rm is not None and envelope.rm is not version:
        raise EnvelopeError(f"the message mixes WS-RM {envelope.rm.value} and {version.value}")
    envelope.rm = version


def _read_rm_header(node: Node, envelope: Envelope, limits: Limits) -> None:
    version = RM_HEADER_NAMES[node.name]
    _speak(envelope, version)
    dialect = DIALECTS[version]
    if node.local == "Sequence":
        if envelope.sequence is not None:
            raise EnvelopeError("the message has two Sequence headers; one is allowed (WS-RM section 3.7)")
        envelope.sequence = rm.decode_sequence(node, dialect)
    elif node.local == "AckRequested":
        envelope.ack_requested += (rm.decode_ack_requested(node, dialect),)
    elif node.local == dialect.terminate_header:
        if envelope.terminates:
            raise EnvelopeError(f"the message has two {node.local} headers")
        envelope.terminates = rm.decode_terminate_header(node, dialect)
    else:
        acknowledgement = rm.decode_acknowledgement(node, dialect, limits.max_ranges)
        # WS-RM 3.9: several may share a message only if their Identifiers differ.
        if any(other.identifier == acknowledgement.identifier for other in envelope.acknowledgements):
            raise EnvelopeError("two SequenceAcknowledgement headers for one Sequence (WS-RM section 3.9)")
        envelope.acknowledgements += (acknowledgement,)


def _read_content(
    document: Document, content: Node, envelope: Envelope, foreign: list[Node], limits: Limits
) -> list[Node]:
    """Decode an RM message, MakeConnection or a fault; return the header blocks that are still foreign."""
    version = RM_OF_NS.get(content.namespace)
    if version is not None:
        _speak(envelope, version)
        sender = envelope.reply_to or envelope.from_ or ANONYMOUS_EPR
        envelope.control = rm.decode_control(content, DIALECTS[version], sender)
        return foreign
    if content.name == MC_NAME:
        envelope.control = decode_make_connection(content)
        return foreign
    envelope.fault, fault_rm = decode_fault(content, foreign, document.soap, limits.max_ranges)
    envelope.rm = envelope.rm or fault_rm
    if not envelope.fault.is_rm:
        envelope.body = content.raw()  # for its receiver, an application's fault is an ordinary message
        if not envelope.fault.is_addressing and envelope.action not in RESERVED_ACTIONS:
            envelope.fault.action = envelope.action
    return [node for node in foreign if node.name not in FAULT_HEADER_NAMES]
