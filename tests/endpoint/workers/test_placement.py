"""Where the workers are, in memory that several processes share."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from holdfast.cluster.lease_policy import MOST_PARTITIONS
from holdfast.endpoint.workers.agent_link import LONGEST_REASON
from holdfast.endpoint.workers.placement import MOST_BYTES, Placement, Placements
from holdfast.outages import Trouble

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


def in_child(call: Callable[[], bool]) -> bool:
    """What a call returns in a process of its own."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if call() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_every_process_sees_the_latest_placement() -> None:
    placements = Placements()
    assert placements.now == Placement()
    first = Placement(frozenset({0, 2}), {1: "http://b:1"})
    placements.set(first)
    assert in_child(lambda: placements.now == first)
    urls = {0: "http://a:1", 1: "http://b:1"}
    second = Placement(frozenset(), urls, frozenset({3}), {"b": "http://b:1"}, Trouble("away"), "http://a:1: b")
    assert in_child(lambda: placements.set(second) is None)
    assert placements.now == second
    placements.set(first)
    assert placements.now == first


def test_the_largest_placement_has_room() -> None:
    placements = Placements()
    urls = {number: f"http://{'n' * 8000}:{number}" for number in range(64)}
    nodes = {f"{number:0100}": url for number, url in urls.items()}
    large = Placement(
        frozenset(), urls, nodes=nodes, failed=dict.fromkeys(range(MOST_PARTITIONS), "x" * LONGEST_REASON)
    )
    placements.set(large)
    assert in_child(lambda: placements.now == large)


def test_a_placement_that_is_being_written_is_not_read() -> None:
    placements, known = Placements(), Placement(frozenset({1}))
    placements.set(known)
    written = Placement(frozenset({3}))

    class Torn(Placements):
        """Another reader, which comes between the text and its head."""

        def __init__(self) -> None:
            self._memory, self._version, self._known = placements._memory, -1, known

    reader = Torn()
    text_at = 16
    before = bytes(placements._memory[text_at : text_at + 20])
    placements._memory[text_at + 2 : text_at + 3] = b"9"
    assert reader.now == known
    placements._memory[text_at : text_at + 20] = before
    placements.set(written)
    assert reader.now == written
    assert len(placements._memory) == MOST_BYTES
