"""What every test run shares: Hypothesis profiles, which tests share a worker, and no process left behind."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import interop_cells
import maven_build
import pytest
import results_file
from _pytest.runner import runtestprotocol
from databases import KINDS, Server

from examples import PROFILE, examples

# No example fails for being slow: how long one takes, the machine decides. And the same examples every time: a red run
# is the change's doing, and the blob reproduces it.
hypothesis.settings.register_profile(
    "default",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    print_blob=True,
)
# Five times as many: scripts/test --nightly
hypothesis.settings.register_profile("nightly", parent=hypothesis.settings.get_profile("default"))
# New examples every time, and many of them: HYPOTHESIS_PROFILE=search scripts/test tests/core
hypothesis.settings.register_profile(
    "search", parent=hypothesis.settings.get_profile("default"), derandomize=False, max_examples=10_000
)
hypothesis.settings.load_profile(PROFILE)


# --- Tests of one JVM share one worker: it takes seconds to start, and Spark's a gigabyte to keep -----------------
# So do tests with the live WCF client: two at a time would run many of its processes. And so does a file that makes
# something for all its tests: each worker with a test of it would make it again.

# The marker of those tests, and the words by which xdist's controller, which collects no test, knows their files.
_SHARED = {
    "spark": ["pytest.mark.spark"],
    "cxf": ["pytest.mark.cxf", "from java_contract import"],
    "wcf": ["pytest.mark.wcf"],
    "kafka": ["kafka_nodes"],
}
TESTS = Path(__file__).parent
_FOR_ALL_ITS_TESTS = re.compile(r"""^@cache\b|^@pytest\.fixture\(scope="(module|session)\"""", re.MULTILINE)
# A file that one worker has for a minute and a half, mostly waiting: at the end it would be the only one left.
_LONG = str(TESTS / "endpoint" / "workers" / "test_workers.py")
# The order of the tests, by what they share or else by room: first those that wait for peers, timers and databases more
# than they compute, last those that compute all the time. Of six workers, four begin at the front, and two at the back.
# So both processors have work all the time, and what is left for the end is quick.
_ORDER = (
    *("wcf", "cxf", _LONG, "interop", "demo", "examples", "bench", "docs"),
    *("endpoint", "broker", "cluster", "cli", "scripts"),
    *("http", "testing", "wsdl", "store", "", "wire", "security", "core", "pipeline", "simulation"),
    *("a Spark of their own", "the Spark of the pipelines"),
)
# A worker takes files of these rooms as a whole: thousands of tests, each of which would cost a message.
_QUICK = ("wire", "security", "core")


def _room(path: str) -> str:
    return (Path(path).relative_to(TESTS).parts[:-1] or ("",))[0]


@cache
def _scope(path: str) -> str | None:
    """The peer that the tests of a file share, or that its tests start one after the other; the file itself where it
    makes something for all its tests, or has quick ones only; else None."""
    text = Path(path).read_text(encoding="utf-8")
    marker = next((marker for marker, words in _SHARED.items() if any(word in text for word in words)), None)
    if marker is None:
        return path if _room(path) in _QUICK or _FOR_ALL_ITS_TESTS.search(text) else None
    if marker != "spark":
        return marker
    return "the Spark of the pipelines" if _room(path) == "pipeline" else "a Spark of their own"


