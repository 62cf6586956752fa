"""HTTP around SOAP messages: which requests can be one at all, and answers as streams.

A SOAP message comes by POST, with one of SOAP's media types.

A web page may post to any address without a preflight request, but only as a form or as plain text (and without any
type): a browser sends OPTIONS first before it posts a SOAP media type. So the endpoint reads nothing else, and a web
page that a user opens cannot reach an endpoint behind the user's firewall.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import math
import re
from typing import Final

from holdfast.core.versions import SOAP
from holdfast.endpoint.failures import brief, reason_of
from holdfast.endpoint.logs import log
from holdfast.exceptions import MessageFlowError, ProcessorError
from holdfast.http.exchange import Exchange, Headers
from holdfast.http.outcome import Streamed
from holdfast.wire import content_type
from holdfast.wire.text import MARKS

PACKAGE: Final = b"multipart/related"
TAKEN: Final = (b"text/xml", b"application/soap+xml", b"application/xml", PACKAGE)
"""SOAP 1.1's (its section 6), SOAP 1.2's (RFC 3902), what sends XML without knowing what it is, and that of messages
with attachments."""
UNWRITABLE: Final = "answer.unwritable"
"""Incident: an answer of which the end is missing, or that a bug keeps from being written."""
CONTENT_TYPES: Final = {soap: content_type(soap).encode() for soap in SOAP}
HAS_ENDED: Final = b"The endpoint has ended; nothing is accepted.\n"
DEFERRED: Final = b"The message cannot be taken now; send it again.\n"
_TAKEN: Final = frozenset(TAKEN)
_MOST_KNOWN: Final = 64
_MOST_BYTES: Final = 256
_known: dict[bytes, bytes] = {}
"""Content-Types that were taken, and their charset: peers repeat theirs octet for octet."""
_CHARSET: Final = re.compile(rb""";\s*charset\s*=\s*"?([^\s";]+)""", re.IGNORECASE)
_ENCODING: Final = re.compile(rb"""<\?xml[^>]*?\sencoding\s*=\s*["']([^"']+)""")
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
    charset = _known.get(given)
    if charset is not None:
        return bool(charset) and _refuse_charset(exchange, charset)
    media = given.partition(b";")[0].strip().lower()
    if media == PACKAGE:
        exchange.is_package = True
        return False
    if media in _TAKEN:
        found = _CHARSET.search(given)
        charset = b"" if found is None else found[1]
        # Any peer may send new ones.
        if len(_known) < _MOST_KNOWN and len(given) <= _MOST_BYTES:
            _known[given] = charset
        return bool(charset) and _refuse_charset(exchange, charset)
    _refuse(exchange, _why(media))
    return True


def _refuse(exchange: Exchange, why: str) -> None:
    log.info("request.refused", peer=exchange.request.peer, status=415, reason=why)
    exchange.respond(415, why.encode() + b"\n", b"text/plain", ((b"Accept", _LIST),))


def _refuse_charset(exchange: Exchange, charset: bytes) -> bool:
    """Answer 415 if the message itself, by its byte order mark or XML declaration, states another encoding than the
    Content-Type (RFC 7303, 3). Without either, it is read as UTF-8, whatever the charset."""
    start = exchange.request.body[:400]
    # Nearly all: neither a declaration nor UTF-16, so nothing else is stated.
    if start[:1] == b"<" and start[:2] not in (b"<?", b"<\0"):
        return False
    stated = next((name for mark, name in MARKS.items() if start.startswith(mark)), "")
    if not stated and (found := _ENCODING.match(start)) is not None:
        stated = found[1].decode("latin-1")
    told = charset.decode("latin-1")
    if not stated or _family(stated) == _family(told):
        return False
    _refuse(exchange, f"The charset of the Content-Type is {told[:40]}, but the message is in {stated[:40]}. Use one.")
    return True


def _family(name: str) -> str:
    """Return the usual name of an encoding; ASCII is UTF-8, and the byte order of UTF-16 does not count."""
    try:
        usual = codecs.lookup(name).name
    except LookupError:
        return name.lower()
    return {"ascii": "utf-8", "utf-16-le": "utf-16", "utf-16-be": "utf-16"}.get(usual, usual)


def is_package(content_type: str) -> bool:
    """Whether that is the Content-Type of a message with attachments."""
    return content_type.partition(";")[0].strip().lower().encode("latin-1", "replace") == PACKAGE


def _why(media: bytes) -> str:
    takes = f"This endpoint accepts SOAP as {_LIST.decode()}, in UTF-8 or UTF-16"
    if not media:
        return f"The request has no Content-Type. {takes}."
    return f"The Content-Type is {media.decode('latin-1')[:100]}. {takes}."


def tell_of_handshake(reason: str, peer: str | None) -> None:
    """Log that a TLS client was refused."""
    log.info("connection.refused", peer=peer, reason=reason)


async def stream_answer(
    exchange: Exchange,
    status: int,
    content: Streamed,
    media: bytes,
    headers: Headers = (),
) -> None:
    """Answer an exchange with a content that is too large for memory, as fast as the peer reads it."""
    pieces, loop = iter(content), asyncio.get_running_loop()
    exchange.start(status, media, headers)
    try:
        while not exchange.closed and (piece := await loop.run_in_executor(None, next, pieces, b"")):
            if not exchange.write(piece):
                await exchange.drain()
    except Exception as error:
        log.error(UNWRITABLE, peer=exchange.request.peer, error=brief(error), exception=reason_of(error))
    exchange.finish()  # without its last boundary, a content that broke off is not a message


def put_off(exchange: Exchange, why: bytes, error: ProcessorError | None = None) -> None:
    """Respond that the message was not processed, and that the sender may retry.

    A sender that receives a Retry-After stops sending everything until then, so the response has one only if a
    processor sets it: one message that meets a bug must not stop the others.
    """
    wait = math.ceil(error.retry_after) if isinstance(error, MessageFlowError) else 0
    exchange.respond(503, why, b"text/plain", ((b"Retry-After", b"%d" % wait),) if wait else ())


def put_off_after_bug(exchange: Exchange, error: Exception) -> None:
    """Respond after an unexpected error in what follows from a message that a thread has read. The HTTP server does so
    for one that the event loop reads."""
    log.error("request.failed", target=exchange.request.target, peer=exchange.request.peer, exc_info=error)
    with contextlib.suppress(RuntimeError):  # the end of the endpoint has answered it
        put_off(exchange, DEFERRED)


def status_of_sender(soap: SOAP) -> int:
    """SOAP 1.2 part 2, 7.5.2.2: 400 for Sender; SOAP 1.1, 6.2: 500 for every fault."""
    return 400 if soap is SOAP.V1_2 else 500
