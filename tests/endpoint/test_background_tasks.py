"""Tasks that no caller awaits: kept until they end, and cancelled together."""

from __future__ import annotations

import asyncio

from holdfast.endpoint.background_tasks import BackgroundTasks


def test_work_runs_to_its_end_though_no_caller_keeps_it() -> None:
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append("work")

    async def run() -> None:
        tasks = BackgroundTasks()
        await tasks.start(work())
        await tasks.cancel()

    asyncio.run(run())
    assert done == ["work"]


def test_cancel_waits_for_what_the_tasks_do_at_their_end() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    async def run() -> None:
        tasks = BackgroundTasks()
        for number in range(3):
            tasks.start(work(number))
        await asyncio.sleep(0)
        await tasks.cancel()
        assert sorted(ended) == [0, 1, 2]

    asyncio.run(run())
