"""A database that is restored from a copy, in virtual time: no node serves an older copy that no operator accepted.

Covers cluster/memory.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from lease_world import Broken
from restored_world import RestorableDatabase, RestoredWorld
from worlds import each_world

from holdfast.cluster.memory import Batches, NodeMemory

SEEDS = 30


def restored_by_mistake(world: RestoredWorld) -> None:
    """All nodes end, an older copy is restored, and they start as if it were the newest."""
    world.run_until(world.now + world.operator.uniform(1, 5))
    copy = world.copy()
    world.run_until(world.now + world.operator.choice((0.1, 1.0, 10.0)))
    world.end_all()
    is_older = any(copy.batches[one][1] < batch for one, (_, batch) in world.database.batches.items())
    world.restore(copy)
    world.run_until(world.now + 20.0)
    if is_older and (world.acting() or not world.database.went_back):
        raise Broken(f"{world.acting()} serve a copy that lacks batches")
    if not is_older and not world.is_well():
        raise Broken("the newest copy is refused")


def failed_over(world: RestoredWorld) -> None:
    """A standby takes over, which lacks batches that were visible but not acknowledged."""
    for _ in range(3):
        world.run_until(world.now + world.operator.uniform(8, 15))
        world.fail_over()
    world.calm()
    if world.database.went_back:
        raise Broken(world.database.went_back)


@each_world(12, SEEDS)
def test_no_node_serves_an_older_copy_that_was_restored_by_mistake(seed: int, tmp_path: Path) -> None:
    restored_by_mistake(RestoredWorld(seed, tmp_path))


@each_world(12, SEEDS)
def test_all_nodes_serve_an_older_copy_with_which_each_was_told_to_start(seed: int, tmp_path: Path) -> None:
    world = RestoredWorld(seed, tmp_path)
    copy = world.copy()
    world.run_until(world.now + 5.0)
    world.end_all()
    world.restore(copy, *world.names)
    world.calm()
    world.end_all()  # what they remember is of the copy
    world.keep_started()
    world.calm()


@each_world(12, SEEDS)
def test_a_standby_without_what_nobody_acknowledged_is_no_older_copy(seed: int, tmp_path: Path) -> None:
    failed_over(RestoredWorld(seed, tmp_path))


# --- mistakes that must be noticed --------------------------------------------------------------------------------


class RemembersWhatItSeesOnce(NodeMemory):
    def see(self, cluster: str, batches: Batches, now: float) -> None:
        super().see(cluster, batches, now)
        super().see(cluster, batches, now)


class BelievesTwoServers(NodeMemory):
    def meet(self, cluster: str, batches: Batches, now: float) -> None:
        self.see(cluster, batches, now)


class KeepsNothingAtItsEnd(NodeMemory):
    def keep(self, batches: Batches) -> None:
        pass

    def _take_own(self) -> None:
        pass


class ComparesOnlyEpochs(NodeMemory):
    def lost(self, batches: Batches) -> list[str]:
        newest: Mapping[int, tuple[int, int]] = {one: (epoch, 1 << 60) for one, (epoch, _) in batches.items()}
        return super().lost(newest)


class RecordsNothing(RestorableDatabase):
    def record(self, lost: str) -> None:
        raise ConnectionError


@pytest.mark.parametrize(
    ("mistake", "scenario"),
    [
        ({"memory": RemembersWhatItSeesOnce}, failed_over),
        ({"memory": BelievesTwoServers}, failed_over),
        ({"memory": KeepsNothingAtItsEnd}, restored_by_mistake),
        ({"memory": ComparesOnlyEpochs}, restored_by_mistake),
        ({"database": RecordsNothing}, restored_by_mistake),
    ],
    ids=lambda one: one.__name__ if callable(one) else next(iter(one.values())).__name__,
)
def test_a_mistake_is_noticed(mistake: dict[str, type], scenario: type, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        directory = tmp_path / str(seed)
        try:
            scenario(RestoredWorld(seed, directory, **mistake))
        except Broken:
            return
    pytest.fail("no world notices it")
