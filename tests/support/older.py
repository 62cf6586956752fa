"""What an older version wrote, unpacked, and the time at which it was written."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import Any

from holdfast.endpoint.engine.clock import Clock

WRITTEN = Path(__file__).parents[1] / "data" / "written"


class ClockOfThen(Clock):
    """Begins soon after the stores were written: nothing in them has expired."""

    def __init__(self, written_at: float) -> None:
        self._offset = written_at - time.monotonic()


def unpack(name: str, directory: Path) -> dict[str, Any]:
    """Unpack an archive, and return what its writer noted in ``facts.json``."""
    with tarfile.open(WRITTEN / f"{name}.tar.gz") as archive:
        # Before 3.11.4, Python has no filters.
        archive.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return dict(json.loads((directory / "facts.json").read_text()))
