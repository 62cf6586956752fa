"""How the texts of options are looked at, of reads and of writes. Knows by name only those of the way to a server."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from holdfast.endpoint.admin_client import Access
from holdfast.endpoint.admin_guard import checked_token
from holdfast.exceptions import ConfigurationError


def as_url(name: str, text: str) -> str:
    """The URL of a server, without a slash at its end."""
    parts = urlsplit(text)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.username:
        raise ConfigurationError(
            f"option {name}={text!r} is not the URL of a server",
            remedy="give the address of its admin listener, for example http://127.0.0.1:8081",
        )
    return text.rstrip("/")


def as_token(name: str, text: str) -> str:
    """A token that a header can carry."""
    return checked_token(text, f"option {name}")


def as_name(name: str, text: str) -> str:
    """A text that is not empty."""
    if not text or text != text.strip():
        raise ConfigurationError(f"option {name}={text!r} is empty or has spaces around it")
    return text


def as_boolean(name: str, text: str) -> bool:
    """``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"option {name}={text!r} is neither true nor false")
    return text.lower() == "true"


def as_positive(name: str, text: str) -> int:
    """A whole number above 0."""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ConfigurationError(f"option {name}={text!r} is not a whole number above 0")
    return int(text)


def as_seconds(name: str, text: str) -> float:
    """A number of seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigurationError(f"option {name}={text!r} is not a number of seconds")
    return value


def option(name: str, parse: Callable[[str, str], Any]) -> dict[str, Any]:
    """The metadata of a dataclass's field that is an option of this name."""
    return {"name": name, "parse": parse}


def parsed(cls: Any, options: Mapping[str, str], what: str) -> dict[str, Any]:
    """The values of options as Spark hands them over: texts, under names whose case does not count.

    Args:
        cls: A dataclass whose fields were made with ``option``.
        what: ``source`` or ``sink``, for messages.

    Raises:
        ConfigurationError: A name nobody knows, with the nearest right one; a value that cannot be used; no broker.
    """
    known = {f.metadata["name"].lower(): f for f in cls.__dataclass_fields__.values() if f.metadata}
    values: dict[str, Any] = {}
    for given, text in options.items():
        one = known.get(given.lower())
        if one is None:
            raise _unknown(given, [f.metadata["name"] for f in known.values()], what)
        values[one.name] = one.metadata["parse"](one.metadata["name"], str(text))
    if "broker" not in values:
        raise ConfigurationError(
            f"the wsrm {what} has no option broker",
            remedy='add .option("broker", "http://127.0.0.1:8081"), the address of the server\'s admin listener',
        )
    return values


def access_of(values: Mapping[str, Any]) -> Access:
    """What the files hold, read now."""
    if values.get("token") and values.get("token_file"):
        raise ConfigurationError("options token and tokenFile exclude each other", remedy="leave one of them out")
    access = Access.of_files(
        token_file=values.get("token_file"),
        ca=values.get("ca_file"),
        certificate=values.get("certificate_file"),
        key=values.get("key_file"),
        proxy=values.get("proxy"),
    )
    return replace(access, token=values["token"]) if values.get("token") else access


def _unknown(given: str, names: list[str], what: str) -> ConfigurationError:
    nearest = difflib.get_close_matches(given.lower(), [name.lower() for name in names], n=1, cutoff=0.6)
    right = next((name for name in names if nearest and name.lower() == nearest[0]), None)
    remedy = f"did you mean {right}?" if right else f"the options are {', '.join(sorted(names))}"
    return ConfigurationError(f"the wsrm {what} has no option {given}", remedy=remedy)
