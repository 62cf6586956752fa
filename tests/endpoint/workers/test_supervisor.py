"""What a supervisor waits for. What it does with real workers: ``test_workers`` and ``test_nodes``."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest

from holdfast.cluster.trust import Trust
from holdfast.cluster.view import KAFKA, View
from holdfast.endpoint.shutdown import LONGEST_STOP
from holdfast.endpoint.workers.agent_link import LONGEST_REASON, AgentLink, reason_of
from holdfast.endpoint.workers.supervisor import (
    AGENT_SECONDS,
    LONGEST_END,
    STOP_SECONDS,
    Supervisor,
)
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


@pytest.mark.parametrize(("mine", "code"), [({0: 7}, 1), ({0: 8}, 0), ({}, 0)], ids=["its", "its again", "another's"])
def test_a_node_that_ends_fails_only_with_a_worker_whose_partition_it_still_has(
    mine: dict[int, int], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another node took the store over, the worker reports that as an error when it ends."""
    ours, agent = socket.socketpair()
    supervisor = Supervisor(1, (), (), lambda _facts: None, agent=AgentLink(0, ours, Trust(1)))
    monkeypatch.setattr(os, "kill", lambda *_: None)
    try:
        worker = supervisor._processes[0]
        for one in ({0: 7}, mine):
            agent.sendall(json.dumps({"view": View("a", one, {}, {}).to_json()}).encode() + b"\n")
            supervisor._follow()
            worker.pid, worker.start_at = 1, None
        supervisor._end(signal.SIGTERM)
        worker.pid = 0
        supervisor._died(worker, 1)
        assert supervisor._code == code
    finally:
        agent.close()
        supervisor._directory.delete()


@pytest.mark.parametrize("engine", ["PostgreSQL", KAFKA])
def test_a_node_that_ends_gives_its_workers_all_the_time_that_an_operator_grants(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next nodes may prepare first. One deadline is for that, the handlers and the agent together."""
    ours, agent = socket.socketpair()
    supervisor = Supervisor(2, (), (), lambda _facts: None, agent=AgentLink(0, ours, Trust(2)))
    told, now = list[tuple[int, int]](), 1000.0
    monkeypatch.setattr(os, "kill", lambda *one: told.append(one))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    try:
        supervisor._want({0: 0, 1: 0, 2: 0})
        for process in supervisor._processes:
            process.pid, process.start_at = 100 + process.number, None
        for mine, signals in (({0: 0, 1: 0}, 1), ({1: 0}, 1)):  # the next node of 0 is prepared, that of 1 is not
            agent.sendall(json.dumps({"view": View("a", mine, {}, {}, engine=engine).to_json()}).encode() + b"\n")
            supervisor._follow()
            supervisor._signals = signals
            supervisor._obey()
            now += 2 * STOP_SECONDS / 3
        supervisor._obey()
        assert told == [(pid, signal.SIGTERM) for pid in (100, 101, 102)]
        kill_at = {process.kill_at for process in supervisor._processes}
        assert kill_at == {1000.0 + LONGEST_END - AGENT_SECONDS}
        assert LONGEST_STOP < LONGEST_END - AGENT_SECONDS < LONGEST_END < 30
    finally:
        agent.close()
        supervisor._directory.delete()


def test_a_worker_that_was_handed_over_ends_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node on Kafka that ends serves each partition until the next node is prepared for it."""
    ours, agent = socket.socketpair()
    supervisor = Supervisor(2, (), (), lambda _facts: None, agent=AgentLink(0, ours, Trust(2)))
    told = list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda *one: told.append(one))
    try:
        supervisor._want({0: 0, 1: 0, 2: 0})
        for process in supervisor._processes:
            process.pid, process.start_at, process.is_ready = 100 + process.number, None, True
        for mine in ({0: 0, 1: 0}, {1: 0}):
            agent.sendall(json.dumps({"view": View("a", mine, {}, {}, engine=KAFKA).to_json()}).encode() + b"\n")
            supervisor._follow()
            supervisor._signals = 1
            supervisor._obey()
        first = supervisor._processes[0]
        first.pid = 0
        supervisor._died(first, 0)
        assert told == [(100, signal.SIGTERM)] and not supervisor._is_ending
    finally:
        agent.close()
        supervisor._directory.delete()


@pytest.mark.parametrize("engine", ["PostgreSQL", KAFKA])
def test_after_a_signal_nothing_is_started(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a worker that waits for its next start, nor one that a late view wants."""
    ours, agent = socket.socketpair()
    supervisor = Supervisor(2, (), (), lambda _facts: None, agent=AgentLink(0, ours, Trust(2)))
    monkeypatch.setattr(os, "kill", lambda *_: None)
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    try:
        supervisor._want({0: 1, 2: 0})
        supervisor._processes[2].pid, supervisor._processes[2].start_at = 100, None
        agent.sendall(json.dumps({"view": View("a", {0: 1, 1: 1}, {}, {}, engine=engine).to_json()}).encode() + b"\n")
        supervisor._on_signal(signal.SIGTERM, None)
        supervisor._look_around()
        assert [process.start_at for process in supervisor._processes] == [None] * 3
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
