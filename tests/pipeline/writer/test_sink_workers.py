"""A query that sends rows to a server of several workers, which are killed under it: every row comes once and in order,
whichever step of its batch they die at. The sink's half in Spark as it is, and a real server; without Spark."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import Crew
from meddler import Meddler
from sink_steps import SERVED, Query, Sent

TASKS, ROWS = 2, 1500
"""Of each batch: in a task more than move at a time."""


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path, "--port", "0", "--admin", "0", "--workers", "2", module=SERVED)
    yield made
    made.clean()


def write(server: Meddler, batches: int, keys: int = 4) -> None:
    """Batches of a query, one after the other, by a client that waits for a server that is away."""
    query = Query(server, "q", sequenceKey="carrier", awaySeconds="60")
    for batch in range(batches):
        query.run(
            batch,
            *(
                {
                    "body": [f"<k{row % keys}>{batch}-{task}-{row}</k{row % keys}>" for row in range(ROWS)],
                    "carrier": [row % keys for row in range(ROWS)],
                }
                for task in range(TASKS)
            ),
        )


def assert_exact(server: Meddler, batches: int, keys: int = 4) -> None:
    found = Sent(server.target).bodies("q")
    for key in range(keys):
        assert [one for one in found if one.startswith(f"<k{key}>")] == [
            f"<k{key}>{batch}-{task}-{row}</k{key}>"
            for batch in range(batches)
            for task in range(TASKS)
            for row in range(key, ROWS, keys)
        ]
    assert len(found) == batches * TASKS * ROWS


@pytest.mark.crash
def test_killed_workers_deliver_every_row_once_and_in_order(
    crew: Crew,
) -> None:
    assert crew.url()
    server = Meddler(crew.url())
    ahead = [("/batches/0", "before"), ("/parts", "at work"), ("/batches/1", "after")]
    killers: list[threading.Thread] = []

    def kill_both() -> None:
        crew.kill(0)
        crew.kill(0)  # the oldest of those that there are now: the other one

    def meddle(request: str) -> str | None:
        if not ahead or ahead[0][0] not in request or any(one.is_alive() for one in killers):
            return None
        when = ahead.pop(0)[1]
        killers.append(threading.Thread(target=kill_both))
        killers[-1].start()
        if when == "before":  # all is staged, and nobody has heard of the publication
            killers[-1].join()
        return "after" if when == "after" else None  # it is published, or not, and moves

    server.on_sink = meddle
    try:
        write(server, 3)
        for one in killers:
            one.join()
        assert len(killers) == 3
        assert_exact(server, 3)
    finally:
        server.stop()
    assert crew.end() == 0


@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_however_often_workers_are_killed_every_row_comes_once_in_order(crew: Crew) -> None:
    assert crew.url()
    server, draw, is_over = Meddler(crew.url()), random.Random(4), threading.Event()
    server.on_sink = lambda request: draw.choice(("before", "after")) if draw.random() < 0.1 else None
    kills = 0

    def kill() -> None:
        nonlocal kills
        while not is_over.wait(draw.random() / 4):
            crew.kill(draw.randrange(2))
            kills += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        write(server, 8)
        is_over.set()
        killer.join()
        server.on_sink = lambda request: None
        assert_exact(server, 8)
        assert kills > 3
    finally:
        is_over.set()
        killer.join()
        server.stop()
    assert crew.end() == 0
