"""How many simulated worlds a test runs: few in the default suite, the others in the nightly one."""

from __future__ import annotations

from typing import Any

import pytest


def worlds(nightly: int) -> Any:
    """Give a test its ``seeds``, so many in all: a tenth in the default suite, and in a second run the others."""
    few = nightly // 10
    others = pytest.param(range(few, nightly), marks=pytest.mark.nightly)
    return pytest.mark.parametrize("seeds", [range(few), others], ids=str)


def each_world(few: int, nightly: int) -> Any:
    """Run a test for each ``seed``: for so many in the default suite, and for the others in the nightly one."""
    others = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(few, nightly)]
    return pytest.mark.parametrize("seed", [*range(few), *others])
