"""Which partitions a node of a consumer group serves, in virtual time: nodes that are paused, killed and cut off, and a
coordinator that forgets silent members. At most one process may act on a partition, and in the end all are served.

Covers cluster/group/states.py, cluster/group/members.py, cluster/group/pictures.py and cluster/group/refusals.py.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from group_world import POLICY, STEP, Group
from growth import entries
from pin_world import Look, look_at_pins, search_pins
from worlds import each_world

from holdfast.cluster.agent import AgentSettings
from holdfast.cluster.group import membership as module
from holdfast.cluster.group.agent import _GroupAgent
from holdfast.cluster.group.members import GroupMember, GroupPicture, LogNote, Pin
from holdfast.cluster.group.membership import GroupMembership
from holdfast.cluster.group.pictures import client_id, member_of, pin_client_id, pin_of
from holdfast.cluster.group.states import GROUP_TABLE, GroupEvent, GroupState
from holdfast.cluster.rows import Report
from holdfast.cluster.trust import Trust


@each_world(12, 25)
def test_one_process_acts_on_a_partition_whatever_fails(seed: int) -> None:
    group = Group(seed)
    group.run(60.0, faults=True)
    group.calm()


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_one_process_acts_on_a_partition_in_many_more_groups(first: int) -> None:
    for seed in range(first, first + 100):
        group = Group(seed)
        group.run(120.0, faults=True)
        group.calm()


class TrustsForALease(GroupMembership):
    def trusted_until(self, partition: int) -> float:
        found = super().trusted_until(partition)
        return found + POLICY.lease if found else 0.0


class KeepsForALease(GroupMembership):
    """What the group wants back."""

    def _settle(self, partition: int, now: float) -> None:
        had = partition in self._keep_until
        super()._settle(partition, now)
        if not had and partition in self._keep_until and not self._member_of[partition]:
            self._keep_until[partition] += POLICY.lease


class OverlooksPins(GroupMembership):
    def looked(self, picture: GroupPicture, sent: float, now: float) -> None:
        own = tuple(one for one in picture.pins if one.node == self.node)
        super().looked(replace(picture, pins=own), sent, now)


class PinsWithoutEnd(GroupMembership):
    @property
    def pins(self) -> set[int]:
        return super().pins | {p for p, pin in self._pinned.items() if pin is not None and pin.node == self.node}


class ForgetsThatItHas(GroupMembership):
    """A partition that the group assigned is not taken up again when its pin is gone."""

    def _settle(self, partition: int, now: float) -> None:
        super()._settle(partition, now)
        if partition in self._pinned:
            self._held.pop(partition, None)


@pytest.mark.parametrize(
    "mistake",
    [
        TrustsForALease,
        KeepsForALease,
        PinsWithoutEnd,
        ForgetsThatItHas,
    ],
)
def test_a_mistake_is_noticed(mistake: type[GroupMembership]) -> None:
    def search() -> None:
        for seed in range(200):
            group = Group(seed, mistake)
            group.run(60.0, faults=True)
            group.calm()

    with pytest.raises(AssertionError):
        search()


@pytest.mark.parametrize("resigns", [False, True])
@pytest.mark.parametrize("seeds", [8, pytest.param(200, marks=pytest.mark.nightly)])
def test_one_node_acts_however_pins_come_and_go_between_looks(seeds: int, resigns: bool) -> None:
    search_pins(GroupMembership, seeds, resigns=resigns)


def test_a_moved_partition_is_without_a_node_for_less_than_the_time_to_keep_it() -> None:
    """Its owner keeps it until just before the pin counts."""

    def pinned(now: float, _: Mapping[str, Look]) -> Collection[Pin]:
        return [Pin("b-1", "b", 100.0, 0)] if now >= 105.0 else []

    found = look_at_pins(
        GroupMembership, 20.0, pinned, lambda _, now: Look(now + 2 * STEP, now + 2 * STEP, now + 2 * STEP)
    )
    first = next(now for now, acting in found if acting)
    acted = [acting for now, acting in found if now >= first]
    assert "".join(dict.fromkeys(acted)) == "ab"
    assert acted.count("") * STEP < POLICY.keep
    assert (acted.count("a"), acted.count("b")) > (POLICY.lease / STEP, POLICY.lease / STEP)


def test_a_worker_is_prepared_while_its_node_waits_and_looks_once_when_that_may_end() -> None:
    members = (GroupMember("x", "a", "http://a", 40.0, "", frozenset({0})), GroupMember("y", "b", "http://b", 41.0))
    pin, node = Pin("pin", "b", 41.0, 0), GroupMembership("b", "http://b", 1, POLICY, 41.0)
    node.looked(GroupPicture(members, True), 100.0, 100.0)
    assert not node.is_look_due(100.1)
    node.noted(is_drained=False, is_cut_off=False, now=100.1, moved=frozenset({0}))
    assert node.is_look_due(100.2), "its pin is about to come"
    node.looked(GroupPicture(members, True, (pin,)), 100.2, 100.3)
    node.log_noted(0, LogNote(7, False), 100.3)  # somebody may act by this claim
    assert node.is_look_due(100.35), "earlier looks say nothing about that"
    node.looked(GroupPicture(members, True, (pin,)), 100.35, 100.4)
    clear = 100.4 + POLICY.lease
    for now in (100.5, 102.0, 104.0, clear - 0.1):
        assert not node.is_look_due(now)
        node.looked(GroupPicture(members, True, (pin,)), now, now)
        assert (node.view.preparing, node.view.mine, node.trusted_until(0)) == ({0: 1}, {}, 0.0)
    assert node.is_look_due(clear + 0.1)
    node.looked(GroupPicture(members, True, (pin,)), clear + 0.1, clear + 0.2)
    assert node.vouched(0) == 7
    assert (node.view.preparing, node.view.mine, node.is_look_due(clear + 0.3)) == ({}, {0: 1}, False)


def test_a_worker_that_cannot_be_prepared_leaves_a_moved_partition_to_its_owner() -> None:
    members = (GroupMember("x", "a", "http://a", 40.0, "", frozenset({0})), GroupMember("y", "b", "http://b", 41.0))
    node = GroupMembership("b", "http://b", 1, POLICY, 41.0)
    node.looked(GroupPicture(members, True), 100.0, 100.0)
    node.noted(is_drained=False, is_cut_off=False, now=100.1, moved=frozenset({0}))
    node.looked(GroupPicture(members, True, (Pin("pin", "b", 41.0, 0),)), 100.2, 100.3)
    node.failed({0: "no space"}, 100.4)
    node.looked(GroupPicture(members, True), 100.5, 100.6)  # so the pin is given up
    assert (node.declined, node.pins, node.view.preparing, node.view.owners) == ({0}, set(), {}, {0: "a"})


def test_other_nodes_name_the_node_that_serves_until_the_next_one_does() -> None:
    members = (GroupMember("x", "a", "http://a", 40.0, "", frozenset({0})), GroupMember("y", "b", "http://b", 41.0))
    pin, node = Pin("pin", "b", 41.0, 0), GroupMembership("c", "http://c", 1, POLICY, 50.0)

    def named(pins: tuple[Pin, ...], *serving: str) -> str | None:
        node.noted(is_drained=False, is_cut_off=False, now=100.0, serving=frozenset((one, 0) for one in serving))
        node.looked(GroupPicture(members, True, pins), 100.0, 100.0)
        return node.view.owners.get(0)

    assert (named(()), named((), "a"), named((), "b"), named((), "gone")) == ("a", "a", "b", "a")
    assert (named((pin,)), named((pin,), "a"), named((pin,), "b"), named((pin,), "a", "b")) == ("b", "a", "b", "b")


@pytest.mark.parametrize("is_stable", [True, False])
@pytest.mark.parametrize("owned", [(), (0,)], ids=["no owner", "another owner"])
@pytest.mark.parametrize("pins", [(), ("b",), ("b", "c")], ids=["no pin", "a pin", "two pins"])
def test_a_node_that_serves_is_named_however_the_group_assigns_meanwhile(
    is_stable: bool, owned: tuple[int, ...], pins: tuple[str, ...]
) -> None:
    """As it drains: it has joined again as a member that gets no partitions, and the first one has left."""
    node, first = GroupMembership("c", "http://c", 1, POLICY, 50.0), frozenset({0})
    own = GroupMember("z", "c", "http://c", 50.0)
    before = GroupMember("x", "a", "http://a", 40.0, "", first), GroupMember("y", "b", "http://b", 41.0), own
    after = GroupMember("v", "a", "http://a", 40.0), GroupMember("y", "b", "http://b", 41.0, "", frozenset(owned)), own
    node.looked(GroupPicture(before, True), 100.0, 100.0)
    node.noted(is_drained=False, is_cut_off=False, now=100.0, serving=frozenset({("a", 0)}))
    kept = tuple(Pin(f"pin {one}", one, {"b": 41.0, "c": 50.0}[one], 0) for one in pins)
    node.looked(GroupPicture(after, is_stable, kept), 100.1, 100.1)
    assert node.view.owners == {0: "a"}


class ServesAPinAtOnce(GroupMembership):
    def _is_clear(self, partition: int) -> bool:
        return partition in self._sights


class OverlooksGaps(GroupMembership):
    def _see(self, partition: int, pin: str | None, sent: float, now: float) -> None:
        if (before := self._sights.get(partition)) is not None and before.pin == pin:
            self._sights[partition] = before.continued(sent, now)
        else:
            super()._see(partition, pin, sent, now)


class CountsFromTheQuestion(GroupMembership):
    def _see(self, partition: int, pin: str | None, sent: float, now: float) -> None:
        super()._see(partition, pin, sent, sent)


class WaitsForAHold(GroupMembership):
    """A pin counts as soon as none would."""

    def _is_clear(self, partition: int) -> bool:
        sight = self._sights.get(partition)
        return sight is not None and sight.sent > sight.since + self._policy.hold


class KeepsForAHoldMore(GroupMembership):
    def _see(self, partition: int, pin: str | None, sent: float, now: float) -> None:
        had = partition in self._keep_until
        super()._see(partition, pin, sent, now)
        if not had and partition in self._keep_until:
            self._keep_until[partition] += self._policy.hold


class KeepsFromTheAnswer(GroupMembership):
    def _see(self, partition: int, pin: str | None, sent: float, now: float) -> None:
        had = partition in self._keep_until
        super()._see(partition, pin, sent, now)
        if not had and partition in self._keep_until:
            self._keep_until[partition] = now + self._policy.lease


class KeepsWhatItHadNoRightToServe(GroupMembership):
    """Its looks had a gap in which a pin may have counted, and that pin's node may still act."""

    def _see(self, partition: int, pin: str | None, sent: float, now: float) -> None:
        before = self._sights.get(partition)
        super()._see(partition, pin, sent, now)
        if before is not None and before.pin == "" != pin and now < before.sent + self._policy.lease:
            self._keep_until[partition] = before.sent + self._policy.lease


