"""Who owns which partition, in virtual time: clusters with faults, and memberships with mistakes that must be noticed.

At every moment of every run, at most one process may act on a partition. After the faults, all partitions are served
and evenly shared. Covers cluster/rows.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fake_leases import Database
from lease_world import Broken, Process, World
from worlds import each_world

from holdfast.cluster import membership as module
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.membership import LOOK_TWICE, Membership
from holdfast.cluster.rows import (
    Answer,
    Claim,
    Declare,
    Enter,
    Entered,
    Join,
    Look,
    NodeRow,
    OwnershipRow,
    Picture,
    Release,
    Request,
)
from holdfast.cluster.states import (
    NODE_TABLE,
    PARTITION_TABLE,
    NodeState,
    PartitionEvent,
    PartitionState,
)


@each_world(30, 60)
def test_one_process_acts_on_a_partition_whatever_fails(seed: int) -> None:
    World(seed).run()


@each_world(15, 30)
def test_partitions_are_served_again_after_nodes_could_not_serve_or_be_reached(seed: int) -> None:
    World(seed, nodes=2 + seed % 4, partitions=1 + seed % 11, is_troubled=True).run()


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 5000, 200))
def test_one_process_acts_on_a_partition_in_many_more_worlds(first: int) -> None:
    for seed in range(first, first + 200):
        nodes, partitions = 2 + seed % 4, 1 + seed % 11
        lease, is_troubled = (1.0, 2.0, 6.0)[seed % 3], seed % 7 == 0
        World(seed, nodes=nodes, partitions=partitions, lease=lease, is_troubled=is_troubled).run(faults=12)


@each_world(10, 20)
def test_a_moved_partition_goes_to_its_node_stays_there_and_the_others_remain_even(seed: int) -> None:
    world = World(seed)
    world.losses = 0.0  # a node whose answer is lost for so long loses its lease, and with it what was moved there
    world.keep_started()
    world.calm()
    moved = {0: "node-0", 1: "node-0", 2: "node-0", 3: "node-1"}
    for partition, name in moved.items():
        world.move(partition, name)
    world.run_until(world.now + 10.0)
    for _ in range(20):
        world.run_until(world.now + 1.0)
        owners = [row.owner for row in world.database.ownership]
        assert {partition: owners[partition] for partition in moved} == moved
        assert sorted(Counter(owners).values()) == [1, 2, 3]


@each_world(10, 20)
def test_a_partition_moved_to_a_node_that_dies_is_served_by_another_one(seed: int) -> None:
    world = World(seed)
    world.keep_started()
    world.calm()
    dead = next(one for one in world.processes if one.name == "node-0")
    for partition in range(6):
        world.move(partition, "node-0")
    world.run_until(world.now + world.random.uniform(0, 3))
    world.crash(dead)
    seconds_until(world, all_served(world))
    assert {row.owner for row in world.database.ownership} <= {"node-1", "node-2"}
    world.keep_started()
    world.calm()


@each_world(10, 20)
def test_a_partition_waits_a_moment_at_most_for_a_node_that_does_not_claim_it(seed: int) -> None:
    world = World(seed, lease=60.0)
    world.losses = 0.0
    world.keep_started()
    world.calm()
    frozen = next(one for one in world.processes if one.name == "node-0")
    others = [row.partition for row in world.database.ownership if row.owner != "node-0"]
    frozen.is_frozen = True
    for partition in others:
        world.move(partition, "node-0")
    world.run_until(world.now + 15.0)
    assert sorted(world.served().values()) == [0, 2, 2]


# --- mistakes that the worlds must notice -------------------------------------------------------------------------


class TrustsFromTheAnswer(Membership):
    def answered(self, request: Request, answer: Answer, sent: float, now: float) -> None:
        super().answered(request, answer, now + 0.7 * self._policy.lease, now)


class TrustsAfterItsSessionEnded(Membership):
    def unanswered(self, now: float) -> None:
        trusted = self._trusted
        super().unanswered(now)
        self._trusted = trusted


class DeclaresAtTheFirstLook(Membership):
    def _find_dead(self, picture: Picture, sent: float, now: float) -> None:
        super()._find_dead(picture, sent, now)
        self._dead = [
            Declare(node.name, node.incarnation, node.lease_end)
            for node in picture.nodes
            if node.name != self.node and not node.has_lock
        ]


class JoinsAtOnce(Membership):
    def _entered(self, answer: Entered, now: float) -> None:
        super()._entered(Entered(answer.is_locked, False), now)


class ServesAfterItWasDeclaredDead(Membership):
    def _looked(self, request: Look, picture: Picture, sent: float, now: float) -> None:
        super()._looked(request, Picture(True, picture.may_declare, picture.nodes, picture.ownership), sent, now)

    def _compare(self, picture: Picture) -> None:
        pass


class ClaimsWhatIsOwned(Database):
    def is_free(self, row: OwnershipRow) -> bool:
        return True


class ClaimsForTheDead(Database):
    def claim(self, name: str, request: Claim) -> dict[int, int]:
        claimed = {}
        for partition in request.partitions[: request.most]:
            row = self.ownership[partition]
            self.ownership[partition] = OwnershipRow(partition, name, request.incarnation, row.epoch + 1)
            claimed[partition] = row.epoch + 1
        return claimed


class ReusesIncarnations(Database):
    def join(self, name: str, request: Join) -> int:
        self.joins = 0
        return super().join(name, request)


class DeclaresTheLiving(Database):
    def declare(self, request: Declare) -> bool:
        return self.nodes.pop(request.name, None) is not None


class ClaimsWithoutANewEpoch(Database):
    def claim(self, name: str, request: Claim) -> dict[int, int]:
        return {partition: epoch - 1 for partition, epoch in super().claim(name, request).items()}


def notice(seed: int, **options: Any) -> None:
    """Run the world that is known to notice a mistake; if it no longer does, look for another one."""

    def search() -> None:
        for one in (seed, *range(1000)):
            World(one, moves=0.0, **options).run()

    with pytest.raises(Broken):
        search()


@pytest.mark.parametrize(
    ("mistake", "seed"),
    [
        (TrustsFromTheAnswer, 2),
        (TrustsAfterItsSessionEnded, 152),
        (DeclaresAtTheFirstLook, 0),
        (JoinsAtOnce, 2198),
        (ServesAfterItWasDeclaredDead, 2),
    ],
)
def test_a_mistake_of_a_membership_is_noticed(mistake: type[Membership], seed: int) -> None:
    notice(seed, membership=mistake)


@pytest.mark.parametrize(
    ("mistake", "seed"),
    [
        (ClaimsWhatIsOwned, 0),
        (ClaimsForTheDead, 0),
        (ReusesIncarnations, 38),
        (DeclaresTheLiving, 56),
        (ClaimsWithoutANewEpoch, 0),
    ],
)
def test_a_mistake_of_the_database_is_noticed(mistake: type[Database], seed: int) -> None:
    notice(seed, database=mistake)


_P, _PE = PartitionState, PartitionEvent


@pytest.mark.parametrize(
    ("cell", "wrong", "seed"),
    [
        ((_P.SERVED, _PE.GIVE), _P.GIVEN, 0),  # released before its worker has ended
        ((_P.SERVED, _PE.TAKEN), _P.ELSEWHERE, 12),  # claimed again while its worker ends
        ((_P.SERVED, _PE.TAKEN), _P.SERVED, 0),  # served without a claim
        ((_P.GIVING, _PE.STOPPED), _P.GIVING, 0),  # never released
        ((_P.ELSEWHERE, _PE.FOUND), _P.ELSEWHERE, 67),  # a claim whose answer was lost is never released
    ],
)
def test_a_wrong_cell_is_noticed(
    cell: tuple[PartitionState, PartitionEvent], wrong: PartitionState, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTITION_TABLE, cell, wrong)
    notice(seed)


VISIT_ALL = (333, 109, 106, 101, 28, 25, 21, 10, 8, 5, 4)
"""Worlds that together visit every cell but those of an operator's second thoughts, and one that visits these."""


