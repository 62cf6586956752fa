"""Until when a worker may act on its partition: shared between processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection

from holdfast.cluster.trust import Trust, trust_clock


def test_no_partition_is_trusted_at_first() -> None:
    trust = Trust(3)
    assert not any(trust.of(partition).is_trusted(0.0) for partition in range(3))


def test_a_worker_is_trusted_before_its_time_and_no_longer() -> None:
    trust = Trust(3)
    trust.set(1, 100.0)
    assert trust.of(1).is_trusted(99.9)
    assert not trust.of(1).is_trusted(100.0)
    assert not trust.of(0).is_trusted(0.0)
    assert not trust.of(2).is_trusted(0.0)


def test_what_workers_want_free_counts_while_their_partitions_are_here() -> None:
    trust = Trust(3)
    assert trust.wanted_bytes([0, 1, 2]) == 0
    trust.of(0).want(70 << 20)
    trust.of(1).want(5 << 30)
    assert trust.wanted_bytes([0, 1]) == 5 << 30
    assert trust.wanted_bytes([0, 2]) == 70 << 20
    assert trust.wanted_bytes([0, 1]) == 70 << 20, "of the worker that ended, nothing is left"
    trust.of(0).want(0)
    assert trust.wanted_bytes([0, 1]) == 0


def test_without_a_time_the_clock_is_read() -> None:
    trust = Trust(1)
    trust.set(0, trust_clock() + 3600)
    assert trust.of(0).is_trusted()
    trust.set(0, trust_clock())
    assert not trust.of(0).is_trusted()


def test_the_clock_counts_at_least_as_much_as_the_monotonic_one() -> None:
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    assert trust_clock() >= before


def test_revoking_ends_the_trust_of_all() -> None:
    trust = Trust(2)
    for partition in range(2):
        trust.set(partition, 100.0)
    trust.revoke()
    assert not any(trust.of(partition).is_trusted(1.0) for partition in range(2))


def _worker(trust: Trust, link: Connection) -> None:
    for now in iter(link.recv, None):
        link.send(trust.of(1).is_trusted(now))


def test_a_worker_sees_at_once_what_the_agent_writes_after_the_fork() -> None:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    trust = Trust(2)
    process = fork.Process(target=_worker, args=(trust, theirs))
    process.start()

    def asked(now: float) -> bool:
        ours.send(now)
        return bool(ours.recv())

    answers = [asked(1.0)]
    trust.set(1, 2.0)
    answers += [asked(1.0), asked(2.0)]
    trust.revoke()
    answers.append(asked(1.0))
    ours.send(None)
    process.join(240)
    assert answers == [False, True, False, False]
    assert process.exitcode == 0


def test_the_last_batches_are_remembered_across_processes_and_never_fall() -> None:
    trust = Trust(3)
    assert trust.batches() == {}
    pid = os.fork()
    if not pid:
        trust.of(2).remember(4, 17)
        os._exit(0)
    os.waitpid(pid, 0)
    trust.of(0).remember(1, 0)
    trust.of(2).remember(5, 12)  # an older copy
    assert trust.batches() == {0: (1, 0), 2: (4, 17)}