class TakesTheFirstOfTwoPins(GroupMembership):
    def looked(self, picture: GroupPicture, sent: float, now: float) -> None:
        own = [one for one in picture.pins if one.node == self.node]
        super().looked(replace(picture, pins=tuple(own or picture.pins)), sent, now)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "mistake",
    [
        ServesAPinAtOnce,
        WaitsForAHold,
        OverlooksGaps,
        KeepsForAHoldMore,
        KeepsFromTheAnswer,
        *(
            pytest.param(one, marks=pytest.mark.nightly)  # many seconds until it shows
            for one in (CountsFromTheQuestion, KeepsWhatItHadNoRightToServe, TakesTheFirstOfTwoPins)
        ),
        OverlooksPins,
    ],
)
def test_a_mistake_with_pins_is_noticed(mistake: type[GroupMembership]) -> None:
    def search() -> None:
        search_pins(mistake, 300)

    with pytest.raises(AssertionError, match="act"):
        search()


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        ((GroupState.SERVED, GroupEvent.REVOKED), GroupState.SERVED),
    ],
)
def test_a_wrong_cell_is_noticed(
    cell: tuple[GroupState, GroupEvent], wrong: GroupState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GROUP_TABLE, cell, wrong)
    test_a_mistake_is_noticed(GroupMembership)


