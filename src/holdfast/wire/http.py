"""What HTTP says of a SOAP message: Content-Type and SOAPAction. Owns those header values; knows no XML."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.core.versions import SOAP

_ASCII = "".join(map(chr, range(0x20, 0x7F)))


def _quoted(value: str) -> str:
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "")
    # A header holds no more than Latin-1: an IRI goes as the URI that it maps to (RFC 3987, section 3.1).
    return f'"{value if value.isprintable() and value.isascii() else quote(value, safe=_ASCII, errors="replace")}"'


def content_type(soap: SOAP, action: str = "") -> str:
    """Gives the Content-Type; SOAP 1.2 says the action in it when there is one (RFC 3902)."""
    if soap is SOAP.V1_1:
        return "text/xml; charset=utf-8"
    return "application/soap+xml; charset=utf-8" + (f"; action={_quoted(action)}" if action else "")


def http_headers(soap: SOAP, action: str = "") -> dict[str, str]:
    """Gives the headers a request with that action needs: Content-Type, and for SOAP 1.1 SOAPAction, quoted."""
    headers = {"Content-Type": content_type(soap, action)}
    if soap is SOAP.V1_1:
        headers["SOAPAction"] = _quoted(action)
    return headers


_MEDIA_TYPES = {"text/xml": SOAP.V1_1, "application/soap+xml": SOAP.V1_2}


def soap_of_content_type(value: str) -> SOAP | None:
    """Says which SOAP version a Content-Type belongs to, None if it is no SOAP type."""
    return _MEDIA_TYPES.get(value.partition(";")[0].strip().lower())
