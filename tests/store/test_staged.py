"""Sinks over every store: what is staged and published comes once and in order, whoever dies when."""

from __future__ import annotations

import random
from typing import Any

import pytest
from staged import PARTITIONS, Side, exact, partition_of, row

from holdfast.core import staged_blocks as staged
from holdfast.core.records import Batch, Record
from holdfast.core.sinks import sink as sinks
from holdfast.core.staged_blocks import ROW_BYTES
from holdfast.exceptions import ConfigurationError


def test_batches_come_once_and_in_order_through_deaths_at_any_moment(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "MOST_ROWS", 3)
    draw = random.Random(5)
    side = Side(reopen=opened.reopen)
    deaths, tokens = 0, iter(range(1000))

    def settled() -> bool:
        nonlocal deaths
        while side.protocol.effects or side.taken or side.wanted or side.protocol.wants_commit:
            if draw.random() < 0.1 and deaths < 12:
                deaths += 1
                side.start()
                return False
            side.step()
        return True

    for batch in range(3):
        while True:
            mine = [f"t{next(tokens)}" for _ in range(2)]
            kept = [
                side.stage(batch, one, [row(f"{batch}-{task}-{n}", f"k{n}") for n in range(4)]) is not None
                and settled()
                for task, one in enumerate(mine)
            ]
            if all(kept):
                try:
                    side.publish(batch, *mine, count=8)
                except ConfigurationError:
                    continue
                if settled():
                    break
    while not settled():
        pass
    assert side.bodies() == exact(3)
    assert deaths >= 5
    side.start()
    left = side.snapshot
    assert not [where for where in left.bounds if where[0].startswith("staging/")]
    assert [name for _, _, name in left.cursors if name in (sinks.SINK, sinks.PART)] == [sinks.SINK]


def test_rows_staged_by_an_older_version_still_move(opened: Any) -> None:
    """As stores have it from before there were blocks, and ranges of batches."""
    side = Side(reopen=opened.reopen)
    saved = {"query": "q", "batch": 4, "at": 1000.0, "bytes": 5 * (ROW_BYTES + 1)}
    cursors: dict[tuple[str, int, str], dict[str, Any]] = {
        ("sink/urn:old", 0, sinks.SINK): {"name": "s", "identifier": "urn:old", "query": "q", "last": 3, "rows": 2}
        | {"published": 10, "former": {"p": 2}, "forgotten": False},
        ("staging/urn:old/0", 0, sinks.PART): saved | {"token": "moves", "batch": 3, "number": 6},
        ("staging/urn:old/1", 0, sinks.PART): saved | {"token": "waits", "number": None},
    }
    records = [Record(f"k{n}", 0, "urn:a", b"%d" % n, 5.0, transport=b"inbox") for n in range(10)]
    appends = [(f"staging/urn:old/{n // 5}", 0, n % 5, one) for n, one in enumerate(records)]
    side.store.commit(Batch(appends=appends, cursors=cursors, trims={("staging/urn:old/0", 0): 3}))
    side.start()
    side.settle()
    assert side.bodies() == ["3", "4"]
    assert side.staging.sink("s").describe()["staged"] == 5
    side.publish(4, "waits", count=5)
    side.take()
    side.durable()
    side.start()
    side.settle()
    for partition in range(PARTITIONS):
        found = [(one.sequence, one.message_number, one.body) for one in side.records("inbox", partition)]
        mine = [n for n in range(3, 10) if partition_of(f"k{n}") == partition]
        assert found == [(f"urn:old#{partition}", number, b"%d" % n) for number, n in enumerate(mine, 1)]
    assert side.staging.bind("s", "p").last == 2
    assert not [where for where in side.store.load().bounds if where[0].startswith("staging/")]