_GOT = ("assigned",)
_SERVED = ("assigned", "wait")


@pytest.mark.parametrize(
    ("events", "mine", "ending"),
    [
        ((), False, False),
        (("stopped",), False, False),
        (("lost",), False, False),
        (_GOT, False, False),
        ((*_GOT, "stopped", "wait"), True, False),
        ((*_GOT, "lost", "wait"), False, True),
        ((*_GOT, "lost", "stopped", "wait"), False, False),
        ((*_GOT, "failed"), False, False),
        ((*_GOT, "failed", "wait"), False, False),
        ((*_GOT, "failed", "wait", "wait"), True, False),
        (_SERVED, True, False),
        ((*_SERVED, "stopped"), True, False),
        ((*_SERVED, "claimed"), False, False),
        ((*_SERVED, "claimed", "wait"), True, False),
        ((*_SERVED, "failed"), False, False),
        ((*_SERVED, "failed", "wait", "wait"), True, False),
        ((*_SERVED, "lost", "failed"), False, False),
        ((*_SERVED, "lost"), False, True),
        ((*_SERVED, "lost", "lost"), False, True),
        ((*_SERVED, "lost", "stopped"), False, False),
        ((*_SERVED, "lost", "assigned", "wait"), False, True),
        ((*_SERVED, "lost", "assigned", "wait", "stopped", "wait"), True, False),
        ((*_SERVED, "lost", "assigned", "lost"), False, True),
    ],
)
def test_a_partition_has_a_worker_exactly_while_it_may(events: tuple[str, ...], mine: bool, ending: bool) -> None:
    membership = GroupMembership("a", "http://a", 1, POLICY, 0.0)
    me = GroupMember("me", "a", "http://a", 0.0, "", frozenset({0}))
    now, epoch = 100.0, 1
    for event in ("wait", *events):
        for _ in range(20 if event == "wait" else 1):
            now += POLICY.lease / 20
            membership.looked(GroupPicture((me,), True), now, now)
            if 0 in membership.view.preparing:
                membership.log_noted(0, LogNote(epoch, False), now)
        match event:
            case "assigned":
                membership.assigned([0], "me", now)
            case "wait":
                membership.pass_time(now)
            case "failed":
                membership.failed({0: "it is full"}, now)
            case "claimed":
                epoch += 1
                membership.log_noted(0, LogNote(epoch, False), now)
            case "lost":
                membership.lost([0], now)
            case _:
                membership.stopped([0])
    assert (0 in membership.view.mine, 0 in membership.ending) == (mine, ending)
    is_giving = events[2:] in (("lost",), ("lost", "lost"))
    assert membership.trusted_until(0) == (now + POLICY.hold if mine or is_giving else 0.0)


