"""What a supervisor waits for. What it does with real workers: ``test_workers`` and ``test_nodes``."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest

from holdfast.cluster.trust import Trust
from holdfast.cluster.view import View
from holdfast.endpoint.workers.agent_link import AgentLink
from holdfast.endpoint.workers.supervisor import LONGEST_REASON, Supervisor, reason_of
from holdfast.exceptions import ConfigurationError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


def test_a_worker_that_was_given_away_leaves_nothing_to_wait_for() -> None:
    """A time in the past would keep the supervisor of a node busy for as long as another node has the partition."""
    ours, agent = socket.socketpair()
    supervisor = Supervisor(1, (), (), lambda _facts: None, agent=AgentLink(0, ours, Trust(1)))
    worker, accepting = supervisor._processes
    try:
        accepting.start_at = None  # as if it ran
        for mine in ({0: 7}, {}):
            agent.sendall(json.dumps({"view": View("a", mine, {}, {}).to_json()}).encode() + b"\n")
            supervisor._follow()
            if mine:
                assert supervisor._next_time() == worker.start_at == 0.0
                worker.start_at, worker.pid = None, os.posix_spawnp("sleep", ["sleep", "600"], os.environ)
                assert supervisor._next_time() is None
        told = supervisor._next_time()
        assert told is not None and told > time.monotonic() - 60, "it is killed if it does not stop"
        while worker.pid:
            supervisor._look_after(worker)
        assert supervisor._next_time() is None
    finally:
        agent.close()
        supervisor._directory.delete()


@pytest.mark.parametrize("length", [1, LONGEST_REASON - 30, LONGEST_REASON, 10 * LONGEST_REASON])
@pytest.mark.parametrize("remedy", ["Delete the cache.", "Do this. " * LONGEST_REASON])
def test_a_reason_has_its_begin_its_end_and_its_remedy(length: int, remedy: str) -> None:
    found = reason_of(ConfigurationError(f"begin {'x' * length} end.", remedy=remedy))
    assert len(found) <= LONGEST_REASON
    assert found.startswith("begin ") and f" end. {remedy[:17]}" in found
    assert len(reason_of(ValueError("x" * length))) <= LONGEST_REASON
