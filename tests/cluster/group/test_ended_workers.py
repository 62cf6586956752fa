"""What the agent learns of the workers: the real agent and the real supervisor, without Kafka and without processes.

The supervisor reports once that a worker has ended, and the agent waits for that. No order of events may leave it
waiting.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from holdfast.cluster.agent import AgentSettings
from holdfast.cluster.group import agent as module
from holdfast.cluster.group.agent import _GroupAgent
from holdfast.cluster.group.members import GroupMember, GroupPicture, LogNote
from holdfast.cluster.group.notes import report_note
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import Report
from holdfast.cluster.trust import Trust
from holdfast.endpoint.workers.agent_link import AgentLink
from holdfast.endpoint.workers.supervisor import STARTS, Supervisor
from holdfast.store.kafka.login import KafkaAway

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
POLICY = LeasePolicy(6.0)
EVENTS = ("assigned", "lost", "given up", "dies", "look")


class Node:
    """An agent and a supervisor with one partition, whose workers are not started."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "trust_clock", lambda: self.now)
        monkeypatch.setattr(os, "kill", lambda *_: None)
        self.now, self.is_assigned = 100.0, False
        ours, self.theirs = socket.socketpair()
        settings = AgentSettings(f"kafka://127.0.0.1:1/log?cache={place}", "a", "http://a", 1, POLICY)
        self.agent = _GroupAgent(settings, self.theirs, Trust(1), lambda *_, **__: None)
        self.membership = self.agent._membership
        self.supervisor = Supervisor(1, (), (), lambda _facts: None, agent=AgentLink(0, ours, Trust(1)))
        self.worker = self.supervisor._processes[0]

    def close(self) -> None:
        self.theirs.close()
        self.supervisor._directory.delete()
        for process in self.supervisor._processes:
            for one in (process.taking, process.inbox):
                one.close()

    def do(self, event: str) -> None:
        match event:
            case "assigned" if not self.is_assigned:
                self.is_assigned = True
                self.membership.assigned([0], "me", self.now)
            case "lost" if self.is_assigned:
                self.is_assigned = False
                self.membership.lost([0], self.now)
            case "given up" if self.worker.pid:
                self.died(STARTS)
            case "dies" if self.worker.pid:
                self.died(0)
            case "look":
                for _ in range(3):
                    self.look()
            case "lease":
                for _ in range(30):
                    self.look()

    def died(self, failed_starts: int) -> None:
        self.worker.pid, self.worker.kill_at, self.worker.failed_starts = 0, None, failed_starts
        self.supervisor._died(self.worker, 1)

    def look(self) -> None:
        self.now += POLICY.lease / 20
        me = GroupMember("me", "a", "http://a", self.agent._since, "", frozenset({0} if self.is_assigned else ()))
        other = GroupMember("you", "b", "http://b", self.agent._since + 1)
        self.membership.looked(GroupPicture((me, other), True), self.now, self.now)
        if 0 in self.membership.view.preparing and self.worker.pid:
            self.membership.log_noted(0, LogNote(1, False), self.now)
        self.agent._publish(self.now)
        self.agent._listen()
        self.supervise()

    def supervise(self) -> None:
        """The worker starts at once, and ends as soon as it is told to."""
        self.supervisor._follow()
        if self.worker.pid and (self.worker.kill_at is not None or self.supervisor._is_ending):
            self.died(0)
        if self.worker.start_at is not None:
            self.worker.start_at, self.worker.pid = None, 1


