"""Real kills of the processes of a query that sends rows: the driver's at each step of a batch, an executor's; and
speculation, with a real cluster.

Between them and a real server stands who says when: requests are the steps, and the process that sends one is killed
before or after it is done.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crew import Crew
from hive_dataset import dataset_of
from meddler import Meddler
from quick_spark import quick_spark
from sink_steps import SERVED, Sent
from spark_cluster import Cluster

import holdfast
from holdfast.client.data_plane import DataPlane
from holdfast.testing.ports import free_ports

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.crash, pytest.mark.timeout(900)]

CHILD = Path(__file__).parents[2] / "support" / "sink_child.py"
SOURCE = str(Path(__file__).parents[3] / "src")
ROWS = 40
"""In two partitions, 10 a batch: so 4 batches."""


class Child:
    """The program, in a process group of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._errors = directory / "child.log"
        command = [sys.executable, str(CHILD), *arguments]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=os.environ | quick_spark() | {"PYTHONPATH": SOURCE},
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Its exit code; 1 if Spark did not wait for a slow start of its own workers, which is tried again."""
        code = self.process.wait()
        text = self._errors.read_text()
        assert code in (0, -signal.SIGKILL) or "Python worker failed to connect back" in text, text[-6000:]
        return code


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Meddler]:
    """A server with messages of two Sequences, in a process of its own, behind a meddler."""
    crew = Crew(tmp_path, "--port", "0", "--admin", "0", module=SERVED)
    url, admin = crew.url(), crew.url()
    send(url)
    meddler = Meddler(admin)
    yield meddler
    meddler.stop()
    crew.clean()


def send(url: str) -> None:
    """The messages, in two Sequences."""
    for name in ("one", "two"):
        with holdfast.sync.Source(url, store=":memory:") as source:
            for number in range(ROWS // 2):
                source.send(f"<{name}>{number}</{name}>", action="urn:test:submit")
            source.flush(60)


def assert_exact(server: Meddler) -> None:
    """Every row once, those of one Sequence in their order."""
    found = sent(server)
    for name in ("one", "two"):
        of_one = [body for body in found if body.startswith(f"<{name}>")]
        assert of_one == [f"<{name}>{number}</{name}>" for number in range(ROWS // 2)]
    assert len(found) == ROWS


def sent(server: Meddler) -> list[str]:
    """The bodies of the rows that the query's sink has sent."""
    (sink,) = DataPlane(server.target)._json("GET", "/sinks")["sinks"]
    return Sent(server.target).bodies(sink["name"])


def test_a_driver_that_is_killed_at_each_step_of_a_batch_sends_every_row_once(server: Meddler, tmp_path: Path) -> None:
    steps = [  # which request of which batch, and whether it is done before the driver dies
        ("parts", 0, "before"),
        ("batches", 0, "before"),
        ("batches", 1, "after"),
    ]
    died = killed_at(steps, server, lambda: Child(tmp_path, "local[2]", server.url, str(tmp_path / "checkpoint")))
    assert died == steps
    assert_exact(server)


def killed_at(
    steps: list[tuple[str, int, str]], server: Meddler, start: Callable[[], Child]
) -> list[tuple[str, int, str]]:
    """Kill a driver at each of these, and start it again until it ends by itself; at which it died."""
    ahead, died = list(steps), list[tuple[str, int, str]]()
    lock = threading.Lock()

    def meddle(request: str) -> str | None:
        found = re.search(r"/(parts)\?.*batch=(\d+)|/(batches)/(\d+)", request)
        if not found:
            return None
        this = found[1] or found[3], int(found[2] or found[4])
        with lock:
            if not ahead or this != ahead[0][:2] or len(died) != len(steps) - len(ahead):
                return None
            died.append(ahead[0])
        child.kill()
        return died[-1][2]

    server.on_sink = meddle
    while True:
        child = start()
        code = child.end()
        if len(died) > len(steps) - len(ahead):
            ahead.pop(0)
        if code == 0:
            return died


