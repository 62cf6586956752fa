"""The public classes and functions that callers give arguments to."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import holdfast
from holdfast.testing.proxy import LossyProxy


def public_callables() -> Iterator[Any]:
    """Every public class, and every public function of the pipeline."""
    names = [one for one in holdfast.__all__ if one not in ("sync", "trace", "__version__")]
    yield from (one for name in names if inspect.isclass(one := getattr(holdfast, name)))
    yield LossyProxy
    for module in ("landing", "mediation", "progress", "reassembly", "audit"):
        room = importlib.import_module(f"holdfast.pipeline.{module}")
        yield from (
            one for name in getattr(room, "__all__", ["watch"]) if inspect.isfunction(one := getattr(room, name))
        )
