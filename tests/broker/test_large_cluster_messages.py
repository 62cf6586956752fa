"""Messages and replies larger than memory in a cluster: through a node that owns nothing, and after a kill.

Covers endpoint/workers/frames/sealed_transport.py and endpoint/workers/frames/large_answers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import large_attachments
import large_replies
import pytest
from broker_cluster import NAMES, PARTITIONS, Brokers, store_on
from processes import Process
from waiting import until

from holdfast.cluster.operating.engines import engine_of, verifier_of
from holdfast.endpoint.worker import Worker, worker_of
from holdfast.store import open_store
from holdfast.testing.ports import free_ports

MEGABYTES = int(os.environ.get("HOLDFAST_TEST_MEGABYTES", "1024"))
MOST_MEMORY = {"postgresql": 200_000_000, "kafka": 320_000_000}
"""Of a process. On Kafka, the largest one rebuilds its cache after the kill."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


def processes(leader: int) -> list[int]:
    """The processes of a node, which has a session of its own."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((place / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(place.name))
    return found


def peaks(leader: int) -> list[int]:
    """The peak of memory of each process of a node."""
    found = []
    for pid in processes(leader):
        with contextlib.suppress(OSError, IndexError):
            found.append(1024 * int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]))
    return found


class Cluster:
    """Three brokers before a service. Node a is drained: it owns nothing, and passes on what comes."""

    def __init__(self, brokers: Brokers, service_port: int, directory: Path) -> None:
        self.brokers, self.service_port, self.directory = brokers, service_port, directory
        self.service: Process | None = None
        self.peaks: list[int] = []

    async def start(self, app: str) -> None:
        place, port = self.directory / "service", self.service_port
        self.service = Process(place, "service", port, "serve", f"{app}:app", "--port", str(port))
        await self.service.start()
        await self.brokers.start(*NAMES)
        await self.shared(*NAMES)
        await asyncio.to_thread(engine_of(self.brokers.store).drain_node, self.brokers.store, "a")
        await self.shared("b", "c")

    async def shared(self, *names: str) -> None:
        """Wait until these nodes have all partitions."""

        def are_shared() -> bool:
            owners = self.brokers.owners()
            return len(owners) == PARTITIONS and set(owners.values()) == set(names)

        await until(are_shared, 120)

    def measure(self) -> list[int]:
        """The peaks so far, of nodes that were killed, too."""
        for node in self.brokers.nodes.values():
            self.peaks += peaks(node.process.pid)
        return self.peaks

    def read(self, name: str) -> int:
        """The bytes that all processes of a node have read, from sockets too."""
        found = 0
        for pid in processes(self.brokers.nodes[name].process.pid):
            with contextlib.suppress(OSError):
                found += int((Path(f"/proc/{pid}/io")).read_text().split("rchar:")[1].split()[0])
        return found

    def owner(self) -> str | None:
        """The owner of the Sequence that a source has created through node a."""
        try:
            with urlopen(f"{self.brokers.admins['a']}/sequences", timeout=60) as answer:
                found = json.load(answer)["sequences"]
        except HTTPError:  # a partition has no owner for a moment
            return None
        numbers = {worker_of(one["identifier"]) for one in found if one["role"] == "destination"}
        return self.brokers.owners().get(next(iter(numbers), -1))

    def left(self) -> int:
        """The number of contents that the stores have."""
        found = 0
        for partition in range(PARTITIONS):
            place = self.brokers.store.replace("NODE", "reader")
            store = open_store(Worker(partition, PARTITIONS).store_of(place), read_only=True)
            found += len(list(store.contents.names()))
            store.close()
        return found

    async def verify(self) -> None:
        """The rules of the stored records hold, and no content is left that no record names."""
        store = self.brokers.store
        found = await asyncio.to_thread(verifier_of(store), store, reads_all=True)
        assert found.problems == ()

    async def stop(self) -> None:
        self.brokers.clean()
        if self.service is not None:
            await self.service.kill()


class Gate:
    """Passes connections on to a port. Of what comes back, each connection first passes so many bytes, and the rest
    once the gate is opened.

    Args:
        most: The bytes.
    """

    def __init__(self, most: int) -> None:
        self.port, self.url = 0, ""
        self.is_reached, self.is_open = asyncio.Event(), asyncio.Event()
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> None:
        self.port = port
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            return
        for task in (self._pass(reader, there, None), self._pass(back, writer, self._most)):
            self._tasks.add(asyncio.ensure_future(task))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            passed = 0
            while data := await reader.read(1 << 16):
                passed += len(data)
                if most is not None and passed > most:
                    self.is_reached.set()
                    await self.is_open.wait()
                writer.write(data)
                await writer.drain()


@pytest.fixture(params=["postgresql", "kafka"])
async def idle_cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "service").mkdir()
    (port,) = free_ports(1)
    service = f"http://127.0.0.1:{port}/"
    made = Cluster(Brokers(tmp_path, store_on(request.param, request), service), port, tmp_path)
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def cluster(idle_cluster: Cluster) -> Cluster:
    await idle_cluster.start("large_attachments")
    return idle_cluster


@pytest.fixture(params=[4, 64], ids="{} MB".format)
async def gates(request: pytest.FixtureRequest, idle_cluster: Cluster) -> AsyncIterator[dict[str, Gate]]:
    """Between the nodes and those that own partitions. Most of a reply of so many megabytes is still at its owner when
    the gate is reached."""
    size = request.param << 20
    brokers, made = idle_cluster.brokers, {name: Gate(size // 16) for name in ("b", "c")}
    for (name, gate), port in zip(made.items(), free_ports(2), strict=True):
        await gate.start(port)
        brokers.node_ports[name], brokers.environments[name] = port, {"HOLDFAST_NODE_URL": gate.url}
    film = idle_cluster.directory / "service" / "film"
    large_replies.write_film(film, size)
    await idle_cluster.start("large_replies")
    yield made
    for gate in made.values():
        await gate.close()


async def send(directory: Path, url: str, film: Path, count: int) -> asyncio.subprocess.Process:
    program = [large_attachments.__file__, url, str(film), str(count)]
    return await asyncio.create_subprocess_exec(sys.executable, *program, cwd=directory, stdout=asyncio.subprocess.PIPE)


def delivered(cluster: Cluster) -> list[str]:
    file = cluster.directory / "service" / "delivered"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.crash
@pytest.mark.parametrize("kills", [False, True], ids=["calm", "owner killed"])
async def test_a_gigabyte_through_a_node_without_partitions(cluster: Cluster, tmp_path: Path, kills: bool) -> None:
    film = tmp_path / "film"
    large_replies.write_film(film, MEGABYTES << 20)
    source = await send(tmp_path, cluster.brokers.urls["a"], film, 2)
    try:
        if kills:
            await until(lambda: cluster.owner() is not None, 300)
            owner = cluster.owner()
            assert owner is not None
            node = cluster.brokers.nodes[owner]
            await until(lambda: cluster.read(owner) > MEGABYTES << 18, 300)
            cluster.measure()
            await asyncio.to_thread(node.kill)
        assert source.stdout is not None
        *_, last = (await source.stdout.read()).decode().splitlines() or ["nothing"]
        assert last.startswith("done "), last
        await until(lambda: len(set(delivered(cluster))) == 2, 900)
    finally:
        if source.returncode is None:
            source.kill()
            await source.wait()
    digest = large_replies.digest(film)
    assert set(delivered(cluster)) == {f"urn:film:{number} {digest}" for number in range(2)}
    engine = cluster.brokers.store.partition(":")[0].partition("+")[0]
    assert max(cluster.measure()) < MOST_MEMORY[engine], cluster.peaks
    await cluster.verify()
    while await asyncio.to_thread(cluster.left):
        await asyncio.sleep(0.1)


@pytest.mark.crash
async def test_the_owner_is_killed_while_another_node_gets_its_large_reply(
    idle_cluster: Cluster, gates: dict[str, Gate], tmp_path: Path
) -> None:
    brokers = idle_cluster.brokers
    program = [sys.executable, large_replies.__file__, brokers.urls["a"]]
    source = await asyncio.create_subprocess_exec(*program, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    try:
        reached = [asyncio.ensure_future(gate.is_reached.wait()) for gate in gates.values()]
        done, others = await asyncio.wait(reached, timeout=300, return_when=asyncio.FIRST_COMPLETED)
        assert done, "the reply takes another way"
        for one in others:
            one.cancel()
        owner = next(name for name, gate in gates.items() if gate.is_reached.is_set())
        assert await asyncio.to_thread(idle_cluster.owner) == owner
        await asyncio.to_thread(brokers.nodes[owner].kill)
        for gate in gates.values():
            gate.is_open.set()
        assert source.stdout is not None
        digest, *_ = (await source.stdout.read()).decode().split() or ["nothing"]
        assert digest == large_replies.digest(tmp_path / "service" / "film")
    finally:
        if source.returncode is None:
            source.kill()
            await source.wait()
    await idle_cluster.verify()
