"""Which secrets in addresses a worker takes for another worker's: until that one says, a message is repeated."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from unstarted import unstarted
from waiting import until

from holdfast.core.origin import SECRET
from holdfast.endpoint.worker import Worker
from holdfast.endpoint.workers.placement import Placement, Placements
from holdfast.endpoint.workers.routing import MOST_SOUGHT, NOT_GIVEN, STRANGE_SECONDS, Neighbours
from holdfast.http.outcome import TransportError
from holdfast.http.server.server import HTTPServer


class Asked:
    """Worker 0 of two. This class answers for worker 1."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.times = 0
        placements = Placements()
        placements.set(Placement(frozenset({0, 1})))
        place: Any = SimpleNamespace(worker=Worker(0, 2), placements=placements)
        self.neighbours = Neighbours(place, unstarted(), HTTPServer())
        self.neighbours._workers = SimpleNamespace(fetch=self.fetch)  # type: ignore[assignment]

    async def fetch(self, number: int, method: str, path: str) -> Any:
        self.times += 1
        assert (number, method) == (1, "GET") and path.startswith("knows/holdfast%3D")
        if self.status is None:
            raise TransportError("it is away", connected=False)
        return SimpleNamespace(status=self.status)

    async def has_given(self, secret: str) -> bool | None:
        """Return what holds after what is unknown has been asked."""
        if self.neighbours._has_given(secret) is None:
            await until(lambda: not self.neighbours._tasks)
        return self.neighbours._has_given(secret)


def secret() -> str:
    return Worker(1, 2).new_identifier().rpartition(":")[2]


@pytest.mark.parametrize(
    ("status", "said"), [(204, True), (NOT_GIVEN, False), (404, None), (421, None), (503, None), (None, None)]
)
async def test_only_the_answer_of_the_worker_that_made_a_secret_is_final(status: int | None, said: bool | None) -> None:
    """An older version answers each secret with 404."""
    asked = Asked()
    asked.status = status
    one = secret()
    assert await asked.has_given(one) is said
    times = asked.times
    assert await asked.has_given(one) is said
    assert (asked.times == times) is (said is not None)


async def test_a_refused_secret_is_asked_for_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, one = Asked(), secret()
    asked.status = NOT_GIVEN
    assert await asked.has_given(one) is False
    asked.status, loop = 204, asyncio.get_running_loop()
    later = loop.time() + STRANGE_SECONDS
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", lambda: later)
        assert asked.neighbours._has_given(one) is None
    await until(lambda: not asked.neighbours._tasks)
    assert await asked.has_given(one) is True


async def test_strangers_secrets_take_a_bounded_amount_of_memory() -> None:
    asked = Asked()
    asked.status = NOT_GIVEN
    for _ in range(MOST_SOUGHT + 5):
        assert await asked.has_given(secret()) is False
    assert len(asked.neighbours._strange) == MOST_SOUGHT and not asked.neighbours._sought


@pytest.mark.parametrize(("is_given", "status"), [(True, 204), (False, NOT_GIVEN)])
def test_a_worker_says_whether_it_gave_a_secret(is_given: bool, status: int) -> None:
    asked = Asked()
    creation = SimpleNamespace(has_given=lambda _secret: is_given)
    protocol = SimpleNamespace(outbound=SimpleNamespace(creation=creation))
    asked.neighbours._app = SimpleNamespace(engine=SimpleNamespace(failure=None, protocol=protocol))  # type: ignore
    assert asked.neighbours._status_of(f"{SECRET}{secret()}") == status