class Visited(dict[Any, Any]):
    """A table that knows which of its cells were used."""

    def __init__(self, table: dict[Any, Any]) -> None:
        super().__init__(table)
        self.missing = set(table)

    def get(self, key: Any, default: Any = None) -> Any:
        self.missing.discard(key)
        return super().get(key, default)


def test_the_worlds_visit_every_cell_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, partitions = Visited(NODE_TABLE), Visited(PARTITION_TABLE)
    monkeypatch.setattr(module, "NODE_TABLE", nodes)
    monkeypatch.setattr(module, "PARTITION_TABLE", partitions)
    World(0, is_troubled=True).run()
    for seed in (*VISIT_ALL, *range(1000)):
        World(seed).run()
        if not nodes.missing | partitions.missing:
            return
    assert not nodes.missing | partitions.missing


# --- single steps -------------------------------------------------------------------------------------------------


def started(nodes: int = 3, **options: Any) -> World:
    """A world in which all is well."""
    world = World(0, nodes=nodes, **options)
    world.losses = 0.0
    world.calm()
    return world


def owners(world: World) -> list[str]:
    return [row.owner for row in world.database.ownership]


def seconds_until(world: World, is_done: Callable[[], bool], within: float = 60.0) -> float:
    since = world.now
    world.run_until(since + within, is_done)
    assert is_done()
    return world.now - since


