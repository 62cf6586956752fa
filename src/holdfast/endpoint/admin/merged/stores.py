"""The stores of several workers that no server runs, read as one: what the joined admin asks instead of processes.

This process answers for each worker from its store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.endpoint.worker import Worker
from holdfast.endpoint.workers.placement import Placements
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Exchange, Request
from holdfast.http.outcome import Response


class StoreAdmin(Protocol):
    async def answer(self, exchange: Exchange) -> None:
        """Answer one request."""


@dataclass(frozen=True, slots=True)
class StoresPlace:
    """The place of this process among the workers: none of them runs here.

    Args:
        placements: Where each worker is: nowhere.
    """

    worker: Worker
    placements: Placements
    paths: tuple[str, ...] = ()


class StoppedNeighbours:
    """The workers of some stores.

    Args:
        admin_of: Returns the admin interface of a worker's store: its number, and whether the request changes
            something.
        is_in_cluster: Whether they are the partitions of a cluster.
    """

    def __init__(self, count: int, admin_of: Callable[[int, bool], StoreAdmin], *, is_in_cluster: bool) -> None:
        self.is_in_cluster = is_in_cluster
        self.place = StoresPlace(Worker(0, count), Placements())
        self._admin_of = admin_of

    @property
    def workers(self) -> StoppedNeighbours:
        """What requests are sent to."""
        return self

    async def fetch(self, number: int, method: str, path: str, body: bytes = b"") -> Response:
        """Return the answer of a worker's store.

        Raises:
            StoreError: The store cannot be opened.
        """
        exchange = DirectExchange(Request(method, f"/{path.removeprefix('admin/')}", {}, body, None, secure=False))
        await self._admin_of(number, method != "GET").answer(exchange)
        return await exchange.response
