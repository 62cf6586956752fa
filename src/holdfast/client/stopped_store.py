"""The transport to a store that no server runs: the admin interface in this process, over the store itself.

A request that only reads opens the store for reading, also while a server has it open. The first request that changes
something opens it for changes, and needs its lock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.exceptions import StoreLocked
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Request
from holdfast.store import open_store, shown

if TYPE_CHECKING:
    from holdfast.endpoint.admin.stopped import StoppedAdmin
    from holdfast.store import Store


class StoreTransport:
    """Requests to one store.

    Args:
        location: The directory of the store, or the URL of a database.
    """

    is_running = False

    def __init__(self, location: str) -> None:
        self._location = location
        self.place = shown(location)  # without a password in the URL
        self._runner = asyncio.Runner()
        self._store: Store | None = None
        self._admin: StoppedAdmin | None = None
        self._is_changeable = False

    def send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Return the status and the content of the answer.

        Raises:
            StoreLocked: The request changes something, and another process has the store open.
            StoreError: The store does not exist, or cannot be read.
        """
        admin = self._opened(is_change=method != "GET")
        return self._runner.run(_answer(admin, Request(method, path, {}, body or b"", None, secure=False)))

    def _opened(self, *, is_change: bool) -> StoppedAdmin:
        from holdfast.endpoint.admin.stopped import StoppedAdmin

        if self._admin is None or (is_change and not self._is_changeable):
            if self._store is None:
                self._store = open_store(self._location, read_only=True)  # a misspelt name creates no store
            if is_change:
                self._close_store()
                self._store = self._open_to_change()
                self._is_changeable = True
            self._admin = StoppedAdmin(self._store)
        return self._admin

    def _open_to_change(self) -> Store:
        try:
            return open_store(self._location)
        except StoreLocked as error:
            remedy = f"Use the running server: --admin URL. Or: {error.remedy}"
            raise StoreLocked(error.message, remedy=remedy) from error

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = self._admin = None

    def close(self) -> None:
        """Close the store."""
        self._runner.close()
        self._close_store()


async def _answer(admin: StoppedAdmin, request: Request) -> tuple[int, bytes]:
    exchange = DirectExchange(request)
    await admin.answer(exchange)
    response = await exchange.response
    return response.status, response.body
