"""Whether an address is at or below one that the operator allowed, whatever way it is written.

Two addresses are compared as what the HTTP client makes of them: scheme, host, port, and the path's parts, decoded.
What readers of URLs disagree about is not compared but refused: userinfo, backslashes, dot segments in any disguise.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from holdfast.exceptions import ConfigurationError
from holdfast.http.urls import Origin, parse_url, split_url
from holdfast.settings import brief_value

_UNFIT = re.compile(r"[\x00-\x20\x7f\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_NUMERIC = re.compile(r"(0x)?[0-9a-f]+(\.(0x)?[0-9a-f]+){0,3}")
_MOST_DECODINGS = 4
"""A path that is still encoded after this many decodings is rejected."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A parsed address.

    Args:
        origin: Scheme, normalized host, and port.
        has_port: Whether the address contains the port.
        path: The decoded parts of its path.
    """

    origin: Origin
    has_port: bool
    path: tuple[str, ...]


class AllowList:
    """The addresses at and below which may be sent to.

    Args:
        entries: http and https URLs; one without a port stands for every port.

    Raises:
        ConfigurationError: an entry is no such URL, or has parts that do not count.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        if isinstance(entries, str | bytes) or not isinstance(entries, Iterable):
            raise ConfigurationError(
                f"allow_addresses={brief_value(entries)} is not a list of addresses",
                remedy=f"Write allow_addresses=[{entries!r}].",
            )
        self._entries = [_entry(text) for text in entries]

    def allows(self, address: str) -> bool:
        """Whether it is at or below one of the entries."""
        if not self._entries:
            return False
        try:
            asked = _place(address)
        except (ConfigurationError, ValueError):
            return False
        return any(_is_below(asked, entry) for entry in self._entries)


def _is_below(asked: _Place, entry: _Place) -> bool:
    theirs, ours = asked.origin, entry.origin
    same_place = (theirs.secure, theirs.host) == (ours.secure, ours.host)
    same_port = not entry.has_port or theirs.port == ours.port
    return same_place and same_port and asked.path[: len(entry.path)] == entry.path


def _entry(text: object) -> _Place:
    remedy = "Write it as http://host/path or https://host:port/path."
    if not isinstance(text, str):
        raise ConfigurationError(
            f"allow_addresses contains {brief_value(text)}, which is not an address", remedy=remedy
        )
    try:
        place = _place(text)
    except (ConfigurationError, ValueError) as error:
        why = error.message if isinstance(error, ConfigurationError) else error
        raise ConfigurationError(f"allow_addresses must not contain {text!r}: {why}", remedy=remedy) from None
    if split_url(text).query or split_url(text).fragment:
        raise ConfigurationError(
            f"allow_addresses must not contain {text!r}: only scheme, host, port and path are allowed", remedy=remedy
        )
    # A trailing slash adds no path segment: the entry allows its own path and every path below it.
    return _Place(place.origin, place.has_port, place.path[:-1] if place.path[-1:] == ("",) else place.path)


def _place(address: str) -> _Place:
    """Parse an address.

    Raises:
        ConfigurationError: it is not a valid URL.
        ValueError: other programs may parse it differently.
    """
    if _UNFIT.search(address):
        raise ValueError("it contains blanks, control characters or backslashes")
    origin, target = parse_url(address)
    parts = split_url(address)
    if "@" in parts.netloc or "%" in parts.netloc:
        raise ValueError("it names a user, or its host is encoded")
    path = target.partition("?")[0].removeprefix("/")
    names = tuple(_decoded(part) for part in path.split("/")) if path else ()
    return _Place(Origin(origin.secure, one_form(origin.host), origin.port), parts.port is not None, names)


def _decoded(part: str) -> str:
    """A part of a path, decoded once.

    Raises:
        ValueError: it is not UTF-8, or becomes a way out of the path, at once or when it is decoded again.
    """
    try:
        once = again = unquote_to_bytes(part).decode("utf-8")
        for _ in range(_MOST_DECODINGS):
            # Some servers decode twice, take backslashes for slashes, or cut parameters off before they look at dots.
            if _CONTROL.search(again) or "/" in again or again.partition(";")[0] in (".", ".."):
                raise ValueError(f"the part {part!r} of its path leads elsewhere")
            before, again = again, unquote_to_bytes(again).decode("utf-8")
            if again == before:
                return once
    except UnicodeError:
        pass  # told below
    raise ValueError(f"the part {part!r} of its path is not plain UTF-8, percent-encoded once")


def one_form(host: str) -> str:
    """Normalize a host: remove the final dot of a name, and read numbers as the system does.

    Raises:
        ValueError: it is no IPv6 address, though it has colons.
    """
    if ":" in host:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is not a valid host") from None
        # The same host, which a list of IPv4 addresses must recognize.
        return str(address.ipv4_mapped or address)
    if _NUMERIC.fullmatch(host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))  # decimal, octal and hexadecimal, whole or in parts
        except OSError:
            pass  # a name such as "face"
    return host.removesuffix(".")
