"""The transport to a store that no server runs: the admin interface in this process, over the store itself.

A request that only reads opens the store for reading, also while a server has it open. The first request that changes
something opens it for changes, and needs its lock. The stores of several workers, or of the partitions of a cluster,
answer as one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.exceptions import StoreLocked, StoreMissing
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Request
from holdfast.store import open_store, shown

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.endpoint.admin.stopped import StoppedAdmin
    from holdfast.endpoint.worker import Worker
    from holdfast.store import Store


class StoreTransport:
    """Requests to one store, or to those of several workers.

    Args:
        location: The directory of the store, or the URL of a database; with several workers, that of worker 0.
    """

    is_running = False

    def __init__(self, location: str) -> None:
        self._location = location
        self.place = shown(location)  # without a password in the URL
        self._runner = asyncio.Runner()
        self._stores: list[_WorkerStore] = []
        self._is_cluster = False

    def send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Return the status and the content of the answer.

        Raises:
            StoreLocked: The request changes something, and another process has the store open.
            StoreError: The store does not exist, or cannot be read.
        """
        if not self._stores:
            self._find()
        return self._runner.run(self._answer(Request(method, path, {}, body or b"", None, secure=False)))

    def _find(self) -> None:
        from holdfast.endpoint.worker import Worker, stored_workers

        count, self._is_cluster = stored_workers(self._location)
        if count == 1:
            self._stores = [_WorkerStore(self._location, None)]
            return
        workers = [Worker(number, count) for number in range(count)]
        self._stores = [_WorkerStore(one.store_of(self._location), one) for one in workers]
        if all(one.is_missing for one in self._stores):
            missing, self._stores = self._stores[0], []
            missing.open_to_read()

    async def _answer(self, request: Request) -> tuple[int, bytes]:
        exchange = DirectExchange(request)
        if len(self._stores) == 1:
            await self._stores[0].admin(is_change=request.method != "GET").answer(exchange)
        else:
            await self._answer_joined(exchange)
        response = await exchange.response
        return response.status, response.body

    async def _answer_joined(self, exchange: DirectExchange) -> None:
        from holdfast.endpoint.admin.merged.application import JoinedAdmin
        from holdfast.endpoint.admin.merged.stores import StoppedNeighbours
        from holdfast.endpoint.admin.responses import refuse
        from holdfast.endpoint.admin.routes import Refused

        stores = self._stores
        neighbours = StoppedNeighbours(
            len(stores), lambda number, is_change: stores[number].admin(is_change), is_in_cluster=self._is_cluster
        )
        first = next(one for one in stores if not one.is_missing).admin()
        try:
            route, query, names = first.find(exchange.request)
            route.read(exchange, query)
            await JoinedAdmin(neighbours, first.numbers).answer(route, exchange, query, names)
        except Refused as refused:
            refuse(exchange, refused)

    def close(self) -> None:
        self._runner.close()
        for one in self._stores:
            one.close()


class _WorkerStore:
    def __init__(self, location: str | Path, worker: Worker | None) -> None:
        self._location = location
        self._worker = worker
        self._store: Store | None = None
        self._admin: StoppedAdmin | None = None
        self._is_changeable = False
        self._is_missing: bool | None = None

    @property
    def is_missing(self) -> bool:
        """Whether there was no such store when this was first asked."""
        if self._is_missing is None:
            try:
                self.open_to_read()
                self._is_missing = False
            except StoreMissing:
                self._is_missing = True
        return self._is_missing

    def open_to_read(self) -> Store:
        """Return the store, open for reading; a misspelt name creates none."""
        if self._store is None:
            self._store = open_store(self._location, read_only=True)
        return self._store

    def admin(self, is_change: bool = False) -> StoppedAdmin:
        """Return the admin interface of the store; that of a missing one is empty, and changes nothing."""
        from holdfast.endpoint.admin.stopped import StoppedAdmin

        if self._admin is None or (is_change and not self._is_changeable):
            if self._worker is not None and self.is_missing:
                self._admin, self._is_changeable = StoppedAdmin(open_store(":memory:"), self._worker), True
                return self._admin
            self.open_to_read()
            if is_change:
                self.close()
                self._store = self._open_to_change()
                self._is_changeable = True
            self._admin = StoppedAdmin(self.open_to_read(), self._worker)
        return self._admin

    def _open_to_change(self) -> Store:
        try:
            return open_store(self._location)
        except StoreLocked as error:
            remedy = f"If that process has an admin listener, use --admin URL. If not: {error.remedy}"
            raise StoreLocked(error.message, remedy=remedy) from error

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = self._admin = None
