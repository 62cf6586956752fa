"""The routing table of the admin listener: each request, its function, its parameters and its response.

The listener reads requests by this table (:meth:`Route.read`), and ``endpoint.admin.openapi`` generates the description
at ``GET /openapi.json`` from it, so that the two cannot disagree. Knows nothing about what the functions do.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec

from holdfast.exceptions import HoldfastError
from holdfast.http.exchange import Exchange

LARGEST_BODY = 1 << 20
"""Bytes of a request's content; none that means anything is larger."""
LARGEST_NUMBER = 2**53
"""Offsets and numbers are asked for up to this: JSON's own numbers are exact so far."""
DESCRIPTION = "The listener describes its API at /openapi.json."
UNKNOWN_PATH = f"Check that both sides have the same version of Holdfast. {DESCRIPTION}"
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def number_in(text: str) -> int:
    """Return a number within a parameter, such as a partition's: of at most 18 digits, safe to compare or divide.

    Raises:
        ValueError: The text is not such a number.
    """
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a number of up to 18 digits")
    return int(text)


class Refused(HoldfastError):
    """A request the admin listener does not do as asked.

    Args:
        status: The HTTP status.
        message: Why.
        remedy: What to do.
        headers: Further headers of the answer.
        detail: Further fields of its JSON.
    """

    def __init__(
        self,
        status: int,
        message: str,
        remedy: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        detail: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.headers = headers
        self.detail = detail


class Shape(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a request's parameters or content, or an answer, are like."""


class Nothing(Shape):
    """No parameters."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Args:
        exchange: To be answered.
        query: The parameters behind the path: of the class that its route names.
        body: The content: of the class that its route names; its bytes, if the route names a media type; None if it
            takes none.
    """

    exchange: Exchange
    query: Any
    body: Any


Function = Callable[..., Awaitable[object]]
"""Takes the request, and the path's names as keyword arguments; returns the response."""

_NAME = re.compile(r"\{(\w+)(?::([^}]+))?\}")
_F = TypeVar("_F", bound=Function)
_T = TypeVar("_T")


class Joined(Enum):
    """Which worker handles a route if several workers share one admin listener."""

    EACH = "all workers answer, and the answers are merged"
    WILLING = "all workers answer; one that refuses shows what it has if another one makes the change"
    ANY = "the worker that gets the request answers"
    PAGES = "the workers answer one after the other, to fill a page"
    WHOLE = "all workers answer with all rows, and rows with the same name are merged"
    SEQUENCE = "the worker with the Sequence answers"
    LETTER = "the worker with the dead letter answers"
    MESSAGE = "the worker with the message answers"
    PARTITION = "the worker with the partition answers"
    STREAM = "the worker with the partition or file answers, and its stream is forwarded"
    NEXT = "all workers wait until there are more records; then they return the oldest of all"
    HEALTH = "all workers answer within a short time"
    SINK = "the worker that has the sink, or will create it, answers"
    METRICS = "all workers answer, and each sample names its worker"
    NODES = "one worker of each node answers for its node"


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table.

    Args:
        method: The HTTP method.
        path: Below the listener's root. ``{name}`` stands for one part of it, percent-decoded; ``{name:one|other}`` for
            one of these words.
        function: The function that handles the request.
        summary: What it does, in a line.
        answer: The JSON response: a class with its fields, or a type made of such classes. A media type: the function
            writes the response itself, with that type. None: the response is empty.
        query: The parameters of the request.
        body: The body of the request: a class with the fields of its JSON. A media type: the function reads it. None:
            the request has no body.
        largest: Maximum bytes of a JSON body.
        errors: Error statuses of this route, in addition to those of every request.
        is_told: Whether the log records the request, with the client. None: if it is not a GET.
        joined: Which of several workers handles it.
        is_large: Whether its response may have megabytes. The listener makes few such responses at a time.
    """

    method: str
    path: str
    function: Function
    summary: str
    answer: Any
    query: type[Shape] = Nothing
    body: type[Shape] | str | None = None
    largest: int = LARGEST_BODY
    errors: tuple[int, ...] = ()
    is_told: bool | None = None
    joined: Joined = Joined.EACH
    is_large: bool = False

    @property
    def leaves_a_line(self) -> bool:
        return self.method != "GET" if self.is_told is None else self.is_told

    def read(self, exchange: Exchange, query: str) -> Asked:
        """Return the parsed request.

        Raises:
            Refused: 400 if the request does not match the table, 413 if it is too large.
        """
        given = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        what = "the parameters"
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(self.query))
        remedy = f"It takes {known}." if known else "It takes no parameters."
        asked = _checked(lambda: msgspec.convert(given, self.query, strict=False), what, remedy)
        content = exchange.request.body
        if self.body is None or isinstance(self.body, str):
            return Asked(exchange, asked, None if self.body is None else content)
        if len(content) > self.largest:
            raise Refused(413, f"{len(content):,} bytes are too many", f"At most {self.largest:,}.")
        body = self.body
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(body))
        decoded = _checked(
            lambda: msgspec.json.decode(content or b"{}", type=body), "the content", f"A JSON object of {fields}."
        )
        return Asked(exchange, asked, decoded)


_ROW = "_route"
"""The attribute of a method that has its row of the table."""


def route(method: str, path: str, answer: Any, query: type[Shape] = Nothing, **how: Any) -> Callable[[_F], _F]:
    """Return the decorator of a method that handles a route. The first paragraph of its docstring is the summary.

    Args:
        method, path, answer, query, how: As for :class:`Route`.
    """

    def decorate(function: _F) -> _F:
        summary = cleandoc(function.__doc__ or "").partition("\n\n")[0].removesuffix(".")
        setattr(function, _ROW, Route(method, path, function, summary, answer, query, **how))
        return function

    return decorate


def routes_of(*holders: object) -> Iterator[Route]:
    """Yield the rows of the decorated methods of objects, in their order."""
    for holder in holders:
        for name, function in vars(type(holder)).items():
            if (row := getattr(function, _ROW, None)) is not None:
                yield replace(row, function=getattr(holder, name))


def _checked(read: Callable[[], _T], what: str, remedy: str) -> _T:
    try:
        return read()
    except (msgspec.DecodeError, ValueError) as error:
        raise Refused(400, f"{what} cannot be read: {error}", f"{remedy} {DESCRIPTION}") from None
    except RecursionError:
        raise Refused(400, f"{what} cannot be read: nested too deeply", remedy) from None


class Routes:
    """The table.

    Args:
        table: Of two rows that match a request the first counts.
    """

    def __init__(self, table: Iterable[Route]) -> None:
        self.table = tuple(table)
        self._parts = [(_parts(route.path), route) for route in self.table]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route of a request, and the values of the names in its path.

        HEAD finds the row of GET (RFC 9110 section 9.3.2); the exchange leaves the content out.

        Raises:
            Refused: 404 where nothing is, 405 where there is something that does not know the method.
        """
        method = "GET" if method == "HEAD" else method
        asked = [unquote(part) for part in path.strip("/").split("/")]
        allowed: set[str] = set()
        for parts, route in self._parts:
            names = _match(parts, asked)
            if names is not None:
                if method == route.method:
                    return route, names
                allowed.add(route.method)
        if allowed:
            known = ", ".join(sorted(allowed))
            raise Refused(405, f"{path[:200]} does not support {method}", f"{known}.", ((b"Allow", known.encode()),))
        raise Refused(404, f"the path {path[:200]} does not exist", UNKNOWN_PATH)


Parts = list[tuple[str, tuple[str, ...]]]
"""Parts of a path: the name of each, "" for none, and its permitted words, none for any."""


def _parts(path: str) -> Parts:
    parts: Parts = []
    for part in path.split("/"):
        found = _NAME.fullmatch(part)
        if found is None:
            parts.append(("", (part,)))
        else:
            parts.append((found[1], tuple(found[2].split("|")) if found[2] else ()))
    return parts


def named_parts(path: str) -> Parts:
    return [(name, words) for name, words in _parts(path) if name]


def plain_path(path: str) -> str:
    """The path with its names only: ``sequences/{identifier}/{how}``."""
    return _NAME.sub(r"{\1}", path)


def _match(parts: Parts, asked: list[str]) -> dict[str, str] | None:
    if len(parts) != len(asked):
        return None
    if any(words and one not in words for (_, words), one in zip(parts, asked, strict=True)):
        return None
    return {name: one for (name, _), one in zip(parts, asked, strict=True) if name}
