"""Nodes whose disks fill up: when a node counts as short of space, and what a whole cluster does about it, in virtual
time, with the notes that the nodes exchange.

Covers cluster/group/cache_disk.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from group_world import PARTITIONS, POLICY, Group, Process
from hypothesis import given
from hypothesis import strategies as some

from holdfast.cluster.group.cache_disk import INTERVAL, LONGEST_PAUSE, CacheDisk
from holdfast.cluster.group.membership import GroupMembership
from holdfast.cluster.group.notes import Notes, report_note
from holdfast.store.directory import DirectoryLock
from holdfast.store.kafka import cache

MB = 1 << 20
NOTE_SECONDS = 1.0
"""Seconds from the writing of a note until all nodes have read it."""


class Disk(CacheDisk):
    """A disk with as much free space as the test says."""

    def __init__(self, pause: float = POLICY.lease) -> None:
        super().__init__(Path("/disk"), pause)
        self.free = 1000 * MB
        self.is_broken = False

    def _begin(self, examine: Callable[[], None]) -> None:
        examine()

    def _free(self) -> int:
        return self.free

    def _probe(self) -> str:
        return "it is broken" if self.is_broken else ""


# --- one disk --------------------------------------------------------------------------------------------------------


@given(some.lists(some.tuples(some.integers(0, 200), some.sampled_from([None, 0, 70, 130])), max_size=400))
def test_a_node_takes_part_only_with_room_and_ever_later_the_more_often_it_had_none(
    course: list[tuple[int, int | None]],
) -> None:
    disk, now, wanted, room_since = Disk(), 0.0, 0, 0.0
    pauses = []
    for free, said in course:
        now += INTERVAL
        before, disk.free = disk.why, free * MB
        wanted = wanted if said is None else said
        why = disk.look(now, None if said is None else said * MB, has_failed=False)
        if free < max(wanted, 32 if before else 16):
            assert why, "there is less than it needs"
            room_since = now + INTERVAL
        elif not before:
            assert not why, "nothing was wrong, and nothing is"
        if before and not why:
            pauses.append(now - room_since)
    assert pauses == sorted(pauses)
    assert all(pause >= min(LONGEST_PAUSE, POLICY.lease * 2**count) for count, pause in enumerate(pauses))


def test_a_disk_that_cannot_be_written_counts_as_full_although_much_is_free() -> None:
    disk = Disk()
    disk.is_broken = True
    assert disk.look(1.0, 0, has_failed=False) == ""
    assert disk.look(2.0, 0, has_failed=True) == "it is broken"
    assert disk.look(3.0, None, has_failed=False) == "it is broken", "its workers are gone, and the disk is as before"


def test_a_real_disk_is_short_while_a_file_fills_it(mount_disk: Callable[[int], Path]) -> None:
    place = mount_disk(96)
    disk, filler = CacheDisk(place, 2 * INTERVAL), place / "filler"
    disk._begin = lambda examine: examine()  # type: ignore[method-assign]
    assert disk.look(1.0, 0, has_failed=True) == ""
    filler.write_bytes(bytes(88 * MB))
    assert disk.look(2.0, 0, has_failed=False) == f"less than 32 MB are free for its cache at {place}"
    filler.unlink()
    whys = [disk.look(now, None, has_failed=False) for now in (3.0, 4.0, 5.0)]
    assert (bool(whys[0]), bool(whys[1]), whys[2]) == (True, True, "")
    assert [one.name for one in place.iterdir()] == []
    gone = CacheDisk(place / "none", 1.0)
    assert gone.look(1.0, None, has_failed=False).startswith(f"its cache at {place / 'none'} cannot be")


def test_what_workers_wanted_is_forgotten_when_a_shortage_is_over() -> None:
    disk = Disk(INTERVAL)
    disk.free = 20 * MB
    assert disk.look(1.0, 150 * MB, has_failed=False).startswith("less than 150 MB")
    disk.free = 160 * MB
    assert [bool(disk.look(now, None, has_failed=False)) for now in (2.0, 3.0)] == [True, False]
    disk.free = 15 * MB
    assert disk.look(4.0, None, has_failed=False).startswith("less than 32 MB")
    disk.free = 40 * MB
    assert [bool(disk.look(now, None, has_failed=False)) for now in (5.0, 6.0, 7.0)] == [True, True, False]


def test_a_disk_that_does_not_answer_delays_nothing() -> None:
    class Hanging(Disk):
        _begin = CacheDisk._begin

        def _free(self) -> int:
            if self.free:
                return self.free
            asked.release()
            assert answered.wait(60)
            return 0

    asked, answered, disk = threading.Semaphore(0), threading.Event(), Hanging()
    assert disk.look(1.0, 0, has_failed=False) == ""
    disk.free = 0
    assert [disk.look(now, 0, has_failed=True) for now in (2.0, 3.0, 4.0)] == ["", "", ""]
    assert asked.acquire(timeout=60)
    assert not asked.acquire(blocking=False), "one thread waits for it"
    answered.set()
    until = time.monotonic() + 60
    while not disk.look(4.5, 0, has_failed=False):
        assert time.monotonic() < until
    assert disk.why.startswith("less than 32 MB")


def test_caches_that_nobody_has_open_are_emptied_after_long_without_room(tmp_path: Path) -> None:
    disk, logs = Disk(), {}
    for name in ("closed", "open", "another"):
        place = tmp_path / name
        DirectoryLock(place).release()
        cache.mark(place, {"topic": name})
        (place / "db").mkdir()
        (place / "db" / "file").write_bytes(bytes(1000))
        logs[place] = {"topic": name if name != "another" else "mine"}
    lock = DirectoryLock(tmp_path / "open")

    def look(now: float, free: int) -> set[str]:
        disk.free = free * MB
        disk.look(now, None, has_failed=False, closed=lambda: logs)
        return {place.name for place in logs if (place / "db").exists()}

    everything = {"closed", "open", "another"}
    assert [look(*each) for each in ((1.0, 1000), (2.0, 0), (3.0, 1000), (4.0, 0))] == [everything] * 4
    assert look(3.0 + LONGEST_PAUSE, 0) == everything
    assert disk.emptied == {}
    assert look(4.0 + LONGEST_PAUSE, 0) == {"open", "another"}
    assert disk.emptied == {tmp_path / "closed": 1000}
    lock.release()
    assert look(5.0 + LONGEST_PAUSE, 0) == {"another"}, "it belongs to another log"
    assert disk.emptied == {tmp_path / "open": 1000}
    assert look(6.0 + LONGEST_PAUSE, 0) == {"another"} and disk.emptied == {}


def test_a_node_makes_way_later_each_time_that_the_others_could_not_help() -> None:
    disk = Disk()
    assert not disk.makes_way(0.0, None), "it has room"
    disk.free = 0
    disk.look(1.0, 0, has_failed=False)
    assert disk.makes_way(1.0, None) and disk.makes_way(1.1, True), "it had no partitions yet, and takes none"
    now, waited = 2.0, []
    for _ in range(9):
        assert not disk.makes_way(now, False)
        began = now
        while not disk.makes_way(now, True):
            now += INTERVAL
        waited.append(now - began)
    assert waited == [min(LONGEST_PAUSE, 3 * INTERVAL * 2**count) for count in range(1, 10)]
    disk.free = 1000 * MB
    while disk.look(now, None, has_failed=False):
        now += INTERVAL
    assert not disk.makes_way(now, True)
    disk.free = 0
    disk.look(now + INTERVAL, 0, has_failed=False)
    assert [disk.makes_way(now + seconds, True) for seconds in (1, 3, 4)] == [False, False, True]


# --- a cluster -------------------------------------------------------------------------------------------------------


class Disks(Group):
    """A group of nodes whose disks fill up and get room again. They exchange reports, as real agents do."""

    def __init__(self, seed: int, membership: type[GroupMembership] = GroupMembership) -> None:
        self.notes = Notes()
        self.said: list[tuple[float, tuple[str, bytes]]] = []
        """The notes that are on their way, and when they were written."""
        self.disks: dict[Process, Disk] = {}
        self.idle: set[str] = set()
        """Members that get no partitions."""
        super().__init__(seed, membership)

    def start(self, node: str) -> Process:
        process = super().start(node)
        self.disks[process] = next((disk for one, disk in self.disks.items() if one.node == node), Disk())
        return process

    def fault(self) -> None:
        if self.random.random() < 0.5:
            self.disks[self.random.choice(self.processes)].free = self.random.choice([0, 24, 1000]) * MB
        else:
            super().fault()

    def note(self, process: Process, moved: frozenset[int]) -> None:
        membership = process.membership
        short = self.disks[process].look(self.now, None, has_failed=False)
        while self.said and self.said[0][0] + NOTE_SECONDS <= self.now:
            self.notes.read([self.said.pop(0)[1]])
        members = membership.members
        beside = self.notes.has_room_beside(process.node, members) if members else None
        membership.noted(
            is_drained=False,
            is_cut_off=False,
            now=self.now,
            moved=moved,
            short=short,
            resigning=self.notes.resigning(members),
            prepared=frozenset((one.node, p) for one in members for p in self.notes.report_of(one).prepared),
            makes_way=self.disks[process].makes_way(self.now, beside),
        )
        self.said.append((self.now, report_note(process.node, process.since, membership.report)))

    def turn(self, process: Process) -> None:
        is_able = max(process.cut_until, process.mute_until) <= self.now and not process.is_leaving
        if is_able and process.membership.wants_partitions == (process.member in self.idle):
            self.members.pop(process.member, None)
            self.owners = {p: member for p, member in self.owners.items() if member != process.member}
            process.owned, process.revoking = set(), set()
            process.membership.give_all(self.now)
            self.join(process)
        super().turn(process)

    def join(self, process: Process) -> None:
        super().join(process)
        if not process.membership.wants_partitions:
            self.idle.add(process.member)

    def coordinate(self) -> None:
        idle = {member: one for member, one in self.members.items() if member in self.idle}
        self.members = {member: one for member, one in self.members.items() if member not in idle}
        super().coordinate()
        self.members |= {
            member: one for member, one in idle.items() if one.heard + POLICY.lease > self.now and one.member == member
        }

    def is_placed(self, partition: int) -> bool:
        """Whether a partition is served, by a node with room if there is one."""
        acting = self.acting(partition)
        living = [one for one in self.processes if not one.is_dead]
        roomy = [one for one in living if not self.disks[one].why]
        return bool(acting) and (not roomy or acting[0] in roomy)

    def places(self) -> list[str]:
        """Return the node of each partition, also while a slow look lets it not act for a moment."""
        return ["".join(one.node for one in self.processes if p in one.membership.view.mine) for p in range(PARTITIONS)]


@pytest.mark.parametrize("seed", range(4))
def test_nodes_with_room_serve_all_partitions_and_at_most_one_acts(seed: int) -> None:
    search(GroupMembership, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 1400, 20))
def test_nodes_with_room_serve_in_many_more_clusters(first: int) -> None:
    for seed in range(first, first + 20):
        search(GroupMembership, seed)


def search(kind: type[GroupMembership], seed: int) -> None:
    group = Disks(seed, kind)
    group.run(60.0, faults=True)
    group.wishes.clear()
    if seed % 3 == 0:
        for disk in group.disks.values():
            disk.free = 10 * MB
    group.run(2 * POLICY.lease, faults=False)
    group.calm()


@pytest.mark.parametrize(
    "room", [{"a"}, {"b", "c"}, set(), {"a", "b", "c"}], ids=lambda room: "".join(sorted(room)) or "-"
)
def test_partitions_stay_where_they_are_once_each_node_knows_who_has_room(room: set[str]) -> None:
    group = Disks(1)
    group.run(8 * POLICY.lease, faults=False)
    for process, disk in group.disks.items():
        disk.free = (1000 if process.node in room else 10) * MB
    group.run(8 * POLICY.lease, faults=False)
    before = group.places()
    assert {*before} == (room or {"a", "b", "c"})
    for _ in range(40):
        group.run(1.0, faults=False)
        assert group.places() == before
    for disk in group.disks.values():
        disk.free = 1000 * MB
    group.run(12 * POLICY.lease, faults=False)
    assert {*group.places()} == {"a", "b", "c"}


@pytest.mark.parametrize("seed", range(4))
def test_nodes_that_share_one_disk_all_keep_their_partitions(seed: int) -> None:
    group = Disks(seed)
    group.run(8 * POLICY.lease, faults=False)
    before = group.places()
    for disk in group.disks.values():
        disk.free = 10 * MB
    for _ in range(40):
        group.run(1.0, faults=False)
        assert (group.places(), group.idle) == (before, set())


class KeepsWhatItHas(GroupMembership):
    """As nodes did that did not look at their disks."""

    wants_partitions = property(lambda self: True)


class MakesWayForNobody(GroupMembership):
    """A node without room gives its partitions away although no other one has room."""

    wants_partitions = property(lambda self: not self._short)


@pytest.mark.parametrize("mistake", [KeepsWhatItHas, MakesWayForNobody])
def test_a_mistake_with_full_disks_is_noticed(mistake: type[GroupMembership]) -> None:
    def all_seeds() -> None:
        for seed in range(40):
            search(mistake, seed)

    with pytest.raises(AssertionError):
        all_seeds()
