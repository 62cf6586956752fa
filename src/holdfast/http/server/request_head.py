"""What a request's head must say before its content is read. Knows no connection."""

from __future__ import annotations

from holdfast.http.server.refusals import (
    BODY_TOO_LARGE,
    NO_HOST,
    UNKNOWN_CODING,
    UNKNOWN_EXPECTATION,
    UNKNOWN_TRANSFER,
    Refusal,
)


def refusal_of(headers: dict[bytes, bytes], *, is_old: bool, max_body: int) -> Refusal | None:
    """Return why a request with these headers is refused, None if it is not."""
    # RFC 9112 section 3.2
    if b"host" not in headers and not is_old:
        return NO_HOST
    if b"content-length" in headers and int(headers[b"content-length"]) > max_body:
        return BODY_TOO_LARGE
    # RFC 9112 section 6.1: another coding would leave the end of the content unknown.
    if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
        return UNKNOWN_TRANSFER
    if b"content-encoding" in headers and headers[b"content-encoding"].lower() not in (b"", b"identity"):
        return UNKNOWN_CODING
    if b"expect" in headers and not is_old and headers[b"expect"].lower() != b"100-continue":
        return UNKNOWN_EXPECTATION
    return None


def origin_form(target: bytes) -> bytes:
    """Return an absolute-form target without its origin: a server must accept it (RFC 9112 section 3.2.2)."""
    _, scheme_end, rest = target.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if scheme_end else target
