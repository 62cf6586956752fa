"""Every text of the package: for tests of how errors name things."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent


def texts(naming: str = "") -> Iterator[tuple[str, str]]:
    """Every text of the package that is a sentence, or a part of one, and no docstring: where, and what.

    Args:
        naming: A pattern. Files in which it occurs nowhere are passed over unparsed; to parse all takes seconds.
    """
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(naming, source) is None:
            continue
        nodes = list(ast.walk(ast.parse(source)))
        passed = {id(one.value) for one in nodes if isinstance(one, ast.Expr)}
        passed |= {id(value) for one in nodes if isinstance(one, ast.JoinedStr) for value in one.values}
        for one in nodes:
            values = [one] if isinstance(one, ast.Constant) else one.values if isinstance(one, ast.JoinedStr) else []
            if id(one) in passed or not values:
                continue
            said = "".join(str(value.value) if isinstance(value, ast.Constant) else "{}" for value in values)
            if " " in said:
                yield f"{path.relative_to(SOURCE)}:{one.lineno}", said
