"""Validation of the arguments of both endpoints at construction: each error names a valid value."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.core.policy import Assurance
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.versions import Versions
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.http.client.proxies import Proxy
from holdfast.http.urls import PATH, is_url, parse_url
from holdfast.settings import brief_value, check_whole
from holdfast.wire import DEFAULT

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 section 5.6.2."""
_UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")
"""RFC 9110 section 5.5: what no header's value may hold."""

# Spaces and control characters would end the request line; lone surrogates cannot be encoded.
_NO_URL = re.compile("[\x00-\x20\x7f\ud800-\udfff]")

LONGEST_URL = DEFAULT.max_uri
"""Characters of a URL that goes into wsa:To, or another header: receivers refuse a longer one."""
LONGEST_ADDRESS = LONGEST_URL - 64
"""Characters of an address for replies: :func:`~holdfast.core.origin.with_secret` makes it longer."""

_OUR_QUEUES = ("dead-letters", "outbox", "replies")
"""First parts of the names of Holdfast's internal queues, which are stored next to a destination's own queues."""


def to_assurance(given: str | Assurance) -> Assurance:
    """Convert words, or an Assurance, to an Assurance.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(given, Assurance):
        return given
    return Assurance.parse(given if isinstance(given, str) else brief_value(given))


def to_retention(given: str | RetentionPolicy | None) -> RetentionPolicy:
    """Convert words, or a RetentionPolicy, to a RetentionPolicy; None means the default.

    Raises:
        ConfigurationError: it is neither.
    """
    if given is None or isinstance(given, RetentionPolicy):
        return given or RetentionPolicy()
    return RetentionPolicy.parse(given if isinstance(given, str) else brief_value(given))


def to_journal(given: bool | JournalPolicy) -> JournalPolicy | None:
    """Return the journal policy for an argument; None for no journal.

    Raises:
        ConfigurationError: the argument is neither a policy nor a bool.
    """
    if isinstance(given, bool):
        return JournalPolicy() if given else None
    check_class("journal", given, JournalPolicy)
    return given


def check_queue_name(name: object) -> None:
    """Check that the name of a queue is free to use.

    Raises:
        ConfigurationError: the name is empty, not text, or reserved for Holdfast's internal queues.
    """
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{name!r} is not a valid name of a queue", remedy='Use a name such as "orders".')
    if name.partition("/")[0] in _OUR_QUEUES:
        raise ConfigurationError(
            f"{name!r} is not a valid name of a queue: Holdfast uses it", remedy='Use another name, such as "orders".'
        )


def check_headers(headers: Mapping[str, str] | None) -> None:
    """Check that HTTP headers can be sent.

    Raises:
        ConfigurationError: a name is not valid, or a value contains characters that would end its line. The error
            omits the values, because they may be secret.
    """
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise ConfigurationError(
            "headers must be a mapping from names to values", remedy="Example: headers={'Authorization': 'Bearer …'}."
        )
    for name, value in headers.items():
        if not isinstance(name, str) or _TOKEN.fullmatch(name) is None:
            raise ConfigurationError(
                f"{name!r} is not the name of an HTTP header", remedy="Use a name such as 'Authorization'."
            )
        if not isinstance(value, str) or _UNFIT.search(value) is not None:
            raise ConfigurationError(
                f"the value of the HTTP header {name} cannot be sent",
                remedy="Use one line of Latin-1 text without control characters.",
            )


def check_url(name: str, url: object, longest: int = LONGEST_URL) -> None:
    """Check a URL to send to.

    Args:
        longest: Characters that receivers accept.

    Raises:
        ConfigurationError: It is not an http or https URL, or longer.
    """
    if not isinstance(url, str) or _NO_URL.search(url) is not None or not is_url(url):
        raise ConfigurationError(
            f"{name}: {brief_value(url)} is not an http or https URL",
            remedy="Give the destination's URL, such as http://localhost:8080/",
        )
    assert isinstance(url, str)
    check_length(name, url, longest)


def check_public_url(name: str, url: object) -> None:
    """Check the URL at which clients reach a destination. Its path may end with :data:`~holdfast.http.urls.PATH`.

    Raises:
        ConfigurationError: It is not an http or https URL, or has more than scheme, host, port and path.
    """
    remedy = f"Write it as https://host/path or https://host:port/path; {PATH} at its end is the path of the request."
    wrong, before = f"{name} {brief_value(url)}", url.removesuffix(PATH) if isinstance(url, str) else ""
    if isinstance(url, str) and "@" in url.partition("://")[2].partition("/")[0]:
        raise ConfigurationError(f"{name} contains a user, which every client could see", remedy=remedy)
    if not isinstance(url, str) or _NO_URL.search(url) is not None or not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{wrong} is not an http or https URL", remedy=remedy)
    if not url.isascii() or set('"<>') & set(url):
        raise ConfigurationError(f"{wrong} has characters that must be written as %XX", remedy=remedy)
    if set("?#") & set(url):
        raise ConfigurationError(f"{wrong} has a query or a fragment", remedy=remedy)
    if set("{}") & set(before):
        raise ConfigurationError(f"{wrong} has braces other than {PATH} at its end", remedy=remedy)
    if not is_url(before) or (before != url and before.endswith(":")):
        raise ConfigurationError(f"{wrong} has no host, or no valid port", remedy=remedy)
    if before != url and before.endswith("/"):
        raise ConfigurationError(f"{wrong} has a slash before {PATH}, which begins with one", remedy=remedy)
    parse_url(before)
    check_length(name, url)


def check_length(name: str, url: str, longest: int = LONGEST_URL) -> None:
    """Reject a URL that receivers would refuse for its length.

    Raises:
        ConfigurationError: The URL is longer.
    """
    if len(url) > longest:
        raise ConfigurationError(
            f"{name} has {len(url):,} characters, but receivers accept at most {longest:,}", remedy="Use a shorter URL."
        )


def check_proxy(proxy: object) -> None:
    """Check that a value is the URL of an HTTP proxy, or None.

    Raises:
        ConfigurationError: it is not.
    """
    check_class("proxy", proxy, str)
    if isinstance(proxy, str):
        Proxy.parse(proxy)


def is_header_name(name: object) -> bool:
    return isinstance(name, str) and _TOKEN.fullmatch(name) is not None


def check_versions(versions: object) -> None:
    """Check that a value is one :class:`Versions` or several.

    Raises:
        ConfigurationError: they are not.
    """
    several = [versions] if isinstance(versions, Versions) else versions
    if several is None:
        return
    if not isinstance(several, list | tuple) or not several or not all(isinstance(one, Versions) for one in several):
        raise ConfigurationError(
            f"{brief_value(versions)} is not a valid value for versions",
            remedy='Give holdfast.Versions(rm="1.0", addressing="2005/08", soap="1.2"), a list of them, or None.',
        )


def check_listener(listen: object, address: str) -> None:
    """Check the listener of a source, and the address that its destination reaches it by.

    Raises:
        ConfigurationError: It is no host and port, its address is no URL, or is given without it.
    """
    if listen is None:
        if address:
            raise ConfigurationError(
                f"address={address!r} is the URL of a listener, but there is no listener",
                remedy="Give its address as well: listen=('0.0.0.0', 8090). Or omit both.",
            )
        return
    if not isinstance(listen, tuple | list) or len(listen) != 2 or not isinstance(listen[0], str):
        raise ConfigurationError(
            f"listen={brief_value(listen)} is not a host and a port", remedy="Example: listen=('0.0.0.0', 8090)."
        )
    check_whole("the port of listen", listen[1], 0, 65535)
    if address:
        check_url("address", address, LONGEST_ADDRESS)


def check_class(name: str, value: object, kind: type | tuple[type, ...], *, optional: bool = True) -> None:
    """Check the class of an argument.

    Raises:
        ConfigurationError: The value has another class.
    """
    if not (value is None and optional) and not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise ConfigurationError(
            f"{name} cannot be {brief_value(value)}", remedy=f"It may be {' or '.join(one.__name__ for one in kinds)}."
        )
