"""The command holdfast compact, as far as it needs no Spark: what it prints."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.pipeline.jobs import compact as compact_job
from holdfast.pipeline.landing import compaction, tables
from holdfast.pipeline.landing.compaction import Compaction
from holdfast.pipeline.landing.delta import DeltaTable
from holdfast.pipeline.landing.directories import ParquetTable


@pytest.mark.parametrize(("kind", "is_warned"), [(ParquetTable, True), (DeltaTable, False)])
def test_who_reads_a_compacted_table_wrong_is_warned_of_before_parquet_is_compacted(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any], is_warned: bool
) -> None:
    given: dict[str, Any] = {}

    def compact(*_: Any, on_made: Any, **more: Any) -> Compaction:
        given.update(more)
        on_made("compacted=0-3-cafe")
        return Compaction(4, 1, 2)

    monkeypatch.setattr(compact_job, "command_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(tables, "table_of", lambda *_: kind.__new__(kind))
    monkeypatch.setattr(compaction, "compact", compact)
    result = CliRunner().invoke(compact_job.compact_command, ["--out", "landed", "--target-mb", "2"])
    assert result.exit_code == 0, result.output
    warnings = [compact_job.ONLY_READ_LANDED] if is_warned else []
    assert result.stderr.splitlines() == warnings
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"event": "made", "directory": "compacted=0-3-cafe"},
        {"event": "end", "replaced": 4, "made": 1, "deleted": 2},
    ]
    assert given == {"target": 2 << 20, "keep": 3600.0}
