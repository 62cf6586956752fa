"""Where threads run: who is waited for on the waiter's processor, everybody else anywhere."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.core.records import Batch
from holdfast.store import CommitThread, MemoryStore
from holdfast.store.processors import Place, run_anywhere

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """A thread that is not the test's."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_a_thread_runs_where_its_waiter_is_and_then_anywhere_again(other: ThreadPoolExecutor) -> None:
    everywhere = os.sched_getaffinity(0)
    native = other.submit(threading.get_native_id).result()
    place = Place(native)
    place.anywhere()
    assert os.sched_getaffinity(native) == everywhere
    place.here()
    bound = os.sched_getaffinity(native)
    assert len(bound) == 1
    assert bound <= everywhere
    assert os.sched_getaffinity(0) == everywhere, "the waiter itself is free"
    place.anywhere()
    assert os.sched_getaffinity(native) == everywhere


def test_a_thread_follows_its_waiter_to_another_processor(other: ThreadPoolExecutor) -> None:
    everywhere = os.sched_getaffinity(0)
    native = other.submit(threading.get_native_id).result()
    place = Place(native)
    try:
        for processor in everywhere:
            os.sched_setaffinity(0, {processor})
            place.here()
            assert os.sched_getaffinity(native) == {processor}
    finally:
        os.sched_setaffinity(0, everywhere)


def test_who_is_started_by_a_bound_thread_runs_anywhere_all_the_same(other: ThreadPoolExecutor) -> None:
    seen: list[set[int]] = []

    def started() -> None:
        seen.append(os.sched_getaffinity(0))
        run_anywhere()
        seen.append(os.sched_getaffinity(0))

    def start() -> None:
        thread = threading.Thread(target=started)
        thread.start()
        thread.join()

    place = Place(other.submit(threading.get_native_id).result())
    place.here()
    other.submit(start).result()
    assert len(seen[0]) == 1, "else there is nothing to see to"
    assert seen[1] == os.sched_getaffinity(0)


def test_a_thread_that_has_ended_binds_nobody() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    Place(thread.native_id or 0).here()


@pytest.mark.parametrize("longest_wait", [60.0, 0.0])
async def test_a_commit_runs_on_the_loop_s_processor_if_that_waits_for_it(longest_wait: float) -> None:
    seen: list[int] = []

    class Watched(MemoryStore):
        def commit(self, batch: Batch) -> None:
            seen.append(len(os.sched_getaffinity(0)))
            super().commit(batch)

    done = asyncio.Event()
    thread = CommitThread(
        Watched(), asyncio.get_running_loop(), done.set, lambda error: None, longest_wait=longest_wait
    )
    if not thread.commit(Batch(cursors={("q", 0, "c"): {"offset": 1}})):
        await asyncio.wait_for(done.wait(), 60)
    thread.close()
    assert seen == [1 if longest_wait else len(os.sched_getaffinity(0))]
