"""Parsing of option values, for reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from holdfast.exceptions import ConfigurationError
from holdfast.http.urls import is_url
from holdfast.settings import MOST_SECONDS, checked_token, suggestion

_OF_A_TABLE = "option."
"""Prefix that Spark adds to each option of CREATE TABLE, in addition to the option without it."""

_VIEW = "CREATE TEMPORARY VIEW orders USING wsrm OPTIONS (broker 'http://127.0.0.1:8081', queue 'orders')"


class WrongOptions(ConfigurationError):
    """One or more options that cannot be used.

    Attributes:
        errors: Option, as the user wrote it -> its error.
    """

    def __init__(self, errors: Mapping[str, ConfigurationError]) -> None:
        first, *others = errors.values()
        told = [f"{one.message} ({one.remedy})" if one.remedy else one.message for one in errors.values()]
        remedy = "Correct these options" if others else first.remedy
        super().__init__("; ".join(told) if others else first.message, remedy=remedy)
        self.errors = dict(errors)


def as_urls(name: str, text: str) -> str:
    """Parse the URL of a server, or those of some nodes of a cluster, separated by commas."""
    return ",".join(dict.fromkeys(_as_url(name, one.strip()) for one in text.split(",")))


def _as_url(name: str, text: str) -> str:
    """Parse the URL of a server; return it without a slash at its end."""
    parts = urlsplit(text) if is_url(text) else None
    if parts is None or parts.query or parts.fragment or parts.username:
        raise ConfigurationError(
            f"option {name}={text!r} is not the URL of a server",
            remedy="Use the address of an admin listener, for example http://127.0.0.1:8081",
        )
    return text.rstrip("/")


def as_token(name: str, text: str) -> str:
    """Parse a token that a header can carry."""
    return checked_token(text, f"option {name}")


def as_name(name: str, text: str) -> str:
    """Parse a text that is not empty, and may be a path."""
    if not text or text != text.strip() or "\0" in text:
        raise ConfigurationError(
            f"option {name}={text!r} is empty, or has spaces around it or a null character",
            remedy="Correct or remove it",
        )
    return text


def as_boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"option {name}={text!r} is neither true nor false", remedy="Write true or false")
    return text.lower() == "true"


def as_positive(name: str, text: str) -> int:
    """Parse a whole number above 0 that Spark can store."""
    if not (text.isascii() and text.isdigit() and len(text) < 20) or not 0 < int(text) < 2**63:
        raise ConfigurationError(
            f"option {name}={text[:40]!r} is not a positive whole number, or is too large",
            remedy="Write a number such as 10000",
        )
    return int(text)


def as_seconds(name: str, text: str) -> float:
    """Parse a number of seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_SECONDS:
        raise ConfigurationError(
            f"option {name}={text[:40]!r} is not a number of seconds up to {MOST_SECONDS:,.0f}",
            remedy="Write a number such as 2.5",
        )
    return value


def option(name: str, parse: Callable[[str, str], Any], alias: str = "") -> dict[str, Any]:
    """Return the metadata of a dataclass's field for an option with this name, and optionally an alias."""
    return {"name": name, "parse": parse, "alias": alias}


def parsed(cls: Any, options: Mapping[str, str], what: str, foreign: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Parse options as Spark passes them: texts with case-insensitive names.

    Args:
        cls: A dataclass with fields made by ``option``.
        options: The texts.
        what: ``source`` or ``sink``, for messages.
        foreign: Advice for options of other formats, by their names in lower case.

    Raises:
        WrongOptions: Unknown names, with the nearest valid ones; two names of one option; invalid values; a missing
            broker. It lists all of them.
        ConfigurationError: A table of Spark's catalog.
    """
    fields = [f for f in cls.__dataclass_fields__.values() if f.metadata]
    known = {name.lower(): f for f in fields for name in (f.metadata["name"], f.metadata["alias"]) if name}
    values: dict[str, Any] = {}
    if any(given.lower().startswith(_OF_A_TABLE) for given in options):
        raise ConfigurationError(
            "Spark reads a table of its catalog without the options of its creation, so a catalog table cannot use "
            "wsrm",
            remedy=_VIEW,
        )
    wrong: dict[str, ConfigurationError] = {}
    for given, text in options.items():
        one = known.get(given.lower())
        try:
            if one is None:
                raise _unknown(given, [f.metadata["name"] for f in fields], what, foreign or {})
            if one.name in values:
                names = f"{one.metadata['name']} and {one.metadata['alias']}"
                raise ConfigurationError(f"options {names} are the same", remedy="Remove one of them")
            values[one.name] = one.metadata["parse"](_written(one.metadata, given), str(text))
        except ConfigurationError as error:
            wrong[given] = error
    if "broker" not in map(str.lower, options):
        wrong["broker"] = ConfigurationError(
            f"the wsrm {what} has no option broker",
            remedy='add .option("broker", "http://127.0.0.1:8081"), the address of the server\'s admin listener'
            + ("" if options else f"; in SQL, {_VIEW}"),
        )
    if wrong:
        raise WrongOptions(wrong)
    return values


def _written(metadata: Mapping[str, Any], given: str) -> str:
    """Return the name as the user wrote it, because Spark makes it lower case."""
    names: tuple[str, ...] = (metadata["name"], metadata["alias"])
    return next(name for name in names if name.lower() == given.lower())


def _unknown(given: str, names: list[str], what: str, foreign: Mapping[str, str]) -> ConfigurationError:
    if advice := foreign.get(given.lower()):
        return ConfigurationError(f"the wsrm {what} has no option {given}", remedy=advice)
    remedy = suggestion(given, names, f"The options are {', '.join(sorted(names))}")
    return ConfigurationError(f"the wsrm {what} has no option {given}", remedy=remedy)