def all_served(world: World) -> Callable[[], bool]:
    return lambda: sum(world.served().values()) == world.partitions


@pytest.mark.parametrize("lease", [2.0, 6.0])
def test_the_partitions_of_a_killed_node_are_served_again_long_before_its_lease_ends(lease: float) -> None:
    for seed in range(20):
        world = World(seed, lease=lease)
        world.losses = 0.0
        world.calm()
        world.crash(world.processes[seed % 3])
        # Two looks, two polls, and at worst a slow answer to each request.
        assert seconds_until(world, all_served(world)) < LOOK_TWICE + 2 * world.policy.poll + 2.5


def test_the_partitions_of_a_paused_node_are_served_again_when_its_lease_has_ended() -> None:
    world = started()
    world.processes[0].is_frozen = True
    least = world.policy.lease - world.policy.renewal - 1.0
    assert least < seconds_until(world, all_served(world)) < world.policy.lease + world.policy.poll + 2.5


def test_no_partition_moves_when_the_server_restarts_or_pauses() -> None:
    world = started(lease=6.0)  # an answer may take 1.2 s, too long for a shorter lease
    before = list(world.database.ownership)
    for fail in [world.restart, world.stall] * 5:
        fail()
        world.run_until(world.now + 4 * world.policy.lease)
    assert world.database.ownership == before
    assert all_served(world)()


def test_a_node_that_leaves_leaves_nothing_behind() -> None:
    world = started()
    leaving = world.processes[0]
    leaving.membership.end(world.now + leaving.offset)
    world.at(0.0, lambda: None, leaving)
    took = seconds_until(world, lambda: leaving.membership.is_over)
    assert took < world.policy.lease
    assert leaving.name not in world.database.nodes and leaving.name not in owners(world)


def test_a_node_that_drains_stays_in_the_cluster_without_partitions() -> None:
    world = started()
    draining = world.processes[0]
    draining.membership.drain()
    world.at(0.0, lambda: None, draining)
    world.run_until(world.now + 20)
    assert draining.name in world.database.nodes and draining.name not in owners(world)
    assert draining.membership.view.is_draining
    assert draining.membership.view.nodes.keys() == {one.name for one in world.processes}
    assert all_served(world)()


