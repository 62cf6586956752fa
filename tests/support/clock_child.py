"""``holdfast`` with a clock that is CLOCK_OFFSET seconds off. Steady clocks are right, as on such a machine."""

from __future__ import annotations

import os
import time

_true = time.time
time.time = lambda: _true() + float(os.environ["CLOCK_OFFSET"])

from holdfast.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
