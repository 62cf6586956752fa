"""Facts about a message from HTTP, TLS and processors, stored in its record: a handler may run after a restart.

Owns the selection of headers, their limit and their encoding. Most messages have no such facts, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast.endpoint.arguments import is_header_name
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import Request
from holdfast.http.tls import PeerCertificate
from holdfast.settings import brief_value

EVERY: Final = "*"
SECRET: Final = frozenset((b"authorization", b"proxy-authorization", b"cookie"))
"""Headers that ``*`` excludes, so that the store contains no passwords. A header named explicitly is kept."""
MAX_BYTES: Final = 8192
"""Maximum bytes of names and values stored for one message; headers beyond it are left out whole."""


class Facts(msgspec.Struct, array_like=True, frozen=True):
    """The facts of one message: HTTP headers, the sender's certificate, and its proven user."""

    http_headers: dict[str, str] = {}
    peer_certificate: PeerCertificate | None = None
    user: str = ""


class Keeper:
    """Select the transport facts of a request to store with its message.

    Args:
        names: HTTP headers, in any case; ``*`` for all except those that carry credentials.

    Raises:
        ConfigurationError: A name is not valid for a header.
    """

    def __init__(self, names: Iterable[str]) -> None:
        if isinstance(names, str | bytes):
            raise ConfigurationError(
                f"keep_http_headers={names!r} is a single name, not a list",
                remedy=f"Write keep_http_headers=[{names!r}].",
            )
        if not isinstance(names, Iterable):
            raise ConfigurationError(
                f"keep_http_headers cannot be {brief_value(names)}", remedy='Write keep_http_headers=["X-Request-ID"].'
            )
        given = list(names)
        for name in given:
            if name != EVERY and not is_header_name(name):
                raise ConfigurationError(
                    f"{name!r} is not the name of an HTTP header", remedy="Use a name such as X-Request-ID."
                )
        self._every = EVERY in given
        # In the order given: the limit on bytes leaves out the last ones.
        self._names = tuple(dict.fromkeys(name.lower().encode("ascii") for name in given if name != EVERY))
        self._keeps_headers = bool(given)

    def facts_of(self, request: Request) -> bytes:
        """Return the facts to store for a request, b"" without any."""
        certificate = request.certificate
        if certificate is None and not request.user and not self._keeps_headers:
            return b""
        headers = self._headers(request.headers)
        if not headers and certificate is None and not request.user:
            return b""
        return _encode(Facts(headers, certificate, request.user))

    def _headers(self, given: Mapping[bytes, bytes]) -> dict[str, str]:
        names = list(self._names)
        if self._every:
            names += [name for name in given if name not in SECRET and name not in self._names]
        kept: dict[str, str] = {}
        size = 0
        for name in names:
            value = given.get(name)
            if value is not None and size + len(name) + len(value) <= MAX_BYTES:
                size += len(name) + len(value)
                kept[name.decode("latin-1")] = value.decode("latin-1")
        return kept


def read_facts(data: bytes) -> Facts:
    """Return the facts that :meth:`Keeper.facts_of` encoded; none for other bytes, such as a newer version's."""
    try:
        facts: Facts = _decode(data)
        return facts
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Facts()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Facts).decode
