"""Which request of the admin listener goes to which function: a table of methods and paths. Knows nothing of either."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from holdfast.exceptions import HoldfastError
from holdfast.http.exchange import Exchange


class Refused(HoldfastError):
    """A request the admin listener does not do as asked.

    Args:
        status: The HTTP status.
        message: Why.
        remedy: What to do.
        headers: Further headers of the answer.
    """

    def __init__(
        self, status: int, message: str, remedy: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Args:
        exchange: To be answered.
        method: Its method, one of the route's.
        query: The parameters behind the path; of a repeated one the last.
    """

    exchange: Exchange
    method: str
    query: Mapping[str, str]


Function = Callable[..., Awaitable[None]]
"""Takes what was asked, and what the path's names stand for as keyword arguments."""

_NAME = re.compile(r"\{(\w+)(?::([^}]+))?\}")

Route = tuple[str, str, Function]
"""Methods, path, function: see :class:`Routes`."""


class Routes:
    """The table.

    Args:
        table: ``(methods, path, function)``. Methods are joined by ``|``. A path's ``{name}`` stands for one part of
            it, percent-decoded; ``{name:one|other}`` for one of these words. Of two that match the first counts.
    """

    def __init__(self, table: Iterable[Route]) -> None:
        self._table = [(methods.split("|"), _parts(path), function) for methods, path, function in table]

    def find(self, method: str, path: str) -> tuple[Function, dict[str, str]]:
        """The function for a request, and what the names in its path stand for.

        Raises:
            Refused: 404 where nothing is, 405 where there is something that does not know the method.
        """
        asked = [unquote(part) for part in path.strip("/").split("/")]
        allowed: set[str] = set()
        for methods, parts, function in self._table:
            names = _match(parts, asked)
            if names is not None:
                if method in methods:
                    return function, names
                allowed.update(methods)
        if allowed:
            known = ", ".join(sorted(allowed))
            raise Refused(405, f"{method} means nothing to {path}", f"{known}.", ((b"Allow", known.encode()),))
        raise Refused(404, f"there is no {path} here", "See docs/reference/data-plane.md.")


def _parts(path: str) -> list[tuple[str, frozenset[str]]]:
    """Each part as a name, "" for none, and the words it may be, none for any."""
    parts = []
    for part in path.split("/"):
        found = _NAME.fullmatch(part)
        if found is None:
            parts.append(("", frozenset((part,))))
        else:
            parts.append((found[1], frozenset(found[2].split("|")) if found[2] else frozenset()))
    return parts


def _match(parts: list[tuple[str, frozenset[str]]], asked: list[str]) -> dict[str, str] | None:
    if len(parts) != len(asked):
        return None
    if any(words and one not in words for (_, words), one in zip(parts, asked, strict=True)):
        return None
    return {name: one for (name, _), one in zip(parts, asked, strict=True) if name}