def test_an_agent_does_not_wait_for_workers_that_ended_before_it_heard_that_it_ends(tmp_path: Path) -> None:
    """It looks every 0.05 s. A worker may end within that."""
    ours, theirs = socket.socketpair()
    settings = AgentSettings(f"kafka://127.0.0.1:1/log?cache={tmp_path}", "a", "http://a", 1, POLICY)
    agent = _GroupAgent(settings, theirs, Trust(1), lambda *_, **__: None)
    membership = agent._membership
    membership.assigned([0], "me", 100.0)
    for step in range(20):
        now = 100.0 + step * POLICY.lease / 20
        membership.looked(GroupPicture((GroupMember("me", "a", "http://a", agent._since),), True), now, now)
        membership.log_noted(0, LogNote(1, False), now)
    assert membership.view.mine
    ours.sendall(b'{"end": true}\n{"stopped": [0]}\n')
    agent._listen()
    membership.give_all(now)
    assert (membership.ending, membership.view.mine) == (set(), {})
    ours.close()
    theirs.close()


def test_a_node_that_kafka_does_not_describe_has_trouble_as_long_as_it_may_not_act() -> None:
    membership = GroupMembership("a", "http://a", 1, POLICY, 0.0)
    me = GroupMember("me", "a", "http://a", 0.0, "", frozenset({0}))
    another = GroupMember("you", "b", "http://b", 1.0)
    assert not membership.trouble(100.0), "it has not joined yet"
    membership.assigned([0], "me", 100.0)
    for look in range(9):
        sent = 110.0 - POLICY.keep * (8 - look) / 4
        membership.looked(GroupPicture((me, another), True), sent, sent)
        membership.log_noted(0, LogNote(1, True), sent)
    membership.pass_time(110.0)
    for now in (110.0, 110.0 + POLICY.hold, 110.1 + POLICY.hold, 200.0):
        assert bool(membership.trouble(now)) == (now > membership.trusted_until(0))
    membership.lost([0], 200.0, is_removed=True)
    membership.looked(GroupPicture((another,), True), 200.0, 200.1)
    assert "removed" in membership.trouble(200.1)
    membership.looked(GroupPicture((me, another), False), 201.0, 201.1)
    assert not membership.trouble(201.1)


