"""Which steps of a pipeline call a function that has failed: an error's traceback names only the function.

A step's own function may call others, and use them in UDFs, which fail in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

from holdfast.pipeline.mediation.definition.plan import PipelinePlan

MOST_FUNCTIONS = 10_000
"""Maximum number of functions that are followed from one step."""

Frame = tuple[str, str, str]
"""File, line and function of an entry of a traceback."""


def calling_steps(plan: PipelinePlan, frames: Sequence[Frame]) -> list[str]:
    """Return the names of the steps with a function that leads to entries of a traceback.

    Args:
        frames: The entries. Those that no step leads to, such as the program's, do not count.
    """
    codes = {step.name: list(_codes(step.python)) for step in plan.steps if step.python is not None}
    led = {name: {frame for frame in frames if any(_is_in(frame, one) for one in own)} for name, own in codes.items()}
    all_led = set().union(*led.values())
    return [name for name, own in led.items() if own and own == all_led]


def _is_in(frame: Frame, code: CodeType) -> bool:
    file, line, function = frame
    if (code.co_filename, code.co_name) != (file, function):
        return False
    return int(line) in {number for *_, number in code.co_lines()}


def _codes(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function, of the functions in it, and of the functions that it names, if it is Python's."""
    todo, seen = [function], set[int]()
    while todo and len(seen) < MOST_FUNCTIONS:
        one = todo.pop()
        one = getattr(one, "func", one)  # of a UDF, or of a partial function
        if not hasattr(one, "__code__") and not isinstance(one, type | ModuleType):
            one = getattr(type(one), "__call__", None)  # noqa: B004 # of an object that is called like a function
        code = getattr(one, "__code__", None)
        if not isinstance(code, CodeType) or id(code) in seen:
            continue
        seen.add(id(code))
        names: set[str] = set()
        for inner in _nested(code):
            yield inner
            names.update(inner.co_names)
        known = getattr(one, "__globals__", {})
        values = [known[name] for name in names if name in known]
        # A function of another module: own.clean.
        values += [
            vars(one)[name] for one in values if isinstance(one, ModuleType) for name in names & vars(one).keys()
        ]
        values += [cell.cell_contents for cell in getattr(one, "__closure__", None) or () if _is_filled(cell)]
        todo += [one for one in values if callable(one) or hasattr(one, "func")]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _nested(one)


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
