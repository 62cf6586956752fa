"""Messages for unit tests of handlers, built without a destination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lxml import etree

from holdfast.core.versions import SOAP
from holdfast.endpoint.envelopes.message import Body, Message, body_bytes
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.settings import check_settings
from holdfast.wire import parse_element

RECEIVED_AT = 1_000_000_000.0
"""When a message was received, unless the test says otherwise: 2001-09-09T01:46:40Z."""


def message(
    body: Body = b"<body/>",
    *,
    action: str = "urn:test:action",
    headers: str | bytes | etree._Element | Iterable[etree._Element] = b"",
    sequence: str = "urn:uuid:00000000-0000-4000-8000-000000000001",
    message_number: int = 1,
    soap: str = "1.2",
    received_at: float = RECEIVED_AT,
    attempt: int = 1,
    **others: Any,
) -> Message:
    """Return a message as a handler receives it: ``submit(message("<order/>"))``.

    The same arguments give the same message. An omitted argument has the value of a one-way message that is alone in
    its Sequence.

    Args:
        body: One XML element, as text, UTF-8 bytes or an lxml element; b"" for an empty soap:Body.
        action: wsa:Action.
        headers: Header blocks of the application: XML, or lxml elements.
        sequence, message_number: The position of the message.
        soap: "1.1" or "1.2".
        received_at: Seconds since 1970-01-01 UTC.
        attempt: 2 or more for a message that the handler gets again.
        others: Any other attribute of :class:`holdfast.Message`, such as ``message_id`` and ``reply_to``.

    Raises:
        EnvelopeError: the body or a header is not XML.
        ConfigurationError: an attribute that a message does not have, or a number out of range.
    """
    if not isinstance(soap, str) or soap not in {one.value for one in SOAP}:
        raise ConfigurationError(f"{soap!r} is not a version of SOAP", remedy='Use soap="1.1" or soap="1.2".')
    known = {name for name in Message.__dataclass_fields__ if name not in ("body_bytes", "header_bytes")}
    if others.keys() - known:
        raise ConfigurationError(
            f"a message has no {', '.join(sorted(others.keys() - known))}",
            remedy=f"It has {', '.join(sorted(known))}, body and headers.",
        )
    absent: dict[str, Any] = dict.fromkeys(("message_id", "to", "reply_to", "relates_to"))
    given = {"delivered_at": received_at} | absent | others
    made = Message(
        action=action,
        body_bytes=body_bytes(body),
        sequence=sequence,
        message_number=message_number,
        soap=soap,
        header_bytes=_header_bytes(headers),
        received_at=received_at,
        attempt=attempt,
        **given,
    )
    check_settings(made)
    return made


def _element(one: object) -> etree._Element:
    if not isinstance(one, etree._Element):
        raise EnvelopeError(f"a header must be an lxml element, not {type(one).__name__}")
    return one


def _header_bytes(headers: str | bytes | etree._Element | Iterable[etree._Element]) -> bytes:
    if isinstance(headers, etree._Element):
        headers = [headers]
    if not isinstance(headers, Iterable) or isinstance(headers, Mapping):
        raise EnvelopeError(f"headers must be XML or lxml elements, not {type(headers).__name__}")
    if not isinstance(headers, str | bytes):
        return b"".join(etree.tostring(_element(one), with_tail=False, encoding="utf-8") for one in headers)
    try:
        text = headers.encode() if isinstance(headers, str) else headers
        blocks = parse_element(b"<headers>" + text + b"</headers>")
    except EnvelopeError as error:
        raise EnvelopeError(f"the headers are not valid XML: {error.message}") from None
    except UnicodeEncodeError as error:
        raise EnvelopeError(f"the headers are not Unicode text: {error}") from None
    return b"".join(etree.tostring(one, with_tail=False, encoding="utf-8") for one in blocks)
