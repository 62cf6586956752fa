"""How long clients waited in tests with faults, for the tables of the documentation."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median


def note_times(engine: str, fault: str, seconds: Sequence[float]) -> None:
    """Print the longest waits of clients, one for each time a fault happened.

    If FAULT_TIMES names a file, add a line with them to it.
    """
    rounded = [round(one, 2) for one in seconds]
    print(f"{engine}: {fault}: median {median(rounded)} s, longest {max(rounded)} s, of {len(rounded)}")
    if place := os.environ.get("FAULT_TIMES"):
        with Path(place).open("a") as file:
            file.write(json.dumps({"engine": engine, "fault": fault, "seconds": rounded}) + "\n")
