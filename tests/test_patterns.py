"""Regular expressions that every supported Python matches in the same way."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """The compiled patterns of the modules, with their names."""
    for path in sorted(SOURCE.rglob("*.py")):
        if "re.compile(" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
            for attribute, value in vars(importlib.import_module(name)).items():
                if isinstance(value, re.Pattern):
                    yield f"{name}.{attribute}", value


def nodes(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Every operation of a parsed pattern with its argument, depth first."""
    if isinstance(parsed, _parser.SubPattern):
        for operation, argument in parsed:
            yield operation, argument
            yield from nodes(argument)
    elif isinstance(parsed, tuple | list):
        for part in parsed:
            yield from nodes(part)


def is_unsafe(pattern: re.Pattern[Any]) -> bool:
    parsed = _parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else 0)
    return any(
        operation is _constants.POSSESSIVE_REPEAT
        and any(inner is _constants.ASSERT_NOT for inner, _ in nodes(argument))
        for operation, argument in nodes(parsed)
    )


def test_no_possessive_group_has_a_negative_lookahead() -> None:
    """Before Python 3.11.5 such a group matches too much (gh-100061, gh-106052)."""
    found = dict(patterns())
    assert len(found) > 50
    assert not [name for name, pattern in found.items() if is_unsafe(pattern)]


def test_such_a_group_would_be_found() -> None:
    assert is_unsafe(re.compile(r'"""(?:[^"]++|"{1,2}(?!"))*+"{3}'))
    assert not is_unsafe(re.compile(r'"""(?:[^"]++|"(?!""))*"{3}'))