def test_those_events_visit_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Visited(GROUP_TABLE)
    monkeypatch.setattr(module, "GROUP_TABLE", table)
    (marker,) = test_a_partition_has_a_worker_exactly_while_it_may.pytestmark  # type: ignore[attr-defined]
    for events, mine, ending in marker.args[1]:
        test_a_partition_has_a_worker_exactly_while_it_may(events, mine, ending)
    assert not table.missing


class Visited(dict[Any, Any]):
    """A table that knows which of its cells were used."""

    def __init__(self, table: dict[Any, Any]) -> None:
        super().__init__(table)
        self.missing = set(table)

    def get(self, key: Any, default: Any = None) -> Any:
        self.missing.discard(key)
        return super().get(key, default)


# --- what a node refuses ---------------------------------------------------------------------------------------------


def looks(*members: GroupMember, later: float = 0.0) -> GroupMembership:
    membership = GroupMembership("a", "http://a", 1, POLICY, 50.0, "mark")
    membership.assigned([0], "me", 99.0)
    me = GroupMember("me", "a", "http://a", 50.0, "mark")
    for step in range(int(later) + 1):
        now = 100.0 + step
        membership.looked(GroupPicture((me, *members), True), now, now)
    return membership


def test_a_node_with_another_secret_than_an_earlier_one_is_refused() -> None:
    earlier = GroupMember("x", "b", "http://b", 40.0, "other", frozenset({0}))
    later = GroupMember("y", "c", "http://c", 60.0, "other")
    refusal = looks(earlier).refusal
    assert refusal is not None and "another secret" in refusal.message
    assert looks(later).refusal is None


def test_a_name_that_is_used_twice_is_refused_once_its_earlier_process_must_be_gone() -> None:
    same = GroupMember("x", "a", "http://other", 40.0, "mark")
    assert looks(same).refusal is None
    refusal = looks(same, later=3 * POLICY.lease).refusal
    assert refusal is not None and "named 'a'" in refusal.message


def test_a_node_that_joined_again_is_not_another_one_of_its_name() -> None:
    """Its earlier member, or the next one without partitions, is still in the group."""
    since = float(client_id("a", "http://a", 50.0, "mark").split()[3])
    assert looks(GroupMember("earlier", "a", "http://a", since, "mark"), later=3 * POLICY.lease).refusal is None


def test_others_are_found_where_they_listen_and_the_latest_of_a_name_counts() -> None:
    dead = GroupMember("x", "b", "http://old", 40.0, "mark", frozenset({0}))
    new = GroupMember("y", "b", "http://new", 60.0, "mark")
    view = looks(dead, new).view
    assert view.nodes == {"a": "http://a", "b": "http://new"}