@cache
def _place(path: str) -> int:
    """The place of a file's tests in the order."""
    scope = _scope(path)
    return _ORDER.index(scope if scope in _ORDER else _room(path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Any worker takes the next test, but files that share a peer go to one: ``cxf``'s; ``wcf``'s; the pipelines with
    the ``spark`` marker; programs that start a Spark of their own; and each file that makes something for all its
    tests.

    pytest-xdist's own ``--dist loadgroup`` no longer groups anything since pytest 9.2.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class PeersTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(f"{config.rootpath}/{nodeid.partition('::')[0]}") or nodeid

        def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
            # Asked after each test: it would count what is done as well, thousands of times thousands.
            for scope in [scope for scope, tests in workload.items() if all(tests.values())]:
                del workload[scope]
            return super()._pending_of(workload)

        def schedule(self) -> None:
            super().schedule()
            # A worker begins a test when it knows the next one. The worker that replaces a dead one got one alone.
            for node in self.nodes:
                self._reschedule(node)

        def _assign_work_unit(self, node: Any) -> None:
            if int(node.gateway.id.removeprefix("gw")) % 3 == 1:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False  # by their numbers of tests
    return PeersTogether(config, log)


@pytest.hookimpl(tryfirst=True)  # before -m decides
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A JVM has all the time that a busy machine takes to start it; what takes a minute must be asked for."""
    rows = Counter[str]()
    for item in items:
        # A number that shares no factor with those of the rows of a grid's sides gives each side's rows in turn.
        every = item.get_closest_marker("every")
        if every is not None and item.get_closest_marker("nightly") is None:
            function = item.nodeid.partition("[")[0]
            if rows[function] % every.args[0]:
                item.add_marker("nightly")
            rows[function] += 1
    marked = {item: {mark.name for mark in item.iter_markers()} for item in items}
    if "nightly" not in config.option.markexpr and not config.option.results:
        config.hook.pytest_deselected(items=[item for item in items if "nightly" in marked[item]])
        items[:] = [item for item in items if "nightly" not in marked[item]]
    interop_cells.declare([item for item in items if not marked[item].isdisjoint(("cell", "cxf", "wcf"))])
    items.sort(key=lambda item: _place(str(item.path)))
    for item in items:
        marks = marked[item]
        if "spark" in marks and "timeout" not in marks:
            item.add_marker(pytest.mark.timeout(900))
        if not marks.isdisjoint(_SHARED) and _scope(str(item.path)) in (None, str(item.path)):
            raise pytest.UsageError(
                f"{item.nodeid} shares a peer, but by its file's text conftest.py does not see this"
            )


# --- a worker sends little about a test that passes ---------------------------------------------------------------
# Of twenty thousand tests, each would send six messages, which cost a worker and the controller as much processor time
# as the quick half of the tests itself.


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """As pytest's own, but without the start, the end, and the reports of a set-up and a teardown that pass."""
    options = item.config.option
    if not hasattr(item.config, "workerinput") or options.xmlpath or options.durations is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


# --- the results file, from which the matrices of the documentation are made -------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    results_file.add_option(parser)


def record_results(config: pytest.Config) -> None:
    """Record whole tests: a result of some cases would replace that of all of them."""
    if config.option.keyword or config.option.markexpr or any("[" in one for one in config.args):
        raise pytest.UsageError("--results records whole tests: name files or functions, without -k, -m and cases")
    if results_file.is_controller():
        recorder = results_file.Recorder(Path(config.option.results), results_file.named_tests())
        config.pluginmanager.register(recorder)


# --- the garbage collector leaves the collected tests alone --------------------------------------------------------
# Each worker has all sixteen thousand tests, half a million objects that live until its end. To walk through them took
# the collector a sixth of the processor time of the core's tests.


def pytest_collection(session: pytest.Session) -> None:
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # without a search for garbage: there is little, and it takes half a second in each worker
    gc.set_threshold(5_000)
    gc.enable()


# --- a test that configures the log changes it for no other ------------------------------------------------------


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Undoes what ``configure_logs`` does: to the standard library's logger and to how a line is rendered."""
    from holdfast.endpoint import logs

    logger = logging.getLogger("holdfast")
    before = logger.handlers[:], logger.level, logger.propagate, logs._render, logs._worker
    yield
    logger.handlers[:], level, logger.propagate, logs._render, logs._worker = before
    logger.setLevel(level)


# --- private database servers, one of a kind for each worker that needs one ---------------------------------------


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """Gives the server of a kind, started when it is first asked for."""
    running: dict[str, Server] = {}

    def server(kind: str) -> Server:
        if reason := KINDS[kind].missing():
            pytest.skip(f"{reason}: apt-get install postgresql mariadb-server")
        if kind not in running:
            running[kind] = KINDS[kind]()
            running[kind].begin()
        return running[kind]

    yield server
    for one in running.values():
        one.end()


@pytest.fixture(params=["postgresql", pytest.param("mariadb", marks=pytest.mark.nightly)])
def database(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Server:
    """A server of each kind. By default only the contract of the stores has MariaDB too."""
    return servers(request.param)


@pytest.fixture(scope="session")
def kafka_nodes(pytestconfig: pytest.Config) -> Iterator[Callable[[int], Any]]:
    """Gives a Kafka cluster of so many nodes, started when it is first asked for."""
    kafka = pytest.importorskip("kafka_nodes", reason="confluent-kafka is not installed: pip install 'holdfast[kafka]'")
    running, stack = dict[int, Any](), contextlib.ExitStack()

    def cluster(nodes: int = 1) -> Any:
        if reason := maven_build.available():
            pytest.skip(reason)
        if nodes not in running:
            try:
                one = kafka.KafkaNodes(pytestconfig.cache.mkdir("kafka-server"), nodes)
            except maven_build.Unavailable as error:
                pytest.skip(str(error))
            running[nodes] = stack.enter_context(one)
        return running[nodes]

    with stack:
        yield cluster


# --- small disks -----------------------------------------------------------------------------------------------------


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a file system of so many megabytes."""
    mounted: list[Path] = []

    def mount(megabytes: int) -> Path:
        place = tmp_path / f"disk-{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", place]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted here: {error}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=True)


# --- a test that leaves a process behind fails the run -----------------------------------------------------------

_LEFT_BEHIND = pytest.StashKey[list[str]]()
# These end with the process that started them: Spark's JVM, and the helpers of multiprocessing.
_END_BY_THEMSELVES = (
    "org.apache.spark.deploy.SparkSubmit",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)
# These end soon: an endpoint that has run for a minute leaves one to finish what it began. On a busy machine a test
# takes that minute.
_END_SOON = ("holdfast.endpoint.journal.parquet",)


def _living_children(parent: int) -> Iterator[str]:
    """Command lines of a process's children, zombies aside. Nothing where there is no /proc."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            state, parent_id = (directory / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if int(parent_id) == parent and state != "Z":
            yield f"{directory.name}: {command[:200]}"


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # Begun in a shell's background: the processes that tests start and interrupt would ignore it too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_LEFT_BEHIND] = []
    if config.option.results:
        record_results(config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    left = session.config.stash[_LEFT_BEHIND]
    if not getattr(session.config.option, "numprocesses", None):  # xdist's controller has its workers as children
        patience = time.monotonic() + 60
        while True:
            living = list(_living_children(os.getpid()))
            if time.monotonic() > patience or not any(name in child for child in living for name in _END_SOON):
                break
            time.sleep(0.05)
        left += [child for child in living if not any(name in child for name in _END_BY_THEMSELVES)]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_behind"] = left
    elif left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class _FromWorkers:
    """Collects what xdist's workers left behind. A plugin of its own: the hook exists only with xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._config.stash[_LEFT_BEHIND].extend(getattr(node, "workeroutput", {}).get("left_behind", []))


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(_FromWorkers(session.config))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for child in config.stash[_LEFT_BEHIND]:
        terminalreporter.write_line(f"ERROR a test left this process behind: {child}", red=True)
