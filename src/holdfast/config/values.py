"""The kinds of values in a configuration file. Each kind describes its values in words, and converts them.

Owns the notation of the file: durations, sizes, URLs, patterns, files, secrets. Knows no key, and no bounds: those are
in ``holdfast.settings``.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from holdfast.core.policy import Assurance
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.endpoint.arguments import LONGEST_URL, check_public_url, check_queue_name, check_url
from holdfast.exceptions import ConfigurationError
from holdfast.http.urls import split_url
from holdfast.settings import bytes_of, seconds_of
from holdfast.store.address import check_location

MAX_SECRET = 64 * 1024
"""Maximum number of bytes of a file with a secret; a longer file is a mistake."""
_LARGEST_FILE = 1 << 20
"""Maximum number of a certificate file's bytes that are compared."""
_PATHS = "Relative paths start at the directory of this file."
NONE = "none"
"""A duration without end or an absent limit in a file, because TOML has no null."""

_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "a table"}
_SECRET_PARAMETER = re.compile(r"[?&;][^=&;]*(?:passw|secret|token)[^=&;]*=", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Unfit(Exception):
    """A value that is not of its kind."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Args:
        told: The accepted values, as the reference page describes them.
        read: Converts the value in the file; its second argument is the directory that relative paths start at. Raises
            Unfit.
    """

    told: str
    read: Callable[[Any, Path], Any]


class Secret:
    """A password or a token, which only :meth:`reveal` returns.

    Args:
        origin: Its source, which may be shown.
    """

    __slots__ = ("_value", "origin")

    def __init__(self, value: str, origin: str) -> None:
        self._value = value
        self.origin = origin

    def reveal(self) -> str:
        """Return the secret, for its use and never for display."""
        return self._value

    def __repr__(self) -> str:
        return f"<secret from {self.origin}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (other._value, other.origin) == (self._value, self.origin)

    def __hash__(self) -> int:
        return hash(self.origin)

    def __reduce__(self) -> Any:
        raise TypeError("a secret cannot be serialized")


def told_type(value: object) -> str:
    return _TYPES.get(type(value), "a date")


def told_value(value: object) -> str:
    """Return a value as errors show it: short, and for a list or table only its type."""
    if isinstance(value, list | dict):
        return told_type(value)
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unfit(value: object, kind: str, remedy: str) -> Unfit:
    return Unfit(f"{told_value(value)} is not {kind}", remedy)


def _whole(value: Any, _base: Path) -> int:
    if type(value) is not int:
        raise _unfit(value, "a whole number", "Write a whole number, without quotes.")
    return value


def _text(value: Any, _base: Path) -> str:
    if value == "":
        raise Unfit("the text is empty", "Remove the key, or write a value.")
    if not isinstance(value, str):
        is_compound = isinstance(value, list | dict)
        raise _unfit(value, "text", "Write a single value in quotes." if is_compound else "Write it in quotes.")
    return value


def _flag(value: Any, _base: Path) -> bool:
    if not isinstance(value, bool):
        raise _unfit(value, "true or false", "Write true or false, without quotes.")
    return value


def _duration(value: Any, _base: Path) -> float:
    if isinstance(value, str) and value.startswith("-") and seconds_of(value[1:]) is not None:
        raise Unfit(f"{told_value(value)} is negative", 'Write a duration without a sign, such as "1d".')
    seconds = seconds_of(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _unfit(value, "a duration", 'Write a duration with its unit, such as "500ms", "30s", "12h" or "7d".')
    return _number(seconds)


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number above all floats
        return math.inf if value > 0 else -math.inf


def _size(value: Any, _base: Path) -> int:
    size = bytes_of(value) if isinstance(value, str) else value
    if type(size) is not int:
        raise _unfit(value, "a size", 'Write a size with its unit, such as "64kB", "16MB" or "10GB".')
    return size


def _share(value: Any, _base: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unfit(value, "a number", "Use a share from 0 to 1, such as 0.1.")
    return _number(value)


def _given(value: str, check: Callable[[str], Any]) -> Any:
    """Return the result of a check of the endpoints; its error becomes one of the file."""
    try:
        return check(value)
    except ConfigurationError as error:
        raise Unfit(error.message, error.remedy) from None


def _assurance(value: Any, base: Path) -> Assurance:
    return _given(_text(value, base), Assurance.parse)  # type: ignore[no-any-return]


def _retention(value: Any, base: Path) -> RetentionPolicy:
    return _given(_text(value, base), RetentionPolicy.parse)  # type: ignore[no-any-return]


def read_url(value: Any, base: Path) -> str:
    """Return an http or https URL without a password."""
    text = _text(value, base)
    _no_password(text)
    if len(text) > LONGEST_URL:
        raise Unfit(
            f"this URL has {len(text):,} characters, but receivers accept at most {LONGEST_URL:,}", "Use a shorter URL."
        )
    try:
        check_url("this", text)
    except ConfigurationError:
        told = told_value(text) if "@" not in text else "this"  # half a URL may hold a password, too
        raise Unfit(f"{told} is not an http or https URL", 'Example: "https://partner.example/orders".') from None
    return text


def _public_url(value: Any, base: Path) -> str:
    text = _text(value, base)
    _given(text, partial(check_public_url, "this URL"))
    return text


def _no_password(text: str) -> None:
    """Check that a URL contains no secret. The error does not show the URL."""
    authority = text.partition("://")[2].partition("/")[0].partition("?")[0]
    if ":" in authority.rpartition("@")[0] or _SECRET_PARAMETER.search(text) is not None:
        raise Unfit(
            "this URL contains a password, which every reader of this file could see",
            "Remove it, and name the file or the environment variable that holds it in the password's own key.",
        )


def _proxy(value: Any, base: Path) -> str:
    text = read_url(value, base)
    if not text.startswith("http://"):
        raise _unfit(value, "an http URL of a proxy", 'Example: "http://proxy.example:3128".')
    if "@" in text:
        raise Unfit("this URL contains a user", "Set url, username and password_file as separate keys.")
    return text


def _store(value: Any, base: Path) -> str:
    text = _text(value, base)
    if text == ":memory:":
        return text
    if "://" in text:
        _no_password(text)
        return text
    try:
        check_location(text)
    except ConfigurationError as error:
        raise Unfit(error.message, error.remedy) from None
    return str(base / text)


def _path(value: Any, base: Path) -> str:
    return str(base / _text(value, base))


class FilePath(str):
    """The path of a file, equal to another path only if the files had the same content when they were read: a replaced
    certificate is a change of the configuration."""

    digest: bytes

    def __new__(cls, path: Path) -> Self:
        made = super().__new__(cls, path)
        with path.open("rb") as file:
            made.digest = hashlib.sha256(file.read(_LARGEST_FILE)).digest()
        return made

    def __eq__(self, other: object) -> bool:
        is_path = isinstance(other, str) and super().__eq__(other)  # for None, str would return NotImplemented: true
        return is_path and self.digest == getattr(other, "digest", self.digest)

    __hash__ = str.__hash__


def _file(value: Any, base: Path) -> str:
    path = base / _text(value, base)
    try:
        return FilePath(path)
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "no path"
        raise Unfit(
            f"the file {path} cannot be read: {told}",
            _PATHS,
        ) from None


def _unshown(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Unfit("the value is not text", "Write it in quotes.")
    return value


def _secret_file(value: Any, base: Path) -> Secret:
    """Return the secret in a file. Errors do not show the value, because it may be the secret itself."""
    path = base / _unshown(value)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET + 1)
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "no path"
        raise Unfit(f"the file with the secret cannot be read: {told}", _PATHS) from None
    try:
        text = content.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        text = ""
    if not text or len(content) > MAX_SECRET or not text.isprintable():
        raise Unfit("the file does not contain a secret", "The file must contain one line of text and nothing else.")
    return Secret(text, str(path))


def _secret_variable(value: Any, _base: Path) -> Secret:
    name = _unshown(value)
    text = os.environ.get(name, "")
    if not text or not text.isprintable():
        told = "is not set" if not text else "does not contain one line of text"
        raise Unfit(f"the environment variable {told}", "Set the variable in the environment of the broker.")
    return Secret(text, f"the environment variable {name}")


def _queue_name(value: Any, base: Path) -> str:
    name = _text(value, base)
    _given(name, check_queue_name)
    return _name(name, base)


def is_name(text: str) -> bool:
    """Whether a text is valid in a URL, a metric and a command line."""
    return _NAME.fullmatch(text) is not None


def _name(value: Any, base: Path) -> str:
    """Return a name that is valid in a URL, a metric and a command line."""
    name = _text(value, base)
    if not is_name(name):
        raise Unfit(
            f"{told_value(name)} is not a valid name",
            "Use up to 64 letters, digits, dots, hyphens and underscores, beginning with a letter or a digit.",
        )
    return name


def _namespace(value: Any, _base: Path) -> str:
    if not isinstance(value, str) or not value:
        raise _unfit(value, "a namespace", "Write the namespace in quotes.")
    return value


def _glob(value: Any, base: Path) -> str:
    text = _text(value, base)
    if len(text) > 2048 or text.count("*") > 8:
        raise Unfit("this pattern is too long", "Use at most 2,048 characters and 8 stars.")
    return text


def one_of(values: Iterable[str]) -> Kind:
    """One of a few words, or the member of an Enum with this value."""
    words = {str(one.value) if isinstance(one, Enum) else one: one for one in values}
    told = ", ".join(f'"{word}"' for word in words)

    def read(value: Any, base: Path) -> Any:
        if not isinstance(value, str) or value not in words:
            raise _unfit(value, "a valid value", f"Use one of {told}.")
        return words[value]

    return Kind(told, read)


TEXT = Kind("text", _text)
FLAG = Kind("true or false", _flag)
WHOLE = Kind("a whole number", _whole)
DURATION = Kind('a duration such as `"500ms"`, `"30s"` or `"7d"`; a number is seconds', _duration)
SIZE = Kind('a size such as `"64kB"` or `"10GB"`; a number is bytes', _size)
SHARE = Kind("a number from 0 to 1", _share)
ASSURANCE = Kind("words: `at-most-once`, `at-least-once` or `exactly-once`, with or without `in-order`", _assurance)
RETENTION = Kind('words such as `"7d"`, `"12h 10GB"`, `"none"`, `"7d readers 30d"`', _retention)
DIRECTORY = Kind("the path of a directory", _path)
FILE = Kind("the path of a file", _file)

Name = Annotated[str, Kind("a name", _name)]
NewFile = Annotated[str, Kind("the path of a file, created if it does not exist", _path)]
Folder = Annotated[str, Kind("a directory, created if it does not exist", _path)]
Glob = Annotated[str, Kind("text in which `*` matches any characters", _glob)]
Url = Annotated[str, Kind("an http or https URL", read_url)]
PublicUrl = Annotated[str, Kind("an http or https URL; `{path}` at its end is the path of a request", _public_url)]
ProxyUrl = Annotated[str, Kind("an http URL", _proxy)]
StorePlace = Annotated[str, Kind('a directory, `":memory:"`, or the URL of a database', _store)]
SecretFile = Annotated[Secret, Kind("the path of a file that contains only the secret", _secret_file)]
SecretVariable = Annotated[Secret, Kind("the name of an environment variable", _secret_variable)]
Namespace = Annotated[str, Kind("a namespace in quotes", _namespace)]
QueueName = Annotated[str, Kind("the name of a queue", _queue_name)]


def host_of(url: str) -> tuple[str, int]:
    parts = split_url(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
