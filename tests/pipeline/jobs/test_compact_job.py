"""The command holdfast compact, as far as it needs no Spark: what it prints.

Covers pipeline/landing/compaction.py.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.pipeline.jobs import compact as compact_job
from holdfast.pipeline.landing import compaction
from holdfast.pipeline.landing.compaction import Compaction


def test_the_command_passes_its_options_on_and_prints_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def compact(_: Any, out: str, **more: Any) -> Compaction:
        given.update(more, out=out)
        return Compaction(4, 1, 2)

    monkeypatch.setattr(compact_job, "command_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(compaction, "compact", compact)
    result = CliRunner().invoke(compact_job.compact_command, ["--json", "--out", "landed", "--target-mb", "2"])
    assert result.exit_code == 0, result.output
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"event": "end", "replaced": 4, "made": 1, "deleted": 2}
    ]
    assert given == {"out": "landed", "target": 2 << 20, "keep": 3600.0}