def test_the_last_node_keeps_nothing_when_it_drains() -> None:
    world = started(nodes=1)
    world.processes[0].membership.drain()
    world.at(0.0, lambda: None, world.processes[0])
    world.run_until(world.now + 20)
    assert owners(world) == [""] * world.partitions


@pytest.mark.parametrize("lease", [2.0, 6.0])
@pytest.mark.parametrize("partitions", [6, 24])
@pytest.mark.parametrize(("is_slow", "within"), [(False, 1.0), (True, 4.0)])
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.nightly)], ids=str)
def test_a_node_that_joins_has_its_share_within_a_second_if_the_rest_is_prompt(
    lease: float, partitions: int, is_slow: bool, within: float, seeds: range
) -> None:
    """The worst of these courses. Of a slow world, a tenth of the ways and ends of workers take up to 0.6 s."""
    for seed in seeds:
        world = World(seed, nodes=2, partitions=partitions, lease=lease)
        world.losses = 0.0
        if not is_slow:
            world.delay = lambda usual, worst, draw=world.random: draw.uniform(0, usual)  # type: ignore[method-assign]
        world.start("node-0")
        world.run_until(20)
        world.start("node-1")
        half = partitions // 2
        assert (
            seconds_until(world, lambda world=world, half=half: world.served() == {"node-0": half, "node-1": half})
            < within
        )


def test_nodes_that_start_together_share_before_they_start_workers() -> None:
    world = World(0, partitions=24)
    world.keep_started()
    world.run_until(30)
    assert [row.epoch for row in world.database.ownership] == [1] * 24
    assert world.served() == dict.fromkeys(world.names, 8)


def troubled(world: World, process: Process, *, is_broken: bool = False) -> Callable[[], bool]:
    """Whether others serve all partitions, and this node none."""
    process.is_broken = is_broken
    return lambda: all_served(world)() and not world.served()[process.name]


def test_the_partitions_of_a_node_that_cannot_start_workers_are_served_by_others() -> None:
    world = started(is_troubled=True)
    process = world.processes[0]
    world.crash(process)
    seconds_until(world, all_served(world))
    again = world.start(process.name)
    is_left_to_others = troubled(world, again, is_broken=True)
    seconds_until(world, lambda: bool(again.membership.report.failed))
    seconds_until(world, is_left_to_others, within=10)
    rests = []
    while len(rests) < 4:  # it tries again now and then, less and less often
        since = world.now
        seconds_until(world, lambda: again.name in owners(world), within=100)
        rests.append(world.now - since)
        seconds_until(world, is_left_to_others, within=10)
    assert rests == sorted(rests) and rests[-1] > 3 * rests[0]
    again.is_broken = False
    assert seconds_until(world, world.is_well, within=100) < 25 * world.policy.lease


def test_a_partition_that_no_node_can_start_takes_no_other_one_with_it() -> None:
    world = started(is_troubled=True)
    world.broken_partition = 3
    (owner,) = (one for one in world.processes if 3 in one.workers)
    del owner.workers[3]
    owner.membership.failed({3: "it is damaged"}, world.now + owner.offset)
    world.at(0.0, lambda: None, owner)
    before = [row.epoch for row in world.database.ownership]
    world.run_until(world.now + 60)
    after = [row.epoch for row in world.database.ownership]
    assert after[3] > before[3] + 2, "every node tries it"
    assert sum(after) - sum(before) - (after[3] - before[3]) <= world.partitions, "the others seldom move"
    world.crash(world.processes[0])
    seconds_until(world, lambda: sum(world.served().values()) == world.partitions - 1)
    world.broken_partition = None
    seconds_until(world, all_served(world), within=100)


def test_a_node_that_others_cannot_reach_gives_all_away_until_they_can() -> None:
    world = started(is_troubled=True)
    process, *others = world.processes
    for one in others:
        one.unreachable = {process.name: "it does not answer"}
        world.tell(one)
        world.at(0.0, lambda: None, one)
    seconds_until(world, troubled(world, process), within=15)
    assert process.name in world.database.nodes
    for one in others:
        one.unreachable = {}
        world.tell(one)
        world.at(0.0, lambda: None, one)
    seconds_until(world, world.is_well)