def test_a_driver_killed_around_a_publication_leaves_each_row_in_one_place_once(
    server: Meddler, tmp_path: Path
) -> None:
    steps = [("batches", 0, "before"), ("batches", 1, "after"), ("parts", 2, "after")]
    table = tmp_path / "refused"
    arguments = ("local[2]", server.url, str(tmp_path / "checkpoint"), f"refused={table}")
    assert killed_at(steps, server, lambda: Child(tmp_path, *arguments)) == steps
    found = dataset_of(table).to_table().to_pylist()
    assert all(one["refused_reason"] and one["refused_column"] == "body" for one in found)
    refused = [f"<{one['body']}" for one in found]
    for name in ("one", "two"):
        every = [f"<{name}>{number}</{name}>" for number in range(ROWS // 2)]
        bad = [one for one in every if one.endswith((f"3</{name}>", f"8</{name}>"))]
        assert sorted(one for one in refused if one.startswith(f"<{name}>")) == sorted(bad)
        assert [one for one in sent(server) if one.startswith(f"<{name}>")] == [one for one in every if one not in bad]
    assert len(refused) == 8


def test_a_server_that_is_killed_under_a_running_query_has_every_row_once(tmp_path: Path) -> None:
    port, admin = free_ports(2)

    def serve() -> Crew:
        made = Crew(tmp_path, "--port", str(port), "--admin", str(admin), module=SERVED)
        assert made.url() and made.url()
        return made

    crew = serve()
    send(f"http://127.0.0.1:{port}/")
    server = Meddler(f"http://127.0.0.1:{admin}")
    ahead = [("/parts", 0, "before"), ("/batches/", 1, "before"), ("/batches/", 2, "after"), ("/parts", 3, "after")]
    lock = threading.Lock()

    def meddle(request: str) -> str | None:
        nonlocal crew
        with lock:
            what, batch, when = ahead[0] if ahead else ("nothing", 0, "")
            if what not in request or not re.search(rf"batch={batch}&|/batches/{batch}$", request):
                return None
            ahead.pop(0)
            if when == "after":  # while it is at work on it, or just after
                threading.Timer(0.002, again).start()
            else:
                again()
        return when

    def again() -> None:
        nonlocal crew
        crew.clean()
        crew = serve()

    server.on_sink = meddle
    try:
        assert Child(tmp_path, "local[2]", server.url, str(tmp_path / "checkpoint")).end() == 0
        assert not ahead
        assert_exact(server)
    finally:
        server.stop()
        crew.clean()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], tuple[Cluster, str]]]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), PYTHONPATH=SOURCE, PYSPARK_PYTHON=sys.executable)
    url = made.start(workers=2)
    yield lambda: (made, url)
    made.stop()


CLUSTER = ("spark.executor.memory=512m", "spark.executor.cores=1", "spark.cores.max=2", "spark.driver.host=127.0.0.1")


def test_an_executor_killed_while_it_stages_is_replaced_and_sends_each_row_once(
    server: Meddler, tmp_path: Path, cluster: Callable[[], tuple[Cluster, str]]
) -> None:
    made, master = cluster()
    killed: list[int] = []

    def meddle(request: str) -> str | None:
        if "/parts?" in request and "batch=1" in request and not killed:
            killed.append(made.executors()[0])
            os.kill(killed[0], signal.SIGKILL)
        return None

    server.on_sink = meddle
    while Child(tmp_path, master, server.url, str(tmp_path / "checkpoint"), *CLUSTER).end() != 0:
        pass
    assert killed
    assert_exact(server)


def test_of_two_attempts_at_a_task_that_staged_the_same_rows_one_is_sent(
    server: Meddler, tmp_path: Path, cluster: Callable[[], tuple[Cluster, str]]
) -> None:
    _, master = cluster()
    slow: list[str] = []
    published = threading.Event()

    def meddle(request: str) -> threading.Event | None:
        if "/batches/1" in request:
            published.set()
        if "/parts?" in request and "batch=1" in request and not slow:
            slow.append(request)
            return published  # its rows are staged, and it hears of that when the batch is published without them
        return None

    server.on_sink = meddle
    speculation = ("spark.speculation=true", "spark.speculation.quantile=0.5", "spark.speculation.multiplier=1.1")
    while Child(tmp_path, master, server.url, str(tmp_path / "checkpoint"), *CLUSTER, *speculation).end() != 0:
        published.clear()
        slow.clear()
    (partition,) = re.findall(r"token=(\d+)-", slow[0])
    attempts = {re.sub(r".*token=(\d+-\w+)-\d+.*", r"\1", one) for one in server.requests if "batch=1&token=" in one}
    assert len([one for one in attempts if one.startswith(f"{partition}-")]) > 1
    assert_exact(server)
