"""How long moves, drains, ends and joins take in virtual time, if nothing fails: no step waits for a timer.

Nodes look at the rows every 16 to 24 seconds if no event makes them look, and an answer takes 1.2 seconds at most. So
what takes less than 16 seconds waits for events only. Covers cluster/membership.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from moving_world import MovingWorld

from holdfast.cluster.membership import Membership

SOON = 10.0
"""Seconds: less than any timer, and more than the slowest answers of a move."""


def move_one(world: MovingWorld) -> float:
    partition, name = world.choose_move()
    return world.seconds_of(lambda: world.move(partition, name), lambda: world.serves(partition, name))


def move_two(world: MovingWorld) -> float:
    (first, to), (second, other) = world.choose_move(), world.choose_move()
    second = (first + 1) % world.partitions if second == first else second

    def begin() -> None:
        world.move(first, to)
        world.at(world.operator.uniform(0, 1), lambda: world.move(second, other))

    return world.seconds_of(begin, lambda: world.serves(first, to) and world.serves(second, other))


def move_all(world: MovingWorld) -> float:
    name, partitions = world.operator.choice(world.names), range(world.partitions)

    def begin() -> None:
        for one in partitions:
            world.move(one, name)

    return world.seconds_of(begin, lambda: all(world.serves(one, name) for one in partitions))


def drain(world: MovingWorld) -> float:
    process = world.operator.choice(world.running())
    return world.seconds_of(lambda: world.drain(process), world.is_taken_from(process))


def resume(world: MovingWorld) -> float:
    process = world.operator.choice(world.running())
    world.seconds_of(lambda: world.drain(process), world.is_taken_from(process))
    world.run_until(world.now + 30)
    return world.seconds_of(lambda: world.drain(process, is_draining=False), world.is_even)


def restart(world: MovingWorld) -> float:
    process = world.operator.choice(world.running())
    until_taken = world.seconds_of(lambda: world.end(process), world.is_taken_from(process))
    world.run_until(world.now + 30)
    return max(until_taken, world.seconds_of(world.keep_started, world.is_even))


def end_slowly(world: MovingWorld) -> float:
    """Return when the others serve what a node had whose last worker takes five minutes to end, without that one."""
    process = world.operator.choice(world.running())
    slow = world.operator.choice(list(process.workers))
    world.ends_at[process.name, slow] = world.now + 300
    taken, all_taken = world.is_taken_from(process, but=slow), world.is_taken_from(process)
    seconds = world.seconds_of(lambda: world.end(process), taken)
    assert not all_taken()
    return seconds


def resume_after_moves(world: MovingWorld) -> float:
    """Return when a node that was drained has its share of what was not moved to another one."""
    process = world.operator.choice(world.running())
    to = world.operator.choice([name for name in world.names if name != process.name])
    moved = world.operator.sample(range(world.partitions), world.partitions - len(world.names) + 1)
    world.seconds_of(lambda: world.drain(process), world.is_taken_from(process))

    def move() -> None:
        for one in moved:
            world.move(one, to)

    world.seconds_of(move, lambda: all(world.serves(one, to) for one in moved))
    world.run_until(world.now + 30)
    each = {name: len(moved) if name == to else 1 for name in world.names}
    return world.seconds_of(lambda: world.drain(process, is_draining=False), lambda: world.served() == each)


def release(world: MovingWorld) -> float:
    name = world.operator.choice(world.names)
    for one in range(world.partitions):
        world.move(one, name)
    world.run_until(world.now + 100)
    assert world.served()[name] == world.partitions
    return world.seconds_of(world.release, world.is_even)


EVENTS: list[Callable[[MovingWorld], float]] = [
    move_one,
    move_two,
    move_all,
    drain,
    resume,
    resume_after_moves,
    release,
    restart,
    end_slowly,
]


@pytest.mark.parametrize("event", EVENTS)
def test_nothing_waits_for_a_timer(event: Callable[[MovingWorld], float]) -> None:
    for seed in range(8):
        assert event(MovingWorld(seed)) < SOON, seed


@pytest.mark.nightly
@pytest.mark.parametrize("event", EVENTS)
def test_nothing_waits_for_a_timer_at_many_more_moments(event: Callable[[MovingWorld], float]) -> None:
    for seed in range(1000):
        assert event(MovingWorld(seed)) < SOON, seed


# --- mistakes that must be noticed --------------------------------------------------------------------------------


class ForgetsWhatItHearsDuringALook(Membership):
    def notified(self, now: float) -> None:
        super().notified(now)
        self._is_notified = False


class HearsNothingDuringARequest(Membership):
    def notified(self, now: float) -> None:
        if not self._is_busy:
            super().notified(now)


class EndsInSilence(Membership):
    """It does not say that it drains, so it counts when the others share."""

    def end(self, now: float) -> None:
        super().end(now)
        self._drain_is_recorded = True


@pytest.mark.parametrize(
    ("mistake", "event", "seed"),
    [
        (ForgetsWhatItHearsDuringALook, drain, 3),
        (HearsNothingDuringARequest, drain, 5),
        (EndsInSilence, end_slowly, 0),
    ],
)
def test_a_mistake_is_noticed(mistake: type[Membership], event: Callable[[MovingWorld], float], seed: int) -> None:
    for one in (seed, *range(100)):
        if event(MovingWorld(one, membership=mistake)) > SOON:
            return
    pytest.fail("no world notices it")