def test_nodes_that_cannot_reach_each_other_keep_what_they_have() -> None:
    world = started(is_troubled=True, nodes=2)
    world.run_until(world.now + 5)
    before = list(world.database.ownership)
    for one, other in zip(world.processes, reversed(world.processes), strict=True):
        one.unreachable = {other.name: "it does not answer"}
        world.tell(one)
        world.at(0.0, lambda: None, one)
    world.run_until(world.now + 20)
    assert world.database.ownership == before
    assert all(row.report.unreachable for row in world.database.nodes.values())


def test_a_drained_node_that_is_resumed_gets_its_share_again() -> None:
    world = started()
    process = world.processes[0]
    world.database.nodes[process.name].is_draining = True
    seconds_until(world, troubled(world, process))
    world.database.nodes[process.name].is_draining = False
    seconds_until(world, world.is_well)
    assert process.membership.state is NodeState.MEMBER


def test_every_view_names_the_owners_and_the_addresses() -> None:
    world = started()
    world.run_until(world.now + 5)  # all have looked
    for process in world.processes:
        view = process.membership.view
        assert view.node == process.name and not view.is_draining
        assert view.owners == dict(enumerate(owners(world)))
        assert view.nodes == {name: f"http://{name}/" for name in world.names}
        assert set(view.mine) == {partition for partition, owner in view.owners.items() if owner == process.name}


def member(partitions: int = 2) -> Membership:
    """A node that has just joined, at 0."""
    one = Membership("a", partitions, LeasePolicy(6.0), 0.0, lambda: 0.5)
    assert one.next(0.0) == Enter()
    one.answered(Enter(), Entered(True, False), 0.0, 0.0)
    assert one.next(0.0) == Join(False)
    one.answered(Join(False), 7, 0.0, 0.0)
    return one


def picture(*ownership: OwnershipRow, is_draining: bool = False) -> Picture:
    return Picture(True, True, (NodeRow("a", 7, "http://a/", 1, False, True, is_draining),), ownership)


def test_a_name_that_another_process_has_is_refused_after_a_lease() -> None:
    one = Membership("a", 2, LeasePolicy(6.0), 0.0, lambda: 0.5)
    now = 0.0
    while not one.is_over:
        assert one.next(now) == Enter()
        assert one.next(now) is None, "one request at a time"
        one.answered(Enter(), Entered(False, True), now, now)
        wake = one.wake_at()
        now = now if wake is None else wake
    assert 6.0 < now < 7.0
    assert one.refusal is not None and "node 'a'" in one.refusal.message
    assert one.next(now + 10) is None


def test_trust_counts_from_the_sending_of_a_renewal() -> None:
    one = member()
    look = one.next(0.0)
    assert look == Look(7, False)
    one.answered(look, picture(OwnershipRow(0, "", 0, 4), OwnershipRow(1, "", 0, 0)), 0.0, 0.1)
    assert one.next(0.2) is None, "it settles first"
    look = one.next(1.0)
    assert look == Look(7, True)
    one.answered(look, picture(OwnershipRow(0, "", 0, 4), OwnershipRow(1, "", 0, 0)), 1.0, 1.5)
    claim = one.next(1.5)
    assert claim == Claim(7, (0, 1), 2, (0, 0))
    one.answered(claim, {0: 5}, 1.5, 1.6)
    assert one.trusted_until(0) == pytest.approx(1.0 + 0.7 * 6.0)
    assert one.trusted_until(1) == 0.0
    assert one.view.mine == {0: 5}


def test_trust_ends_soon_after_the_session() -> None:
    one = member(1)
    one.answered(Look(7, False), picture(OwnershipRow(0, "a", 6, 1)), 0.0, 0.0)
    one.answered(Claim(7, (0,), 1), {0: 2}, 0.0, 0.0)
    one.unanswered(1.0)
    assert one.trusted_until(0) == 1.2
    assert one.wake_at() == pytest.approx(1.05)
    assert one.view.mine == {0: 2}, "it may continue"


