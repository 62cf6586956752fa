"""Worlds whose endpoints have room for few messages on their way and in memory: promises hold, and all arrives."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from worlds import worlds

from holdfast.core.sending.outbound_room import OutboundRoom
from holdfast.simulation.options import Options
from holdfast.simulation.simulator import Simulator


@worlds(150)
def test_all_promises_hold_where_there_is_room_for_few_messages_at_a_time(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: Counter[str] = Counter()
    wait = OutboundRoom._wait

    def counted(room: OutboundRoom, key: str, *about: object) -> None:
        waits["found no room"] += 1
        wait(room, key, *about)  # type: ignore[arg-type]

    monkeypatch.setattr(OutboundRoom, "_wait", counted)
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_OF_ALL", 3_000)
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_BYTES", 2_500)
    for seed in seeds:
        chance = random.Random(seed)
        monkeypatch.setattr("holdfast.core.sending.outbound_room.MOST_BYTES", chance.choice([1, 20, 60]))
        monkeypatch.setattr("holdfast.core.sending.outbound_room.MOST_OF_ONE", chance.choice([1, 15, 40]))
        options = Options.draw(chance)
        Simulator(seed, options.with_broker(chance) if seed % 2 else options).run()
    assert waits["found no room"] > 3 * len(seeds)
