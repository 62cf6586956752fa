"""The link between a node's supervisor and its agent."""

from __future__ import annotations

import json
import os
import select
import socket

import pytest

from holdfast.cluster.trust import Trust, trust_clock
from holdfast.cluster.view import View
from holdfast.endpoint.workers.agent_link import MOST_BYTES, AgentEnded, AgentLink, urls_of_others

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="agents are forked")

VIEW = View("a", {0: 7}, {0: "a", 1: "b", 2: "c"}, {"a": "http://a:1", "b": "http://b:1"})


def line(view: View) -> bytes:
    return json.dumps({"view": view.to_json()}).encode() + b"\n"


def linked() -> tuple[AgentLink, socket.socket]:
    ours, theirs = socket.socketpair()
    return AgentLink(0, ours, Trust(2)), theirs


def test_views_come_in_their_order_and_a_part_of_one_does_not() -> None:
    link, agent = linked()
    assert link.read() == []
    other = View("a", {}, {}, {}, is_draining=True)
    agent.sendall(line(VIEW) + line(other)[:20])
    assert link.read() == [VIEW]
    assert link.read() == []
    agent.sendall(line(other)[20:] + line(VIEW) + line(other))
    assert link.read() == [other, VIEW, other]
    agent.close()
    link.close()


def test_the_agent_hears_which_workers_have_stopped_and_that_the_node_ends() -> None:
    link, agent = linked()
    link.stopped(1)
    link.failed(0, "no module named x")
    link.report((1, 3), {"b": "refused"}, {"routes": "1"})
    link.end()
    heard = [json.loads(one) for one in agent.recv(4096).splitlines()]
    serving = {"serving": [1, 3], "unreachable": {"b": "refused"}, "tables": {"routes": "1"}}
    assert heard == [{"stopped": [1]}, {"failed": {"0": "no module named x"}}, serving, {"end": True}]
    agent.close()
    link.stopped(2)  # it has ended, which is no error
    with pytest.raises(AgentEnded, match="has ended"):
        link.read()
    link.close()


def test_a_refusal_says_why_and_what_to_do() -> None:
    link, agent = linked()
    refused = {"problem": "another node has the name a", "remedy": "Set HOLDFAST_NODE."}
    agent.sendall(line(VIEW) + json.dumps({"refused": refused}).encode() + b"\n")
    agent.close()
    with pytest.raises(AgentEnded, match="another node has the name a") as caught:
        link.read()
    assert caught.value.remedy == "Set HOLDFAST_NODE."
    link.close()


def test_a_line_without_an_end_is_not_kept() -> None:
    link, agent = linked()
    agent.settimeout(60)
    for _ in range(MOST_BYTES // 4096):
        agent.sendall(b"x" * 4096)
        assert link.read() == []
    agent.sendall(b"x")
    with pytest.raises(AgentEnded):
        link.read()
    agent.close()
    link.close()


def test_an_agent_runs_until_its_supervisor_ends_and_its_trust_is_seen_here() -> None:
    trust = Trust(2)

    def run(theirs: socket.socket) -> None:
        trust.set(1, trust_clock() + 3600)
        theirs.sendall(line(VIEW))
        while theirs.recv(4096):
            pass

    link = AgentLink.start(run, trust)
    select.select([link], [], [], 60)
    assert link.read() == [VIEW]
    assert (trust.of(0).is_trusted(), trust.of(1).is_trusted()) == (False, True)
    link.trust.revoke()
    assert not trust.of(1).is_trusted()
    link.close()
    assert os.waitstatus_to_exitcode(os.waitpid(link.pid, 0)[1]) == 0


def test_an_agent_that_fails_ends_with_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def run(theirs: socket.socket) -> None:
        raise RuntimeError("it has no database")

    link = AgentLink.start(run, Trust(1))
    assert os.waitstatus_to_exitcode(os.waitpid(link.pid, 0)[1]) == 1
    with pytest.raises(AgentEnded):
        link.read()
    assert "it has no database" in capfd.readouterr().err
    link.close()


def test_partitions_of_other_live_nodes_have_their_urls() -> None:
    assert urls_of_others(VIEW) == {1: "http://b:1"}
