"""Names of rows in a SELECT, found by its keywords, without Spark's parser.

It recognizes the forms of ordinary queries. If a name could be anything but rows, it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`([^`]+)`|([A-Za-z_]\w*)|(\S)", re.DOTALL
)
_NO_NAMES = frozenset(("LATERAL", "VALUES", "TABLE", "UNNEST", "STREAM", "SELECT"))


def relations(sql: str) -> list[str]:
    """Return the names after FROM and JOIN, without those that the query defines, qualified names and functions."""
    tokens = [_text(found) for found in _TOKEN.finditer(sql)]
    tokens = [token for token in tokens if token]
    defined = {name.lower() for name in _defined(tokens)}
    return [name for name in _named(tokens) if name.lower() not in defined]


def replaced(sql: str, name: str, by: str) -> str:
    """Return a query with another name for some rows."""

    def replace(found: re.Match[str]) -> str:
        is_it = (found[1] or found[2] or "").lower() == name.lower()
        return by if is_it else found[0]

    return _TOKEN.sub(replace, sql)


def _text(found: re.Match[str]) -> str:
    """Return a token: names in backquotes, to tell them from keywords; "" for a comment, "'" for a literal."""
    if found[1]:
        return f"`{found[1]}"
    if found[2] or found[3]:
        return found[0]
    return "" if found[0].startswith(("--", "/*")) else "'"


def _is_name(token: str) -> bool:
    return token[0] == "`" or ((token[0].isalpha() or token[0] == "_") and token.upper() not in _NO_NAMES)


def _named(tokens: list[str]) -> Iterator[str]:
    in_query = [False]
    for at, token in enumerate(tokens):
        word = token.upper()
        if token == "(":
            in_query.append(False)
        elif token == ")" and len(in_query) > 1:
            in_query.pop()
        elif word == "SELECT":
            in_query[-1] = True
        elif in_query[-1] and (word == "JOIN" or (word == "FROM" and tokens[at - 1].upper() != "DISTINCT")):
            yield from _listed(tokens, at + 1)


def _listed(tokens: list[str], at: int) -> Iterator[str]:
    """Yield the names of a list that begins at a token, up to the first that is none."""
    padded = [*tokens[at:], ";", ";", ";"]
    while _is_name(padded[0]) and padded[1] not in (".", "("):
        yield padded[0].removeprefix("`")
        padded = padded[1:]
        if padded[0].upper() == "AS":
            padded = padded[1:]
        if padded[0] != "," and padded[1] == ",":
            padded = padded[1:]
        if padded[0] != ",":
            return
        padded = padded[1:]


def _defined(tokens: list[str]) -> Iterator[str]:
    """Yield the names before ``AS (``: those of a WITH."""
    for at, (before, token) in enumerate(pairwise(tokens)):
        if before.upper() == "AS" and token == "(" and at:
            name = at - 1
            if tokens[name] == ")":  # a list of columns is between
                while name and tokens[name] != "(":
                    name -= 1
                name -= 1
            yield tokens[name].removeprefix("`")
