"""What an executor must have: the page on submitting names it, and nothing else may be loaded there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "spark-submit.md"

PROGRAM = """
import sys
import pyspark.cloudpickle, pyspark.sql.datasource, pyspark.sql.types, pyspark.worker, pyarrow.parquet, numpy, pandas
before = set(sys.modules)
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(name for name in new - set(sys.stdlib_module_names) if not name.startswith("_")))
"""
SOURCE_AND_SINK = [
    f"holdfast.pipeline.{room}"
    for room in (
        "source",
        "reader.tasks",
        "reader.batches",
        "reader.stream",
        "reader.block_decoder",
        "reader.letters",
        "writer.sink",
        "writer.rows",
        "writer.refused_rows",
    )
]
LANDING = ["holdfast.pipeline.jobs.land", "holdfast.pipeline.landing.tables", "holdfast.pipeline.bodies.columns"]


def loaded(*rooms: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *rooms], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


TAKEN_IF_THERE = {"typing_extensions"}
"""By msgspec."""


@pytest.mark.parametrize(("rooms", "rows"), [(SOURCE_AND_SINK, (0,)), (SOURCE_AND_SINK + LANDING, (0, 1, 3))])
def test_no_package_is_loaded_but_those_that_the_page_names(rooms: list[str], rows: tuple[int, ...]) -> None:
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][2:]
    assert len(table) == 4 and "`deltalake`" in table[2], "loaded when a driver first writes a Delta table"
    named = {name for row in rows for name in re.findall(r"`(\w+)`", table[row].split("|")[2])}
    assert loaded(*rooms) - TAKEN_IF_THERE == named
