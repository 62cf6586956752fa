"""How much an object holds: the entries of every container that its attributes lead to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

_CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def entries(root: object) -> Counter[str]:
    """Return how many entries the containers of each attribute hold, by class and attribute.

    It follows the attributes of this project's objects, containers, and what functions were bound to.
    """
    found: Counter[str] = Counter()
    seen: dict[int, object] = {}
    left: list[tuple[str, object]] = [("root", root)]
    while left:
        name, one = left.pop()
        if id(one) in seen or isinstance(one, str | bytes | int | float | type | None):
            continue
        seen[id(one)] = one
        if isinstance(one, _CONTAINERS):
            if not isinstance(one, tuple):
                found[name] += len(one)
            left += ((name, value) for value in _contained(one))
        else:
            left += _attributes(name, one)
    return found


def _contained(container: Any) -> Iterator[object]:
    yield from container
    if isinstance(container, Mapping):
        yield from container.values()
    yield from vars(container).values() if hasattr(container, "__dict__") else ()


def _attributes(name: str, one: Any) -> Iterator[tuple[str, object]]:
    if isinstance(one, partial):
        yield from ((name, value) for value in (one.func, *one.args, *one.keywords.values()))
    elif isinstance(one, MethodType):
        yield name, one.__self__
    elif isinstance(one, FunctionType):
        yield from ((name, cell.cell_contents) for cell in one.__closure__ or ())
    elif type(one).__module__.startswith("holdfast."):
        slots = (slot for kind in type(one).__mro__ for slot in getattr(kind, "__slots__", ()))
        for attribute in {*slots, *getattr(one, "__dict__", ())}:
            if hasattr(one, attribute):
                yield f"{type(one).__name__}.{attribute}", getattr(one, attribute)
