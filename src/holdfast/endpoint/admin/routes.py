"""Which request of the admin listener goes to which function: one table, which says of each what it takes and answers.

Requests are read by it (:meth:`Route.read`), and the description that ``GET /openapi.json`` gives is drawn from it
(``endpoint.admin.openapi``), so that neither can say what the other does not. Knows nothing of what is asked.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
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
UNKNOWN_PATH = f"See that both sides have the same version of Holdfast. {DESCRIPTION}"
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def number_in(text: str) -> int:
    """A number within a parameter, such as that of a partition: of 18 digits at most, whatever it is compared with or
    divided by.

    Raises:
        ValueError: It is none.
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
"""Takes what was asked, and what the path's names stand for as keyword arguments; gives what is to be answered."""

_NAME = re.compile(r"\{(\w+)(?::([^}]+))?\}")
_T = TypeVar("_T")


class Joined(Enum):
    """Whose a route is where several workers have one admin listener."""

    EACH = "all are asked, and their answers put together"
    ANY = "who gets it answers"
    PAGES = "all are asked, one after the other, for the rows of a page"
    WHOLE = "all are asked for all rows, and rows of the same name are one"
    SEQUENCE = "the worker that has the Sequence"
    LETTER = "the worker that has the dead letter"
    MESSAGE = "the worker that has the message"
    PARTITION = "the worker that has the partition"
    STREAM = "the worker that has the partition, or the file: what it sends is passed on as it comes"
    NEXT = "all are asked, until there is more; then for the oldest records among those of all"
    HEALTH = "all are asked, and must not be long about it"
    SINK = "the worker that has the sink, or is to have it"
    METRICS = "all are asked, and each sample says whose it is"


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table.

    Args:
        method: Of HTTP.
        path: Below the listener's root. ``{name}`` stands for one part of it, percent-decoded; ``{name:one|other}`` for
            one of these words.
        function: What does it.
        summary: What it does, in a line.
        answer: What is answered as JSON: a class whose fields it has, or a type made of such. A media type: the
            function answers by itself, with that. None: with nothing.
        query: What parameters it takes.
        body: What its content is like: a class whose fields its JSON has. A media type: the function reads it. None: it
            takes none.
        largest: Bytes of JSON that its content may have.
        errors: Which statuses it may be refused with, besides those that every request may.
        is_told: Whether the log has a line for it, with who asked. None: if it is no GET.
        joined: Whose it is among several workers.
        is_large: Whether its answer may have megabytes. The listener makes few such answers at a time.
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
        """Whether the log has a line for it."""
        return self.method != "GET" if self.is_told is None else self.is_told

    def read(self, exchange: Exchange, query: str) -> Asked:
        """What was asked.

        Raises:
            Refused: 400 for what is not as the table says, 413 for too much of it.
        """
        given = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        what = "the parameters"
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(self.query))
        remedy = f"It takes {known}." if known else "It takes none."
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
        """The row for a request, and what the names in its path stand for.

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
            raise Refused(405, f"{method} means nothing to {path[:200]}", f"{known}.", ((b"Allow", known.encode()),))
        raise Refused(404, f"there is no {path[:200]} here", UNKNOWN_PATH)


Parts = list[tuple[str, tuple[str, ...]]]
"""Of a path, each part as a name, "" for none, and the words it may be, none for any."""


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
    """Those of a path's parts that have a name."""
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
