"""WS-ReliableMessaging's header blocks and bodies, both ways, for all versions.

The differences between the versions come from their capabilities and their :class:`Dialect`. This module checks only
the form; the core checks the meaning of numbers and ranges.
"""

from __future__ import annotations

from holdfast.core.messages import (
    MAX_MESSAGE_NUMBER,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    IncompleteSequenceBehavior,
    Offer,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import Addressing
from holdfast.exceptions import EnvelopeError, LimitExceeded
from holdfast.wire import text
from holdfast.wire.addressing import decode_epr, encode_epr_content
from holdfast.wire.dialects.dialect import Dialect
from holdfast.wire.names import NETRM_NS
from holdfast.wire.text import escape
from holdfast.wire.tree import Node

_BUFFER_REMAINING = NETRM_NS + "}BufferRemaining"
_MAX_BUFFER = 2**31 - 1


# --- reading ---------------------------------------------------------------------------------------------------------


def _identifier(node: Node, dialect: Dialect) -> str:
    child = node.only(dialect.identifier_name)
    value = child.text if child is not None else ""
    if not value:
        raise EnvelopeError(f"{node.local} has no Identifier")
    return value


def message_number(value: str, what: str = "MessageNumber") -> int:
    """Decode a MessageNumber of 1 or more; the core refuses a number above the maximum (MessageNumberRollover).

    Raises:
        EnvelopeError: if it is not a number, or below 1; ``what`` names the element.
    """
    number = text.number(value, what)
    if number < 1:
        raise EnvelopeError(f"{what} is below 1")
    return number


def decode_sequence(node: Node, dialect: Dialect) -> Sequence:
    """Decode a Sequence header (WS-RM 3.7).

    Raises:
        EnvelopeError: if Identifier or MessageNumber is missing or malformed.
    """
    number = node.only(dialect.name("MessageNumber"))
    if number is None:
        raise EnvelopeError("Sequence has no MessageNumber")
    # LastMessage was removed in 1.1 (WS-RM 1.0 3.2).
    last = dialect.rm.can.marks_last and node.only(dialect.name("LastMessage")) is not None
    return Sequence(_identifier(node, dialect), message_number(number.text), last)


def _range(node: Node) -> tuple[int, int]:
    lower, upper = node.attributes.get("Lower"), node.attributes.get("Upper")
    if lower is None or upper is None:
        raise EnvelopeError(f"{node.local} lacks Lower or Upper")
    return text.number(lower, "Lower"), text.number(upper, "Upper")


def decode_acknowledgement(node: Node, dialect: Dialect, max_ranges: int) -> SequenceAcknowledgement:
    """Decode a SequenceAcknowledgement header (WS-RM 3.9).

    Ranges take precedence over None, which CXF always writes. In 1.0 the lone range 0-0 means nothing accepted.

    Raises:
        EnvelopeError: if it is malformed, or has neither ranges, nor Nacks, nor (1.1) None.
        LimitExceeded: for more than ``max_ranges`` ranges or Nacks.
    """
    range_name, nack_name = dialect.name(dialect.acknowledgement_range), dialect.name("Nack")
    ranges = [child for child in node.children if child.name == range_name]
    nacks = [child for child in node.children if child.name == nack_name]
    # Before any range is decoded: each would become objects.
    if len(ranges) > max_ranges or len(nacks) > max_ranges:
        raise LimitExceeded(f"an acknowledgement with more than {max_ranges} ranges or Nacks")
    if not ranges and not nacks and node.only(dialect.name("None")) is None:
        raise EnvelopeError(f"{node.local} has no {dialect.acknowledgement_range}, None or Nack")
    # Not compared with each other here: the core rejects what was never sent, and joins what overlaps.
    pairs = tuple(_range(child) for child in ranges)
    if pairs == (dialect.range_of_nothing,):
        pairs = ()
    # WS-RM 3.9: Final promises that the ranges never change again. 1.0 knows none.
    final = dialect.rm.can.has_final and node.only(dialect.name("Final")) is not None
    numbers = tuple(text.number(child.text, "Nack") for child in nacks)
    return SequenceAcknowledgement(_identifier(node, dialect), pairs, numbers, final, _buffer_remaining(node))


def _buffer_remaining(node: Node) -> int | None:
    child = node.only(_BUFFER_REMAINING)
    if child is None:
        return None
    value = text.number(child.text, "BufferRemaining")
    # [MS-WSRVCRM]: xs:int, and never negative.
    if value > _MAX_BUFFER:
        raise EnvelopeError("BufferRemaining is not an xs:int")
    return value


def decode_ack_requested(node: Node, dialect: Dialect) -> AckRequested:
    """Decode an AckRequested header (WS-RM 3.8); 1.0's number is a hint and is dropped."""
    return AckRequested(_identifier(node, dialect))


def decode_terminate_header(node: Node, dialect: Dialect) -> str:
    """Decode a SequenceTerminate header (2003/03), and return its Identifier."""
    return _identifier(node, dialect)


def _expires(node: Node) -> float | None:
    child = node.only(f"{node.namespace}}}Expires")
    return text.duration(child.text) if child is not None else None


def _behavior(node: Node) -> IncompleteSequenceBehavior:
    """Decode IncompleteSequenceBehavior; an illegal value is ignored, as WCF does."""
    child = node.only(f"{node.namespace}}}IncompleteSequenceBehavior")
    try:
        return IncompleteSequenceBehavior(child.text if child is not None else "NoDiscard")
    except ValueError:
        return IncompleteSequenceBehavior.NO_DISCARD


def _acks_to(node: Node) -> EndpointReference:
    child = node.only(f"{node.namespace}}}AcksTo")
    if child is None:
        raise EnvelopeError(f"{node.local} has no AcksTo")
    return decode_epr(child)


def _offer(node: Node, dialect: Dialect) -> Offer:
    # WS-RM 3.4: its children; 1.0 has only Identifier and Expires.
    endpoint = node.only(dialect.name("Endpoint")) if dialect.rm.can.offers_endpoint else None
    behavior = _behavior(node) if dialect.has_behavior else IncompleteSequenceBehavior.NO_DISCARD
    return Offer(
        _identifier(node, dialect), decode_epr(endpoint) if endpoint is not None else None, _expires(node), behavior
    )


def _last_number(node: Node, dialect: Dialect) -> int | None:
    child = node.only(dialect.name("LastMsgNumber")) if dialect.rm.can.names_last_number else None
    if child is None:
        return None
    number = message_number(child.text, "LastMsgNumber")
    if number > MAX_MESSAGE_NUMBER:
        # No message can have this number, so no Sequence could end with it.
        raise EnvelopeError(f"LastMsgNumber is above {MAX_MESSAGE_NUMBER}, the highest possible number")
    return number


def decode_control(node: Node, dialect: Dialect, sender: EndpointReference) -> Control:
    """Decode an RM protocol message from the Body's child (WS-RM 3.4, 3.5, 3.6).

    Args:
        dialect: The version of its namespace.
        sender: Where answers to its sender go; in 2004/03, where acknowledgements go too.

    Raises:
        EnvelopeError: The element is not a message of WS-RM, or is malformed.
    """
    kind = dialect.bodies.get(node.local)
    # 2004/03: an empty element, so acknowledgements go where answers go.
    if kind is CreateSequence and not dialect.rm.can.negotiates:
        return CreateSequence(sender)
    if kind is CreateSequence:
        offer = node.only(dialect.name("Offer"))
        return CreateSequence(_acks_to(node), _expires(node), _offer(offer, dialect) if offer is not None else None)
    if kind is CreateSequenceResponse:
        accept = node.only(dialect.name("Accept"))
        behavior = _behavior(node) if dialect.has_behavior else IncompleteSequenceBehavior.NO_DISCARD
        accept_acks_to = _acks_to(accept) if accept is not None else None
        return CreateSequenceResponse(_identifier(node, dialect), _expires(node), behavior, accept_acks_to)
    if kind is TerminateSequence:
        return TerminateSequence(_identifier(node, dialect), _last_number(node, dialect))
    if kind is CloseSequence:
        return CloseSequence(_identifier(node, dialect), _last_number(node, dialect))
    if kind is CloseSequenceResponse:
        return CloseSequenceResponse(_identifier(node, dialect))
    if kind is TerminateSequenceResponse:
        return TerminateSequenceResponse(_identifier(node, dialect))
    raise EnvelopeError(f"{node.told!r} is not a message of WS-RM {dialect.rm.value}")


# --- writing; the prefixes s and wsa, and those of the dialect, must be in scope --------------------------------------


def encode_sequence(header: Sequence, dialect: Dialect) -> str:
    """Encode a Sequence header, which is always mustUnderstand."""
    tag = dialect.identifier_tag
    last = "<wsrm:LastMessage/>" if header.last_message and dialect.rm.can.marks_last else ""
    return (
        f'<wsrm:Sequence s:mustUnderstand="1"><{tag}>{escape(header.identifier)}</{tag}>'
        f"<wsrm:MessageNumber>{header.message_number}</wsrm:MessageNumber>{last}</wsrm:Sequence>"
    )


def encode_acknowledgement(header: SequenceAcknowledgement, dialect: Dialect) -> str:
    """Encode a SequenceAcknowledgement header, children in the schema's order, BufferRemaining last."""
    name = dialect.acknowledgement_range
    # Nearly always: one range.
    if len(header.ranges) == 1:
        ((lower, upper),) = header.ranges
        said = f'<wsrm:{name} Lower="{lower}" Upper="{upper}"/>'
    elif header.ranges:
        said = "".join([f'<wsrm:{name} Lower="{lower}" Upper="{upper}"/>' for lower, upper in header.ranges])
    # A Nack excludes ranges and None (WS-RM 3.9).
    elif header.nacks and dialect.has_nack:
        said = "".join([f"<wsrm:Nack>{number}</wsrm:Nack>" for number in header.nacks])
    else:
        said = dialect.nothing_accepted
    if header.final and dialect.rm.can.has_final and not header.nacks:  # Nack and Final exclude each other (WS-RM 3.9)
        said += "<wsrm:Final/>"
    if header.buffer_remaining is not None:
        said += f'<netrm:BufferRemaining xmlns:netrm="{NETRM_NS}">{header.buffer_remaining}</netrm:BufferRemaining>'
    local, tag = dialect.acknowledgement, dialect.identifier_tag
    return f"<wsrm:{local}><{tag}>{escape(header.identifier)}</{tag}>{said}</wsrm:{local}>"


def encode_ack_requested(header: AckRequested, dialect: Dialect) -> str:
    return f"<wsrm:AckRequested>{write_identifier(header.identifier, dialect)}</wsrm:AckRequested>"


def encode_terminate_header(identifier: str, dialect: Dialect) -> str:
    local = dialect.terminate_header
    return f"<wsrm:{local}>{write_identifier(identifier, dialect)}</wsrm:{local}>"


def write_identifier(identifier: str, dialect: Dialect) -> str:
    tag = dialect.identifier_tag
    return f"<{tag}>{escape(identifier)}</{tag}>"


def _write_expires(expires: float | None) -> str:
    return "" if expires is None else f"<wsrm:Expires>{text.write_duration(expires)}</wsrm:Expires>"


def _write_behavior(behavior: IncompleteSequenceBehavior) -> str:
    return f"<wsrm:IncompleteSequenceBehavior>{behavior.value}</wsrm:IncompleteSequenceBehavior>"


def _write_offer(offer: Offer, dialect: Dialect, addressing: Addressing, acks_to: EndpointReference) -> str:
    # WS-RM 3.4: in the schema's order
    content = write_identifier(offer.identifier, dialect)
    if dialect.rm.can.offers_endpoint:
        # The schema requires Endpoint; the default is the address for acknowledgements.
        endpoint = encode_epr_content(offer.endpoint or acks_to, addressing)
        content += f"<wsrm:Endpoint>{endpoint}</wsrm:Endpoint>"
    content += _write_expires(offer.expires)
    if dialect.has_behavior:
        content += _write_behavior(offer.incomplete_sequence_behavior)
    return f"<wsrm:Offer>{content}</wsrm:Offer>"


def encode_control(control: Control, dialect: Dialect, addressing: Addressing) -> str:
    """Encode an RM protocol message as the Body's content; "" for those with an empty body."""
    match control:
        case CreateSequence() if not dialect.rm.can.negotiates:
            content = ""
        case CreateSequence():
            offer = control.offer
            content = (
                f"<wsrm:AcksTo>{encode_epr_content(control.acks_to, addressing)}</wsrm:AcksTo>"
                + _write_expires(control.expires)
                + (_write_offer(offer, dialect, addressing, control.acks_to) if offer is not None else "")
            )
        case CreateSequenceResponse():
            content = write_identifier(control.identifier, dialect)
            if dialect.rm.can.negotiates:
                content += _write_expires(control.expires)
            if dialect.has_behavior:
                content += _write_behavior(control.incomplete_sequence_behavior)
            # No Accept declines the Offer (WS-RM 3.4).
            if control.accept_acks_to is not None and dialect.rm.can.negotiates:
                acks_to = encode_epr_content(control.accept_acks_to, addressing)
                content += f"<wsrm:Accept><wsrm:AcksTo>{acks_to}</wsrm:AcksTo></wsrm:Accept>"
        case CloseSequence() | TerminateSequence():
            content = write_identifier(control.identifier, dialect)
            # LastMsgNumber cannot be 0, so it is left out if no message was sent (WS-RM 3.5).
            if dialect.rm.can.names_last_number and control.last_message_number:
                content += f"<wsrm:LastMsgNumber>{control.last_message_number}</wsrm:LastMsgNumber>"
        case CloseSequenceResponse() | TerminateSequenceResponse():
            content = write_identifier(control.identifier, dialect)
        case _:
            return ""
    local = type(control).__name__
    return f"<wsrm:{local}>{content}</wsrm:{local}>"
