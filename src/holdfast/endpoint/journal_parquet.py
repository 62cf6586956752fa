"""``python -m holdfast.endpoint.journal_parquet DIRECTORY``: makes Parquet of what a journal has ready.

A process of its own, which the writer of the journal starts now and then: pyarrow takes more memory than a whole
endpoint, and what it does would hold up the loop.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.endpoint.journal_files import to_parquet_all


def main() -> None:
    """Do it, and let everybody else go first."""
    os.nice(10)
    to_parquet_all(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
