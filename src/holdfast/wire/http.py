"""The HTTP headers of a SOAP message: Content-Type and SOAPAction."""

from __future__ import annotations

import re
from urllib.parse import quote

from holdfast.core.versions import SOAP

_ASCII = "".join(map(chr, range(0x20, 0x7F)))


def _quoted(value: str) -> str:
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "")
    # A header contains only Latin-1, so an IRI is written as the URI that it maps to (RFC 3987, section 3.1).
    return f'"{value if value.isprintable() and value.isascii() else quote(value, safe=_ASCII, errors="replace")}"'


def content_type(soap: SOAP, action: str = "") -> str:
    """Return the Content-Type; for SOAP 1.2 it contains the action, if there is one (RFC 3902)."""
    if soap is SOAP.V1_1:
        return "text/xml; charset=utf-8"
    return "application/soap+xml; charset=utf-8" + (f"; action={_quoted(action)}" if action else "")


def http_headers(soap: SOAP, action: str = "") -> dict[str, str]:
    """Return the headers of a request with that action: Content-Type, and for SOAP 1.1 SOAPAction, quoted."""
    headers = {"Content-Type": content_type(soap, action)}
    if soap is SOAP.V1_1:
        headers["SOAPAction"] = _quoted(action)
    return headers


_SOAP_1_2 = "application/soap+xml"
_ACTION = re.compile(r""";\s*action\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]+))""", re.IGNORECASE)


def names_other_action(action: str, soap_action: str, media: str) -> bool:
    """Whether the HTTP headers of a message name an action other than its wsa:Action.

    Args:
        soap_action: The header SOAPAction of SOAP 1.1; "" without one, or for SOAP 1.2.
        media: The Content-Type, which has the action in SOAP 1.2; in that of a message with attachments it does not
            count, because stacks write it there in various forms.
    """
    given = soap_action.strip().strip('"')
    if not given and media[:20].lower() == _SOAP_1_2 and (found := _ACTION.search(media)) is not None:
        given = re.sub(r"\\(.)", r"\1", found[1]) if found[1] is not None else found[2]
    # An empty SOAPAction says nothing (SOAP 1.1, 6.1.1).
    return given not in ("", action, _quoted(action)[1:-1])


XOP = "application/xop+xml"
"""The media type of the root part of a message in MTOM."""
MULTIPART = "multipart/related"
_MEDIA_TYPES = {"text/xml": SOAP.V1_1, "application/soap+xml": SOAP.V1_2}
_INNER = re.compile(r"""[;\s](?:start-info|type)\s*=\s*"?\s*(text/xml|application/soap\+xml)""", re.IGNORECASE)


def soap_of_content_type(value: str) -> SOAP | None:
    """Return the SOAP version of a Content-Type, None for other types.

    That of a message with attachments has it in ``start-info`` (MTOM) or ``type`` (SOAP with Attachments).
    """
    kind = value.partition(";")[0].strip().lower()
    if kind != MULTIPART:
        return _MEDIA_TYPES.get(kind)
    inner = _INNER.search(value)
    return _MEDIA_TYPES[inner[1].lower()] if inner is not None else None
