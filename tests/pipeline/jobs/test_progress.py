"""The lag of streams, and the lines about their batches.

Covers pipeline/progress.py.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.client.offsets import Place, Places
from holdfast.pipeline.progress import describe, lag_of


def source(end: Places | None, latest: Places | None) -> dict[str, Any]:
    texts = [None if one is None else json.dumps(one.to_json()) for one in (end, latest)]
    return {"endOffset": texts[0], "latestOffset": texts[1]}


def progress(*sources: dict[str, Any], name: str | None = "landing") -> dict[str, Any]:
    return {
        "name": name,
        "id": "6f1c",
        "batchId": 12,
        "numInputRows": 5000,
        "durationMs": {"triggerExecution": 812},
        "sources": list(sources),
        "stateOperators": [],
    }


END = Places({"orders": Place("e", {0: 90, 1: 5}), "returns": Place("e", {0: 3})}, skipped=1200)
LATEST = Places({"orders": Place("e", {0: 100, 1: 5, 2: 7}), "returns": Place("e", {0: 3}), "new": Place("e", {0: 2})})


def test_the_lag_is_what_each_queue_has_more():
    assert lag_of(source(END, LATEST)) == {"orders": 17, "returns": 0, "new": 2}
    assert lag_of(source(END, None)) is None


def test_the_lag_of_a_progress_is_that_of_all_its_sources():
    other = {"endOffset": "7", "latestOffset": "9"}
    assert lag_of(progress(source(END, LATEST), other)) == {"orders": 17, "returns": 0, "new": 2}
    assert lag_of(progress(source(END, LATEST), source(END, LATEST))) == {"orders": 34, "returns": 0, "new": 4}
    assert lag_of(progress(other)) is None
    assert lag_of(progress()) is None


def test_a_batch_is_described_in_a_line():
    assert describe(progress(source(END, LATEST))) == (
        "landing batch 12: 5,000 rows in 0.8 s; 19 behind (new 2, orders 17); 1,200 deleted before they were read"
    )
    late = {**progress(source(END, END)), "stateOperators": [{"numRowsDroppedByWatermark": n} for n in (1200, 0, 3)]}
    assert describe(late).endswith("; 1,203 dropped by the watermark")
    caught_up = Places(END.queues)
    assert describe(progress(source(caught_up, caught_up), name=None)) == "6f1c batch 12: 5,000 rows in 0.8 s; 0 behind"


def test_of_a_kafka_topic_the_lag_is_told():
    ends = {"endOffset": '{"orders":{"0":1,"1":4}}', "latestOffset": '{"orders":{"0":3,"1":4,"2":5}}'}
    assert lag_of(progress(ends)) == {"orders": 7}
    assert describe(progress(ends)).endswith("in 0.8 s; 7 behind (orders 7)")


def test_of_other_sources_nothing_is_said():
    for offset in ("17", "null", '{"v": 9}', '{"orders":{"0":"x"}}', '{"a":{"b":1}}', "not JSON", None):
        assert (
            describe(progress({"endOffset": offset, "latestOffset": offset})) == "landing batch 12: 5,000 rows in 0.8 s"
        )
