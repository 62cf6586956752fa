"""What a call costs, in lines of the core that run: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from holdfast import core

CORE = core.__file__.removesuffix("__init__.py")


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of the core run in a call; each turn of a loop counts."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if event == "call":
            return trace if frame.f_code.co_filename.startswith(CORE) else None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines
