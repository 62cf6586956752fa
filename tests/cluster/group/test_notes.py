"""What nodes and operators leave for each other, and what it means for a node of the same name."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from group_world import POLICY
from hypothesis import given
from hypothesis import strategies as some

from holdfast.cluster.agent import AgentSettings
from holdfast.cluster.group.agent import _GroupAgent
from holdfast.cluster.group.members import GroupMember, ReportedClaim
from holdfast.cluster.group.notes import (
    Notes,
    decline_note,
    drain_note,
    forget_note,
    move_note,
    release_note,
    report_note,
    resume_note,
)
from holdfast.cluster.lease_policy import LONGEST_LEASE
from holdfast.cluster.rows import Report
from holdfast.cluster.trust import Trust


def member(name: str, since: float = 1.5) -> GroupMember:
    return GroupMember(f"{name}-{since}", name, f"http://{name}/", since)


def told(**unreachable: str) -> Notes:
    """Nodes, each with those that it cannot reach."""
    return Notes(
        dict(
            report_note(name, 1.5, Report(unreachable=dict.fromkeys(others, "refused")))
            for name, others in unreachable.items()
        )
    )


def longest(notes: Notes, *others: str) -> float:
    """The longest lease as a node counts it that has not read its own report, with these other nodes in the group."""
    return notes.longest_lease([member("me"), *map(member, others)], ("me", 1.5))


def test_a_report_counts_until_the_node_leaves_or_starts_again() -> None:
    report = Report((0, 2), {1: "no space"}, {"b": "refused"})
    notes = Notes(dict([report_note("a", 1.5, report)]))
    assert notes.report_of(member("a")) == report
    assert notes.report_of(member("a", 2.5)) == notes.report_of(member("b")) == Report()
    notes.read([forget_note("a")])
    assert notes.report_of(member("a")) == Report()


def test_the_last_claim_of_a_log_is_known_when_the_next_process_of_that_name_reports() -> None:
    notes = Notes()
    notes.read([report_note("a", 1.5, Report(lease=30.0, hold=2.5, claims={0: 7, 1: 4}))])
    notes.read([report_note("b", 1.5, Report(lease=6.0, hold=0.5, claims={0: 6, 1: 5}))])
    assert longest(notes, "a", "b") == 30.0
    notes.read([report_note("a", 2.5, Report(lease=6.0, hold=0.5)), forget_note("b")])
    assert notes.claims == {0: ReportedClaim(7, "a", 1.5, 30.0, 2.5), 1: ReportedClaim(5, "b", 1.5, 6.0, 0.5)}
    assert longest(notes) == 30.0
    notes.read([report_note("a", 2.5, Report(lease=6.0, hold=0.5, claims={0: 9}))])
    assert longest(notes) == 6.0


@pytest.mark.parametrize("lease", [30, 30.0])
def test_a_lease_counts_whether_or_not_it_is_written_as_a_whole_number(lease: float) -> None:
    notes = Notes(dict([report_note("a", 1.5, Report(lease=lease, hold=2.5))]))
    assert longest(notes, "a") == 30.0


def test_a_node_without_a_report_may_have_the_longest_lease() -> None:
    """Also the earlier process of a name, which stays in the group for a lease if it was killed."""
    notes = Notes(dict([report_note("a", 1.5, Report(lease=6.0, hold=0.5))]))
    assert (longest(notes), longest(notes, "a"), longest(notes, "a", "b")) == (6.0, 6.0, LONGEST_LEASE)
    assert notes.longest_lease([member("a", 0.5)], ("me", 1.5)) == LONGEST_LEASE


@pytest.mark.parametrize(
    "report",
    [
        Report(claims={0: 7}),
        Report(lease=6.0, hold=0.0, claims={0: 7}),
        Report(lease=6.0, hold=7.0, claims={0: 7}),
        Report(lease=1000.0, hold=500.0, claims={0: 7}),
        Report(lease=6.0, hold=0.5, claims={-1: 7, 64: 7}),
    ],
    ids=["an earlier version", "no hold", "more than the lease", "no lease", "no partition"],
)
def test_a_claim_of_a_node_with_unknown_times_does_not_count(report: Report) -> None:
    notes = Notes(dict([report_note("a", 1.5, report)]))
    assert notes.claims == {}
    assert longest(notes, "a") in (0.0, 6.0)


@pytest.mark.parametrize(
    ("change", "is_lacking"),
    [
        (report_note("a", 1.5, Report((1,))), False),
        (report_note("a", 2.5, Report()), True),
        (report_note("a", 0.5, Report()), False),  # the earlier node says its own again
        (forget_note("a"), True),
        (forget_note("b"), False),
        (drain_note("a", 1.5), False),
    ],
)
def test_a_node_finds_that_its_report_was_replaced(change: tuple[str, bytes | None], is_lacking: bool) -> None:
    notes = Notes(dict([report_note("a", 1.5, Report())]))
    notes.read([change])
    assert notes.lack_report("a", 1.5, [change]) == is_lacking


def test_a_drain_counts_until_a_resumption_or_a_new_start() -> None:
    notes = Notes()
    notes.read([drain_note("a", 1.5)])
    assert notes.is_drained("a", 1.5)
    assert not notes.is_drained("a", 2.5) and not notes.is_drained("b", 1.5)
    notes.read([resume_note("a")])
    assert not notes.is_drained("a", 1.5)


def test_a_partition_is_moved_until_it_is_released_or_moved_again() -> None:
    notes = Notes()
    notes.read([move_note(3, "a", 1.5)])
    assert notes.moved_to(3) == ("a", 1.5)
    notes.read([move_note(3, "b", 2.5)])
    assert (notes.moved_to(3), notes.moved_to(2)) == (("b", 2.5), None)
    notes.read([release_note(3)])
    assert notes.moved_to(3) is None


@given(
    some.lists(
        some.one_of(
            some.tuples(some.sampled_from([move_note, decline_note]), some.sampled_from("ab"), some.just(1.5)),
            some.just((release_note,)),
        )
    )
)
def test_a_node_that_declines_ends_only_its_own_moves(wishes: list[tuple[Any, ...]]) -> None:
    notes, expected, compacted = Notes(), None, dict[str, bytes | None]()
    for make, *which in wishes:
        key, value = make(3, *which)
        notes.read([(key, value)])
        compacted.pop(key, None)
        compacted[key] = value
        if make is move_note:
            expected = tuple(which)
        elif make is release_note or tuple(which) == expected:
            expected = None
        assert notes.moved_to(3) == expected
    later = Notes()
    later.read(compacted.items())
    assert later.moved_to(3) == expected, "who reads the topic later knows the same"


def test_a_node_that_has_not_read_all_notes_waits_as_for_the_longest_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    settings = AgentSettings(f"kafka://127.0.0.1:1/log?cache={tmp_path}", "b", "http://b", 2, POLICY)
    agent, found = _GroupAgent(settings, theirs, Trust(2), lambda *_, **__: None), list[float]()
    parts = [[report_note("a", 1.5, Report(lease=30.0, hold=2.5))], []]
    monkeypatch.setattr(agent._shared, "changes", lambda: parts.pop(0))
    monkeypatch.setattr(agent._membership, "noted", lambda *, longest_lease, **_: found.append(float(longest_lease)))
    for is_at_end in (False, True):
        agent._shared.is_at_end = is_at_end
        agent._read_notes(100.0)
    assert found == [LONGEST_LEASE, 30.0]
    ours.close()
    theirs.close()


@pytest.mark.parametrize("outcomes", [[True], [False, True], [False, False, True]])
def test_a_node_tells_that_it_declines_until_kafka_has_stored_that(
    outcomes: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    settings = AgentSettings(f"kafka://127.0.0.1:1/log?cache={tmp_path}", "a", "http://a", 2, POLICY)
    agent = _GroupAgent(settings, theirs, Trust(2), lambda *_, **__: None)
    told: list[tuple[str, bytes | None]] = []

    def say(key: str, value: bytes | None, then: Callable[[bool], None]) -> None:
        told.append((key, value))
        then(outcomes[len(told) - 1])

    monkeypatch.setattr(agent._shared, "changes", lambda: told[-1:] if told and outcomes[len(told) - 1] else [])
    monkeypatch.setattr(agent._shared, "say", say)
    agent._membership._declined.update((0, 1))
    for _ in range(2):  # it is moved here again after that, and cannot be started again
        agent._notes.read([move_note(0, "a", agent._since), move_note(1, "b", agent._since)])
        agent._membership._declined.add(0)
        for turn in range(5):
            agent._read_notes(100.0 + turn)
        assert told == [decline_note(0, "a", agent._since)] * len(outcomes)
        assert (agent._notes.moved_to(0), agent._notes.moved_to(1)) == (None, ("b", agent._since))
        told.clear()
    ours.close()
    theirs.close()


def test_nodes_that_report_without_following_moves_are_known() -> None:
    """A node that has not reported yet is not one of them: its version is unknown."""
    key, now = report_note("a", 1.5, Report())
    earlier = {name: value for name, value in json.loads(now).items() if name != "moves"}
    notes = Notes({key: now, "node/b": json.dumps(earlier).encode()})
    members = [member("a"), member("b"), member("c"), member("b", 2.5)]
    assert notes.without_moves(members) == ["b"]
    assert [notes.has_report(one) for one in members] == [True, True, False, False]


@pytest.mark.parametrize(
    ("unreachable", "cut_off"),
    [
        ({"a": "c", "b": "c", "c": ""}, "c"),
        ({"a": "c", "b": "", "c": ""}, ""),
        ({"a": "b", "b": ""}, "b"),
        ({"a": "b", "b": "a"}, ""),
        ({"a": "a"}, ""),
    ],
)
def test_a_node_is_cut_off_if_most_others_cannot_reach_it(unreachable: dict[str, str], cut_off: str) -> None:
    notes, members = told(**unreachable), [member(name) for name in unreachable]
    assert "".join(one.node for one in members if notes.is_cut_off(one.node, members)) == cut_off
    assert all(notes.cut_off_by(node, members) for node in cut_off)


@pytest.mark.parametrize(
    ("report", "has_room"),
    [(Report(), True), (Report(short="full"), False), (Report(failed={1: "no memory"}), False), (None, False)],
)
def test_only_a_node_that_reports_neither_a_full_disk_nor_failures_has_room(
    report: Report | None, has_room: bool
) -> None:
    notes = Notes(dict([] if report is None else [report_note("b", 1.5, report)]))
    assert notes.has_room_beside("a", [member("a"), member("b")]) == has_room


@pytest.mark.parametrize(
    "text", [b"", b"[", b"[" * 100_000, b"[]", b"{}", b'{"since": "x"}', b'{"since": 1.5, "failed": [1]}', b"\xff"]
)
def test_what_is_no_note_has_no_effect(text: bytes) -> None:
    notes = Notes({"node/a": text, "drain/b": text, "x": b'{"since": 1.5}', "": b"", "decline/": b'{"since": 1.5}'})
    assert notes.report_of(member("a")) == Report()
    notes.read([("drain/b", b"no")])
    assert not notes.is_drained("b", 1.5)