def test_a_partition_that_was_moved_here_and_cannot_be_served_is_declined() -> None:
    membership, now = GroupMembership("a", "http://a", 1, POLICY, 50.0), 100.0
    members = (GroupMember("me", "a", "http://a", 50.0), GroupMember("x", "b", "http://b", 40.0, "", frozenset({0})))

    def look(*pins: Pin) -> None:
        nonlocal now
        for _ in range(20):
            now += POLICY.lease / 10
            membership.noted(is_drained=False, is_cut_off=False, now=now, moved=frozenset({0}))
            membership.looked(GroupPicture(members, True, pins), now, now)
            membership.log_noted(0, LogNote(1, False), now)

    look()
    assert (membership.pins, membership.view.owners) == ({0}, {0: "b"})
    look(Pin("pin", "a", 50.0, 0), Pin("other", "b", 40.0, 0))
    assert (membership.view.mine, membership.view.owners) == ({}, {})
    look(Pin("pin", "a", 50.0, 0))
    assert (list(membership.view.mine), membership.view.owners) == ([0], {0: "a"})
    membership.failed({0: "no space"}, now)
    assert (membership.pins, membership.declined, membership.view.mine) == (set(), {0}, {})
    look()
    assert membership.view.owners == {0: "b"}
    membership.noted(is_drained=False, is_cut_off=False, now=now)
    look()
    assert membership.pins == {0}  # it was moved here anew


def test_a_node_that_is_drained_or_cut_off_for_a_lease_wants_no_partitions() -> None:
    membership = looks()
    wants = []
    for is_drained, is_cut_off, now in [
        (False, False, 100.0),
        (True, False, 101.0),
        (False, True, 102.0),
        (False, True, 102.0 + POLICY.lease),
        (False, True, 103.0 + POLICY.lease),
        (False, False, 104.0 + POLICY.lease),
        (False, True, 105.0 + POLICY.lease),
    ]:
        membership.noted(is_drained=is_drained, is_cut_off=is_cut_off, now=now)
        wants.append(membership.wants_partitions)
        assert membership.view.is_draining is not membership.wants_partitions
    assert wants == [True, False, True, True, False, True, True]


def test_a_node_reports_why_a_worker_failed_until_it_serves_or_the_partition_is_gone() -> None:
    membership = looks(later=POLICY.lease)
    membership.failed({0: "no space"}, 200.0)
    times = {"lease": POLICY.lease, "hold": POLICY.hold}
    assert membership.report == Report((), {0: "no space"}, **times)
    membership.serves([0], {"b": "refused"})
    assert membership.report == Report((0,), {}, {"b": "refused"}, **times)
    membership.pass_time(300.0)
    membership.failed({0: "no space"}, 300.0)
    membership.lost([0], 300.0)
    membership.serves([], {})
    assert membership.report == Report(ending=(0,), **times)
    membership.stopped([0])
    assert membership.report == Report(**times)


def test_a_member_is_read_as_it_describes_itself() -> None:
    own = client_id("a", "http://a:1", 5.5, "mark")
    assert member_of("x", own, frozenset({1})) == GroupMember("x", "a", "http://a:1", 5.5, "mark", frozenset({1}))
    assert member_of("x", own.replace("5.5", "soon"), frozenset()) is None
    assert member_of("x", "rdkafka", frozenset()) is None
    pin = pin_client_id("a", 5.5, 3)
    assert pin_of("x", pin) == Pin("x", "a", 5.5, 3)
    assert pin_of("x", pin + "x") is pin_of("x", own) is member_of("x", pin, frozenset()) is None


def test_what_a_node_remembers_does_not_grow_with_the_times_that_it_joins() -> None:
    node, counts, now = GroupMembership("a", "http://a", 4, POLICY, 100.0), [], 100.0
    for joined in range(1, 41):
        member = f"a-{joined}"
        node.assigned(range(4), member, now)
        found = GroupMember(member, "a", "http://a", 100.0, "", frozenset(range(4)))
        for _ in range(3):
            now += POLICY.hold
            node.looked(GroupPicture((found,), True), now, now)
        node.lost(range(4), now, is_removed=True)
        node.stopped(range(4))
        counts.append(entries(node))
    assert counts[-1] == counts[20]
