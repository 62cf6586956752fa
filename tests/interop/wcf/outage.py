"""A service and a broker before it, as processes that tests kill and start again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from processes import Process
from wcf.live_client import Ledger

from holdfast.endpoint.admin.inspected import Inspected
from holdfast.endpoint.admin.stopped import StoppedStore
from holdfast.store import open_store
from holdfast.testing.ports import free_ports


class Outage:
    """The two processes, and what the service's handlers received.

    Args:
        directory: Of the stores, the configuration and the logs.
        monkeypatch: Sets the environment that the processes inherit.
        forwarder: Further lines of the forwarder's configuration.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, forwarder: str = "") -> None:
        self._directory = directory
        self._log = directory / "handled"
        self._read, self._noted, self._ledger = 0, set[str](), Ledger()
        monkeypatch.setenv("WCF_SERVICE_STORE", str(directory / "inbox"))
        monkeypatch.setenv("WCF_SERVICE_LOG", str(self._log))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        service, broker = free_ports(2)
        self.service = Process(directory, "service", service, "serve", "wcf.service:app", "--port", str(service))
        (directory / "broker.toml").write_text(
            f'store = "broker"\nlisten.port = {broker}\nadmin.enabled = false\n'
            f'[forwarders.service]\nqueue = "inbox"\nto = "{self.service.url}"\n{forwarder}\n'
        )
        self.broker = Process(directory, "broker", broker, "broker", "--config", "broker.toml")

    @contextlib.asynccontextmanager
    async def running(self, *processes: Process) -> AsyncIterator[None]:
        """Start the processes, and kill them at the end."""
        try:
            for process in processes:
                await process.start()
            yield
        finally:
            for process in processes:
                await process.kill()

    @property
    def ledger(self) -> Ledger:
        """What the handlers received, each message once: a handler that a kill interrupted runs again."""
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(self._read)
                whole, newline, _ = log.read().rpartition(b"\n")
            self._read += len(whole + newline)
            entries = [line.split(" ", 2)[2] for line in whole.decode().splitlines()]
            for entry in entries:
                if entry not in self._noted:
                    self._noted.add(entry)
                    self._ledger.note(entry)
        return self._ledger

    def sequences(self, first: int, end: int) -> dict[str, str]:
        """The service's Sequences with messages from ``first`` up to, but not including, ``end``, and their keys."""
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return {sequence: key for sequence, _, key, number in lines if first <= int(number) < end}

    @contextlib.contextmanager
    def state(self, store: str) -> Iterator[Inspected]:
        """What the store ``inbox`` of the service or ``broker`` has now, also while its process runs."""
        view = open_store(str(self._directory / store), read_only=True)
        try:
            yield StoppedStore(view)
        finally:
            view.close()

    def handled(self) -> list[int]:
        """The numbers of a service with one client, each once."""
        return [number for numbers in self.ledger.numbers.values() for number in numbers]


async def restart(process: Process, seconds: float = 1.0) -> None:
    """Kill a process, and start it again after so many seconds."""
    await process.kill()
    await asyncio.sleep(seconds)
    await process.start()
