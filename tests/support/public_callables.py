"""The public classes and functions that callers give arguments to, and which values each argument takes."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Iterator
from typing import Any

import holdfast
from holdfast.settings import Within, _fits, _Known, _members, _metadata
from holdfast.testing.proxy import LossyProxy


def public_callables() -> Iterator[Any]:
    """Every public class that has arguments of its own, and every public function of the pipeline."""
    # SoapHeaders is a dictionary that only Holdfast fills.
    names = [one for one in holdfast.__all__ if one not in ("sync", "trace", "__version__", "SoapHeaders")]
    yield from (one for name in names if inspect.isclass(one := getattr(holdfast, name)))
    yield LossyProxy
    for module in ("landing", "mediation", "progress", "reassembly", "audit"):
        room = importlib.import_module(f"holdfast.pipeline.{module}")
        yield from (
            one for name in getattr(room, "__all__", ["watch"]) if inspect.isfunction(one := getattr(room, name))
        )


def parameters(function: Any) -> dict[str, Any]:
    """Return the annotation of each parameter."""
    init = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(init, localns=_Known(getattr(init, "__globals__", {})), include_extras=True)
    return {
        name: hints.get(name, Any)
        for name, one in inspect.signature(function).parameters.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) and not name.startswith("_")
    }


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value is one that the annotation permits, as far as can be said."""
    if annotation is Any or Any in _members(annotation):
        return True
    bounds = next((one for one in _metadata(annotation) if isinstance(one, Within)), Within())
    plain = typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
    members = [typing.get_args(one)[0] if hasattr(one, "__metadata__") else one for one in _members(plain)]
    if inspect.isclass(value) or callable(value):
        return True  # see test_settings.py
    if isinstance(value, range | set | tuple | list | dict) and not value:
        return True  # an empty collection says nothing
    try:
        return _fits(value, tuple(members), bounds.least, bounds.most)
    except TypeError:  # a Protocol
        return value is None
