"""How many examples of Hypothesis a test looks at: the nightly suite's number, a fifth of it in the default suite."""

from __future__ import annotations

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or "default"
FEW = 5
"""So many are never made fewer."""


def examples(nightly: int) -> int:
    """The number of examples in this run, from that of the nightly suite."""
    return nightly if PROFILE != "default" else max(min(nightly, FEW), nightly // 5)
