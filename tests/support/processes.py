"""Commands of ours as processes of their own, killed, stopped and started again: a broker, a service behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import holdfast
from holdfast import Source
from holdfast.core.records import Record
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.testing.ports import free_ports

ACTION = "urn:test:note"


class Process:
    """A ``holdfast`` command that serves at one port, one life after another.

    Args:
        directory: Where its log is, and where it runs.
        name: Of the log.
        port: Where it takes messages.
        arguments: Of the command.
    """

    def __init__(self, directory: Path, name: str, port: int, *arguments: str) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self.log = directory / f"{name}.log"
        self._directory, self._port, self._arguments = directory, port, arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *, wait: bool = True) -> None:
        """Begin a life; returns when it takes connections, or at once."""
        path = os.pathsep.join(filter(None, [str(Path(holdfast.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "holdfast", *self._arguments,
                cwd=self._directory, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        if wait:
            await self.listening()

    async def listening(self) -> None:
        """Wait, two minutes at most, until it takes connections."""
        assert self._process is not None
        async with asyncio.timeout(120):
            while True:
                assert self._process.returncode is None, self.log.read_text()[-4000:]
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.close()
                return

    @property
    def pid(self) -> int:
        """Of this life."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """SIGKILL, whatever it is doing; nothing if it does not run."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def end(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        async with asyncio.timeout(120):
            return await self._process.wait()

    @property
    def resident(self) -> int:
        """Bytes of memory that it has now."""
        return _kilobytes(self.pid, "VmRSS") * 1024

    @property
    def most_resident(self) -> int:
        """Bytes of memory that it ever had in this life."""
        return _kilobytes(self.pid, "VmHWM") * 1024


def _kilobytes(pid: int, what: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


CONFIG = """\
store = "broker"
partitions = {partitions}
listen.port = {port}
admin.port = {admin_port}

[queues.inbox]

[forwarders.next]
queue = "inbox"
to = "{to}"
timeout = "{timeout}"
policy.sending.retransmission = {{initial = "200ms", floor = "50ms", cap = "400ms"}}
policy.circuit = {{first = "200ms", cap = "1s"}}
{more}
"""


def broker(directory: Path, to: str, *, partitions: int = 2, timeout: str = "2s", more: str = "") -> Process:
    """A broker that forwards all it gets to an address.

    Args:
        directory: Its store is ``broker`` there.
        to: The address.
        partitions: Of its queue.
        timeout: How long the forwarder waits for an answer.
        more: Further lines of its configuration, those of the forwarder first.
    """
    port, admin_port = free_ports(2)
    config = CONFIG.format(partitions=partitions, port=port, admin_port=admin_port, to=to, timeout=timeout, more=more)
    (directory / "broker.toml").write_text(config)
    return Process(directory, "broker", port, "broker", "--config", "broker.toml")


def service(directory: Path) -> Process:
    """A destination that keeps what it gets in the queue of its store, ``service``, in that directory."""
    (port,) = free_ports(1)
    return Process(directory, "service", port, "receive", "--port", str(port), "--store", "service")


def kept(store: Path, queue: str = "inbox") -> list[list[Record]]:
    """What is in each partition of a queue, on the disk; also while the store is open elsewhere."""
    view = RocksDBStore(store, read_only=True)
    try:
        partitions = []
        for (name, partition), (at, end) in sorted(view.load().bounds.items()):
            records: list[Record] = []
            while name == queue and at < end:
                found = view.read(queue, partition, at, end)
                records += [record for _, record in found]
                at = found[-1][0] + 1
            partitions.append(records)
        return partitions
    finally:
        view.close()


class Load:
    """Sends numbered messages under a few keys for as long as it is let, and knows which were acknowledged.

    Args:
        source: Open.
        keys: Each has a Sequence of its own.
        outstanding: Messages that are not acknowledged yet, at most.
    """

    def __init__(self, source: Source, keys: tuple[str, ...] = ("a", "b", "c"), outstanding: int = 90) -> None:
        self.source = source
        self._keys, self._outstanding = keys, outstanding
        self._stopped = False
        self.sent: Counter[str] = Counter()

    async def run(self) -> None:
        """Send until stopped, then wait until all is acknowledged."""
        while not self._stopped:
            for key in self._keys:
                self.sent[key] += 1
            await asyncio.gather(
                *(self.source.send(body_of(key, self.sent[key]), action=ACTION, sequence_key=key) for key in self._keys)
            )
            while self.source.progress.outstanding > self._outstanding and not self._stopped:
                await asyncio.sleep(0.005)
        await self.source.flush()

    @property
    def acknowledged(self) -> int:
        """How many were."""
        return self.source.progress.acknowledged

    async def more(self, count: int) -> None:
        """Wait for so many more acknowledgements."""
        wanted = self.acknowledged + count
        while self.acknowledged < wanted:
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        """Let :meth:`run` come to its end."""
        self._stopped = True


def body_of(key: str, number: int) -> str:
    """What :class:`Load` sends."""
    return f"<m xmlns='urn:test' key='{key}'>{number}</m>"


def check_exact(partitions: list[list[Record]], sent: Counter[str]) -> list[bytes]:
    """Each message that was sent is there once, each Sequence and each key in its order; what else is there.

    Raises:
        AssertionError: it is not so.
    """
    numbers: dict[str, list[int]] = {key: [] for key in sent}
    others: list[bytes] = []
    for records in partitions:
        by_sequence: dict[str, list[int]] = {}
        for record in records:
            by_sequence.setdefault(record.sequence, []).append(record.message_number)
            key = record.body.partition(b"key='")[2].partition(b"'")[0].decode()
            if key not in sent:
                others.append(record.body)
                continue
            number = int(record.body.partition(b">")[2].partition(b"<")[0])
            assert record.body == body_of(key, number).encode()
            numbers[key].append(number)
        for sequence, ordered in by_sequence.items():
            assert ordered == list(range(1, len(ordered) + 1)), sequence
    for key, ordered in numbers.items():
        assert ordered == list(range(1, sent[key] + 1)), f"{key}: {first_wrong(ordered)}"
    return others


def first_wrong(numbers: list[int]) -> str:
    """In words where numbers do not go up by one from one."""
    for place, number in enumerate(numbers):
        if number != place + 1:
            return f"number {number} stands in place {place + 1} of {len(numbers)}, behind {numbers[place - 1 : place]}"
    return f"{len(numbers)} of them"


def signal_session(leader: int, number: int) -> None:
    """Signal every process of a session: Spark's Java has a group of its own. SIGKILL is like a loss of power."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(stat.parent.name), number)