@pytest.mark.parametrize("length", [3, pytest.param(4, marks=pytest.mark.nightly)])
def test_no_order_of_events_leaves_a_partition_without_worker_or_a_node_at_work(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for events in product(EVENTS, repeat=length):
        with monkeypatch.context() as patched:
            node = Node(tmp_path, patched)
            try:
                for event in ("assigned", "look", *events):
                    node.do(event)
                for event in ("assigned", "lease", "lease"):
                    node.do(event)
                assert 0 in node.membership.view.mine and node.worker.pid, events
                for event in events[-2:]:
                    node.do(event)
                node.supervisor._end(signal.SIGTERM)
                node.do("look")
                assert not node.membership.has_workers, events
            finally:
                node.close()


def test_a_coordinator_that_refuses_at_once_is_asked_at_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a partition has no owner until a look has shown the node."""
    node, asked = Node(tmp_path, monkeypatch), list[float]()

    def refuse() -> None:
        raise KafkaAway("the coordinator is not available")

    monkeypatch.setattr(node.agent._describer, "ask", lambda: asked.append(node.now))
    monkeypatch.setattr(node.agent._describer, "answer", refuse)
    node.do("assigned")
    try:
        for _ in range(500):
            node.now += 0.01
            node.agent._look()
    finally:
        node.close()
    assert node.membership.is_look_due(node.now) and 9 <= len(asked) <= 5.0 / (POLICY.hold / 4)


def test_a_node_that_was_paused_counts_from_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator may have described the group at the end of the pause, so its members may act for longer."""
    node, looked = Node(tmp_path, monkeypatch), list[tuple[float, float]]()

    def answer() -> GroupPicture:
        node.now += 0.46
        return GroupPicture((), is_stable=True)

    monkeypatch.setattr(node.agent._describer, "ask", lambda: None)
    monkeypatch.setattr(node.agent._describer, "answer", answer)
    monkeypatch.setattr(node.membership, "looked", lambda _picture, sent, now: looked.append((sent, now)))
    try:
        node.agent._look()
    finally:
        node.close()
    assert looked == [(100.0, 100.46)]


def test_the_configuration_of_a_node_with_another_secret_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digests depend on its secret: they would hide the true difference."""
    node = Node(tmp_path, monkeypatch)
    others = [GroupMember(name, name, f"http://{name}", 1.0, mark) for name, mark in (("b", ""), ("c", "another"))]
    theirs = Report(tables={"queues": "theirs"})
    notes = [report_note(one.node, one.since, theirs) for one in others]
    monkeypatch.setattr(node.agent._shared, "changes", lambda: notes)
    try:
        node.membership.serves((), {}, {"queues": "ours"})
        node.membership.looked(GroupPicture(tuple(others), is_stable=True), node.now, node.now)
        node.agent._read_notes(node.now)
        assert node.membership.view.differing == {"b": ("queues",)}
    finally:
        node.close()


def test_refused_reports_are_logged_once_and_repeated_at_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, told, said = Node(tmp_path, monkeypatch), list[tuple[str, dict[str, Any]]](), list[Callable[[bool], None]]()
    monkeypatch.setattr(node.agent._shared, "say", lambda _key, _value, then: said.append(then))
    monkeypatch.setattr(node.agent, "_report", lambda _level, event, **more: told.append((event, more)))
    attempts = 0
    node.agent._shared.said = "Broker: Topic authorization failed"
    node.agent._shared._unwritten = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    try:
        for _ in range(300):
            node.now += 0.01
            node.agent._say_report(node.now)
            if said:
                attempts += 1
                said.pop()(False)
        assert (len(told), attempts) == (1, 6)
        node.now += 1.0
        node.agent._say_report(node.now)
        node.agent._shared.written_at = time.time()
        said.pop()(True)
    finally:
        node.close()
    (refused, why), (written, _) = told
    assert (refused, written) == ("cluster.report_refused", "cluster.report_written")
    assert why["reason"] == "Broker: Topic authorization failed" and "-nodes" in why["remedy"]


def test_a_refused_login_is_logged_once_in_an_outage_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever client hears of it: the one that asks for the group, or a member."""
    node, told = Node(tmp_path, monkeypatch), list[tuple[str, str]]()
    answers: list[KafkaAway | None] = []

    def answer() -> GroupPicture | None:
        if (found := answers.pop()) is not None:
            raise found
        return GroupPicture((), is_stable=True)

    def look(why: KafkaAway | None) -> str:
        answers.append(why)
        node.now += 10.0
        node.agent._look()
        return str(node.agent._outage.trouble or "")

    monkeypatch.setattr(node.agent._describer, "ask", lambda: None)
    monkeypatch.setattr(node.agent._describer, "answer", answer)
    monkeypatch.setattr(node.agent, "_report", lambda _level, event, **more: told.append((event, str(more))))
    try:
        silent = KafkaAway("Local: Timed out")
        assert look(silent) == look(KafkaAway("Local: Timed out")) == "Local: Timed out"
        refused = KafkaAway("refused login: no", "Check the password.")
        assert look(refused) == look(refused) == "refused login: no. Check the password."
        look(None)
        node.agent._login.hear(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: no"))
        assert look(silent).startswith("refused login: SASL authentication error: no. Check the user in the URL, its")
        assert look(silent) == look(KafkaAway("another reason"))
        assert look(None) == ""
    finally:
        node.close()
    assert [event.rpartition("_")[2] for event, _ in told] == ["away", "away", "back", "away", "back"]
    assert ["Check Kafka." in text for _, text in told] == [True, False, False, False, False]
    assert ["password" in text for _, text in told] == [False, True, False, True, False]
