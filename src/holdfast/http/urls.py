"""URLs as sent to a server: the origin to connect to, and the target to request."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from holdfast.exceptions import ConfigurationError

_NOT_SENT = re.compile(r"[^\x21-\x7e]")
_HOST = re.compile(r"[0-9a-z._-]+|[0-9a-f:.]+(%[0-9a-z._-]+)?")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_VALUE = re.compile(r"[\r\n\0]|[^\x00-\xff]")
PATH = "{path}"
"""Stands in a public URL for the path of a request."""
_REMEDY = "Write it as http://host:port/path or https://host/path."


class Origin(NamedTuple):
    """Scheme, host and port to connect to."""

    secure: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Return the value of the Host header, without the scheme's default port."""
        host = in_url(self.host)
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def in_url(host: str) -> str:
    """Return a host as URLs and the Host header name it: an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. Python's own function raises ValueError for half an IPv6 address, and its result for
    an invalid port.

    Raises:
        ConfigurationError: It is no URL.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"{url!r:.100} is not a URL: {error}", remedy=_REMEDY) from None
    return parts


def is_url(url: str) -> bool:
    try:
        parts = split_url(url)
    except ConfigurationError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0


def parse_url(url: str) -> tuple[Origin, str]:
    """Return the origin of an http or https URL, and its path and query.

    Raises:
        ConfigurationError: It is not such a URL.
    """
    parts = split_url(url)
    host, port = parts.hostname, parts.port
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"{url!r} is not an http or https URL", remedy=_REMEDY)
    try:
        ascii_host = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        ascii_host = ""
    if not _HOST.fullmatch(ascii_host):
        raise ConfigurationError(f"{url!r} names an invalid host", remedy=_REMEDY)
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # Anything else could end the request line (RFC 9112 section 3.2).
    target = _NOT_SENT.sub(_quoted, target)
    return Origin(secure, ascii_host, port or (443 if secure else 80)), target


def at_path(public_url: str, path: str) -> str:
    """Return the address at which clients reach what they requested here by a path, from a public URL."""
    return public_url.replace(PATH, path)


def own_address(public_url: str | None) -> str | None:
    """Return the one address at which clients reach an endpoint by its public URL; None: none is known.

    The sender of a request chooses its path. So an address that follows the path is no proof: it may be that of another
    service behind the same proxy.
    """
    return None if public_url is None or PATH in public_url else public_url


def check_field(name: str, value: str) -> None:
    """Refuse a header that would end its line early or is no header at all (RFC 9110 section 5).

    Raises:
        ConfigurationError: The name is no token, or the value holds a line break, a NUL or what Latin-1 has not.
    """
    if not _TOKEN.fullmatch(name) or _NO_VALUE.search(value):
        remedy = "A name consists of letters, digits and dashes; a value is one line of Latin-1."
        raise ConfigurationError(f"{name!r}: {value!r} is not an HTTP header", remedy=remedy)


def _quoted(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def is_loopback(host: str) -> bool:
    """Return whether an address is one that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
