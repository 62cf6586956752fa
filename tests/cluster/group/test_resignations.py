"""A node whose worker has ended resigns in the log of the partition, and the next node claims it at once. Worlds in
virtual time: claims and resignations come late or never, and nodes of an earlier version claim without them.
"""

from __future__ import annotations

import pytest
from group_world import POLICY, ForgetsHandlers, Group, Log, OlderMembership, Process
from pin_world import Look, look_at_pins
from worlds import each_world

from holdfast.cluster.group.members import GroupMember, GroupPicture, LogNote, Pin
from holdfast.cluster.group.membership import GroupMembership
from holdfast.cluster.group.states import GROUP_TABLE, GroupEvent, GroupState


@each_world(8, 25)
def test_one_process_acts_on_a_partition_among_nodes_of_two_versions(seed: int) -> None:
    group = Group(seed, older=OlderMembership)
    group.run(60.0, faults=True)
    group.calm()


def test_an_older_process_of_a_gone_author_may_still_act() -> None:
    """The author's next process, of a version that knows no resignations, got the partition and was removed."""
    group = Group(1317, older=OlderMembership)
    group.run(120.0, faults=True)
    group.calm()


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_one_process_acts_in_many_more_groups_of_two_versions(first: int) -> None:
    for seed in range(first, first + 100):
        group = Group(seed, older=OlderMembership)
        group.run(120.0, faults=True)
        group.calm()


def test_nodes_follow_resignations_unless_one_of_them_does_not_know_them() -> None:
    found = []
    for older in (None, OlderMembership):
        group = Group(1, older=older)
        group.processes = [group.start(node) for node in "abc"]
        for process in group.processes:
            process.is_older = older is not None and process.node == "c"
        group.members = {one.member: one for one in group.processes}
        group.run(60.0, faults=False)
        found.append(group.on_the_word)
    assert found[0] > 0 == found[1]


class FollowsBesideOlderNodes(ForgetsHandlers):
    def follows_until(self, partition: int) -> float:
        self._alike_since = -1000.0
        return super().follows_until(partition)


class ResignsBeforeTheWorkerEnded(Group):
    def work(self, process: Process) -> None:
        for partition in process.membership.ending:
            self.resign(process, partition)
        super().work(process)


class FollowsAnEarlierResignation(Group):
    """Of an earlier incarnation of the owner: the log counts as free, although it was claimed since."""

    def last_claim(self, partition: int) -> tuple[int, bool]:
        epoch, is_free = super().last_claim(partition)
        return epoch, is_free or epoch > 2


class CountsLateResignations(Group):
    """A resignation counts although its node no longer had the log."""

    def resigned(self, partition: int, epoch: int) -> None:
        self.logs[partition] = Log(self.logs[partition].epoch + 1)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("mistake", "first"),
    [
        (FollowsBesideOlderNodes, 222),
        (ResignsBeforeTheWorkerEnded, 10),
        (FollowsAnEarlierResignation, 0),
        (CountsLateResignations, 16),
    ],
)
def test_a_mistake_with_resignations_is_noticed(mistake: type[GroupMembership] | type[Group], first: int) -> None:
    def search() -> None:
        for seed in range(first, first + 300):  # the first one notices it, unless the worlds have changed
            older = OlderMembership if mistake is FollowsBesideOlderNodes else None
            group = mistake(seed) if issubclass(mistake, Group) else Group(seed, mistake, older)
            group.run(60.0, faults=True)

    with pytest.raises(AssertionError, match="act"):
        search()


def test_a_moved_partition_changes_its_node_when_the_next_one_is_prepared() -> None:
    """Looks take two steps, and everything else one: so a move takes a few steps, and no lease."""

    def pinned(now: float, _: object) -> list[Pin]:
        return [Pin("b-1", "b", 100.0, 0)] if now >= 110.0 else []

    found = look_at_pins(
        GroupMembership, 20.0, pinned, lambda _, now: Look(now + 0.1, now + 0.1, now + 0.1), resigns=True
    )
    first = next(now for now, acting in found if acting == "b")
    without = [now for now, acting in found if now >= 110.0 and not acting]
    assert first < 110.0 + POLICY.hold
    assert len(without) <= 2
    assert all(acting == "b" for now, acting in found if now >= first)


def test_a_node_may_claim_a_free_log_only_while_the_partition_is_its_own() -> None:
    node, known = GroupMembership("a", "http://a", 1, POLICY, 40.0), frozenset({("a", 40.0)})
    me = GroupMember("me", "a", "http://a", 40.0, "", frozenset({0}))

    def look(now: float, *members: GroupMember, pins: tuple[Pin, ...] = ()) -> float:
        node.noted(is_drained=False, is_cut_off=False, now=now, resigning=known)
        node.looked(GroupPicture(members, True, pins), now, now)
        return node.follows_until(0)

    assert look(100.0, me) == 0.0
    node.assigned([0], "me", 100.0)
    assert look(101.0, me) == 0.0, "a node of an earlier version may have been there"
    assert look(102.0, me) == 102.0 + POLICY.hold
    assert look(103.0, me, GroupMember("x", "b", "http://b", 41.0)) == 0.0, "it may be of an earlier version"
    assert look(104.0, me) == 0.0
    assert look(106.0, me) == 106.0 + POLICY.hold
    assert (node.report.prepared, node.trusted_until(0)) == ((), 0.0)
    node.log_noted(0, LogNote(4, True), 106.0)
    assert node.report.prepared == (0,)
    node.log_noted(0, LogNote(4, True, 5), 106.1)  # its worker has claimed it
    assert (list(node.view.mine), node.trusted_until(0)) == ([0], 106.0 + POLICY.hold)


def test_a_claim_from_before_a_node_lost_and_got_a_partition_again_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A paused node has claimed the log, and wakes when another one serves. It gets the partition again at once."""
    me = GroupMember("me", "a", "http://a", 40.0, "", frozenset({0}))

    def trusted() -> float:
        node = GroupMembership("a", "http://a", 1, POLICY, 40.0)
        node.assigned([0], "me", 100.0)
        node.looked(GroupPicture((me,), True), 100.1, 100.1)
        node.lost([0], 100.2)
        node.assigned([0], "me", 100.3)
        found = []
        for now in (100.4, 100.5):
            node.looked(GroupPicture((me,), True), now, now)
            node.log_noted(0, LogNote(6, False, 5), now)
            node.stopped(node.ending)
            found.append(node.trusted_until(0))
        return max(found)

    assert trusted() == 0.0
    monkeypatch.setitem(GROUP_TABLE, (GroupState.WAITING, GroupEvent.REVOKED), GroupState.ELSEWHERE)
    assert trusted() > 0.0, "the mistake is noticed"


def move_busy_workers(kind: type[GroupMembership], seeds: int) -> None:
    for seed in range(seeds):
        group = Group(seed, kind)
        group.run(20.0, faults=False)
        group.move_busy_workers(60.0)
        group.calm()


@pytest.mark.parametrize("seeds", [5, pytest.param(200, marks=pytest.mark.nightly)])
def test_no_two_workers_handle_messages_of_a_partition_that_is_moved(seeds: int) -> None:
    move_busy_workers(GroupMembership, seeds)


def test_a_next_node_that_does_not_wait_for_running_handlers_is_noticed() -> None:
    with pytest.raises(AssertionError, match="handle messages"):
        move_busy_workers(ForgetsHandlers, 30)
