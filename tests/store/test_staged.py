"""Sinks over every store: what is staged and published comes once and in order, whoever dies when."""

from __future__ import annotations

import random
from typing import Any

import pytest
from staged import Side, exact, row

from holdfast.core import staged_blocks as staged
from holdfast.core.sinks import sink as sinks
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
