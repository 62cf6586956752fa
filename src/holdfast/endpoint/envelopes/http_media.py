"""Which requests can be SOAP messages at all: POST, with one of SOAP's media types.

A web page may post to any address without a preflight request, but only as a form or as plain text (and without any
type): a browser sends OPTIONS first before it posts a SOAP media type. So the endpoint reads nothing else, and a web
page that a user opens cannot reach an endpoint behind the user's firewall.
"""

from __future__ import annotations

from typing import Final

from holdfast.endpoint.logs import log
from holdfast.http.exchange import Exchange

PACKAGE: Final = b"multipart/related"
TAKEN: Final = (b"text/xml", b"application/soap+xml", b"application/xml", PACKAGE)
"""SOAP 1.1's (its section 6), SOAP 1.2's (RFC 3902), what sends XML without knowing what it is, and that of messages
with attachments."""
_TAKEN: Final = frozenset(TAKEN)
_MOST_KNOWN: Final = 64
_MOST_BYTES: Final = 256
_known: set[bytes] = set()
"""Content-Types that were taken: peers repeat theirs octet for octet."""
_LIST: Final = b", ".join(TAKEN)


def refuse_unless_soap(exchange: Exchange) -> bool:
    """Answer what cannot be a SOAP message: 405 for another method than POST, 415 for another media type.

    Note on the exchange of a message with attachments that it is one.

    Returns:
        Whether it was answered.
    """
    request = exchange.request
    if request.method != "POST":
        text = b"WS-ReliableMessaging endpoint: POST only.\n"
        exchange.respond(405, text, b"text/plain", ((b"Allow", b"POST"),))
        return True
    given = request.headers.get(b"content-type", b"")
    if given in _known:
        return False
    media = given.partition(b";")[0].strip().lower()
    if media == PACKAGE:
        exchange.is_package = True
        return False
    if media in _TAKEN:
        if len(_known) < _MOST_KNOWN and len(given) <= _MOST_BYTES:
            _known.add(given)
        return False
    why = _why(media)
    log.info("request.refused", peer=request.peer, status=415, reason=why)
    exchange.respond(415, why.encode() + b"\n", b"text/plain", ((b"Accept", _LIST),))
    return True


def is_package(content_type: str) -> bool:
    """Whether that is the Content-Type of a message with attachments."""
    return content_type.partition(";")[0].strip().lower().encode("latin-1", "replace") == PACKAGE


def _why(media: bytes) -> str:
    takes = f"This endpoint accepts SOAP as {_LIST.decode()}, in UTF-8 or UTF-16"
    if not media:
        return f"The request has no Content-Type. {takes}."
    return f"The Content-Type is {media.decode('latin-1')[:100]}. {takes}."
