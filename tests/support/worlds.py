"""How many simulated worlds a test runs: a fifth in the default suite, the others in the nightly one."""

from __future__ import annotations

from typing import Any

import pytest


def worlds(nightly: int) -> Any:
    """Give a test its ``seeds``, so many in all: those of the default suite, and in a second run the others."""
    few = nightly // 5
    others = pytest.param(range(few, nightly), marks=pytest.mark.nightly)
    return pytest.mark.parametrize("seeds", [range(few), others], ids=str)
