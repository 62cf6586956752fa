"""Tables of Parquet files whose directories name columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def dataset_of(path: str | Path, **options: Any) -> Any:
    """Open the table in a directory. Imported here, as PyArrow's datasets import pandas: a second for each worker."""
    import pyarrow.dataset

    return pyarrow.dataset.dataset(path, partitioning="hive", **options)
