"""The metrics of a running pipeline: what they count, and the listener that serves them. No Spark.

Covers pipeline/jobs/metrics_listener.py and pipeline/mediation/execution/metrics.py.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.jobs.mediation import pipeline
from holdfast.pipeline.jobs.metrics_listener import MetricsListener
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.metrics import PipelineCollector


def samples(collector: PipelineCollector) -> dict[str, float]:
    """Name and the values of its labels -> value."""
    return {
        " ".join([one.name, *one.labels.values()]): one.value
        for metric in collector.collect()
        for one in metric.samples
    }


def progress(read: int, there: int) -> dict[str, Any]:
    def offset(at: int) -> str:
        return json.dumps({"t": {"0": at}})

    return {"sources": [{"startOffset": offset(0), "endOffset": offset(read), "latestOffset": offset(there)}]}


def test_batches_are_counted_by_query_and_sink() -> None:
    collector = PipelineCollector({"orders": ["out", "audit"], "hourly": ["table"]}, clock=lambda: 1_000.0)
    first = samples(collector)
    assert first["holdfast_pipeline_rows_out_total hourly table"] == 0
    assert not [name for name in first if "timestamp" in name]
    collector.add(MediatedBatch("orders", 0, 5, {"out": 3, "audit": 4}, dead=1, late=0, repeated=False, seconds=0.3))
    collector.add(
        MediatedBatch("orders", 1, 7, {"out": 7, "audit": 7}, dead=0, late=2, repeated=True, doubles=3, seconds=700.0)
    )
    collector.look("orders", progress(12, 20))
    collector.look("hourly", None)
    told = samples(collector)
    assert {name.removeprefix("holdfast_pipeline_"): value for name, value in told.items() if " orders" in name} == {
        "rows_read_total orders": 12,
        "rows_out_total orders out": 10,
        "rows_out_total orders audit": 11,
        "dead_rows_total orders": 1,
        "late_rows_total orders": 2,
        "repeated_records_total orders": 3,
        **{f"batch_seconds_bucket orders {bound}": 1 for bound in (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)},
        **{f"batch_seconds_bucket orders {bound}": 1 for bound in (120.0, 300.0, 600.0)},
        "batch_seconds_bucket orders 0.25": 0,
        "batch_seconds_bucket orders +Inf": 2,
        "batch_seconds_count orders": 2,
        "batch_seconds_sum orders": 700.3,
        "last_batch_timestamp_seconds orders": 1_000,
        "lag_records orders t": 8,
    }


def test_a_listener_answers_scrapes_and_nothing_else() -> None:
    collector = PipelineCollector({"orders": ["out"]})

    def get(path: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{listener.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    with MetricsListener(collector, "127.0.0.1", 0) as listener:
        status, text = get("/metrics")
        assert status == 200
        assert 'holdfast_pipeline_rows_out_total{query="orders",sink="out"} 0.0' in text
        assert get("/")[0] == 404
        assert get("/metrics", Origin="http://evil.example")[0] == 403
        assert get("/metrics", Host="evil.example")[0] == 403
        with (
            pytest.raises(ConfigurationError, match="cannot listen at"),
            MetricsListener(collector, "127.0.0.1", listener.port),
        ):
            pass
    with pytest.raises(urllib.error.URLError):
        get("/metrics")


def test_an_address_that_is_none_is_wrong_usage() -> None:
    result = CliRunner().invoke(pipeline, ["run", __file__, "--metrics", "here"])
    assert result.exit_code == 2
    assert "'here' is not HOST:PORT" in result.output