def test_an_end_waits_for_the_workers_and_no_longer_than_a_lease() -> None:
    one = member(1)
    one.answered(Look(7, False), picture(OwnershipRow(0, "a", 6, 1)), 0.0, 0.0)
    one.answered(Claim(7, (0,), 1), {0: 2}, 0.0, 0.0)
    one.end(2.0)
    assert one.view.mine == {} and one.view.is_draining
    assert one.trusted_until(0) > 2.0, "the worker finishes what it has begun"
    one.stopped([0])
    assert one.trusted_until(0) == 0.0
    assert one.next(2.0) == Release(7, {0: 2})
    one.end(5.0)
    assert one.next(7.9) is None and not one.is_over
    assert one.next(8.0) is None and one.is_over


def test_an_answer_to_another_request_is_an_error() -> None:
    with pytest.raises(TypeError, match="does not answer"):
        member().answered(Look(7, True), 3, 0.0, 0.0)


def test_a_claim_whose_epoch_fell_is_given_up() -> None:
    one = member(1)
    one.answered(Look(7, False), picture(OwnershipRow(0, "a", 6, 1)), 0.0, 0.0)
    one.answered(Claim(7, (0,), 1), {0: 2}, 0.0, 0.0)
    one.answered(Look(7, False), picture(OwnershipRow(0, "a", 7, 1)), 0.5, 0.5)
    assert one.view.mine == {} and one.trusted_until(0) == 0.0
    one.stopped([0])
    one.answered(Look(7, False), picture(OwnershipRow(0, "a", 7, 1)), 1.0, 1.0)
    assert one.next(1.0) == Release(7, {0: 1})


@pytest.mark.parametrize(
    ("ends", "second", "is_dead"),
    [((1, 1), 0.4, True), ((1, 1), 0.2, False), ((1, 2), 0.4, False)],
    ids=["absent twice", "looked too soon", "renewed"],
)
def test_a_node_is_dead_if_its_lock_was_absent_twice_without_a_renewal(
    ends: tuple[int, int], second: float, is_dead: bool
) -> None:
    one = member(1)
    assert one.next(0.0) == Look(7, False)
    one.answered(Look(7, False), Picture(True, True, (), ()), 0.0, 0.0)  # from now on it has contact
    for sent, end in zip((3.0, 3.0 + second), ends, strict=True):
        nodes = (
            NodeRow("a", 7, "http://a/", 1, False, True, False),
            NodeRow("b", 5, "http://b/", end, False, False, False),
        )
        one.answered(Look(7, False), Picture(True, True, nodes, (OwnershipRow(0, "b", 5, 1),)), sent, sent)
    assert one.next(3.0 + second) == (Declare("b", 5, 1) if is_dead else None)


def test_no_node_is_declared_dead_shortly_after_the_server_started() -> None:
    one = member(1)
    nodes = (NodeRow("a", 7, "http://a/", 1, False, True, False), NodeRow("b", 5, "http://b/", 1, True, False, False))
    for now in (0.0, 3.0, 3.4):
        one.answered(Look(7, False), Picture(True, False, nodes, (OwnershipRow(0, "b", 5, 1),)), now, now)
        assert one.next(now) is None


def test_a_node_that_its_row_drains_gives_all_away() -> None:
    one = member(1)
    one.answered(Look(7, False), picture(OwnershipRow(0, "a", 6, 1)), 0.0, 0.0)
    one.answered(Claim(7, (0,), 1), {0: 2}, 0.0, 0.0)
    one.answered(Look(7, False), picture(OwnershipRow(0, "a", 7, 2), is_draining=True), 0.5, 0.5)
    assert one.view.is_draining and one.view.mine == {}
    assert one.state is NodeState.DRAINING
