"""The demo: real departures through a broker, a bad network and kills, into a Delta table and to a second service.

This module controls one run: it starts, kills and restarts processes and reports progress. Both networks are in this
process. The RM Source, the broker, the service behind it and the Spark driver are separate processes, so that they can
be killed. ``demo.check`` judges the result, and trusts none of the counters here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from demo.check import Verdict, check_landed, check_queue
from demo.flights import SCHEMA_DDL
from demo.processes import STALLED_AFTER, Child, DemoFailed, Server, lines_of
from holdfast.client.offsets import parse
from holdfast.exceptions import ConfigurationError
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import TransportError
from holdfast.http.server.server import event_loop_factory
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy

MARKER = "holdfast-demo.json"
LOGS = ("source.log", "broker.log", "service.log", "spark.log")
OWNED = (MARKER, "broker.toml", "broker", "service", "outbox", "landed", "checkpoint", *LOGS)
"""Everything that a run creates in its directory; the next run removes exactly this."""

QUEUE = "inbox"
"""The broker's queue, and the service's."""
PARTITIONS = 4
SOURCE, BROKER, SERVICE, SPARK = "the source", "the broker", "the second service", "the Spark driver"

KILLS = ((0.1, SOURCE), (0.25, BROKER), (0.4, SERVICE), (0.5, SOURCE), (0.7, BROKER), (0.85, SERVICE))
"""Shares of the messages that the broker has acknowledged, and the process killed at that share."""
KILL_DRIVER_AFTER = 2
"""Number of landed batches before the Spark driver is killed. The broker is killed after the first batch, while Spark
reads from it."""

BROKER_TOML = """\
# A broker with one queue. Spark reads it, and a forwarder sends every message to a second service.
store = "{store}"
partitions = {partitions}
listen.port = {port}
admin.port = {admin_port}

[queues.{queue}]

[forwarders.service]
queue = "{queue}"
to = "{to}"

# Made for this network: it is local, so a round trip takes milliseconds, and it loses messages at random, not because
# it is full. So early retransmission does no harm. The defaults suit the open network.
[forwarders.service.policy.sending]
window = 32
initial_window = 16
retransmission = {{initial = "250ms", floor = "50ms", cap = "250ms"}}

[forwarders.service.policy.circuit]
first = "250ms"
cap = "1s"
"""


@dataclass(frozen=True)
class Options:
    """The options of one run.

    Args:
        messages: Number of departures.
        loss: Probability that a request is lost, and separately that a response is lost.
        seed: Of the network's faults and of the moments of the kills.
        out: Directory for all files of the run.
    """

    messages: int
    loss: float
    seed: int
    out: Path


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
        queue: Verdict on the broker's queue.
        forwarded: Verdict on the second service's queue.
        landed: Verdict on the landed table.
        counts: Counters of the run, by the table's labels.
        airlines: The delay summary.
        seconds: Duration of the run.
    """

    queue: Verdict
    forwarded: Verdict
    landed: Verdict
    counts: dict[str, int] = field(default_factory=dict)
    airlines: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether every departure was accepted, forwarded and landed once, in order and unchanged."""
        return self.queue.is_exact and self.forwarded.is_exact and self.landed.is_exact


def progress_text(acknowledged: int, messages: int, forwarded: int, landed: int, *, lost: int) -> str:
    """Describe the progress of a run. Spark takes about half a minute to start, in which no rows land."""
    by_spark = f"{landed:,} landed by Spark" if landed else "Spark is starting"
    return (
        f"{acknowledged:,}/{messages:,} acknowledged by the broker, {forwarded:,} forwarded, {by_spark}; "
        f"{lost:,} lost on the wire"
    )


class Teller:
    """Reports progress: one live line on a terminal, or a line every few seconds in a log.

    Args:
        stream: The output.
        every: Seconds between lines in a log.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 5.0) -> None:
        self._stream = stream or sys.stdout
        self._is_live = self._stream.isatty()
        self._every = every
        self._began = self._told = time.monotonic()

    def event(self, text: str) -> None:
        """Print a permanent line."""
        start = "\r\x1b[2K" if self._is_live else ""
        self._stream.write(f"{start}{self.seconds:6.1f} s  {text}\n")
        self._stream.flush()

    def status(self, text: str) -> None:
        """Print the current progress; may be called often."""
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[2K{f'{self.seconds:6.1f} s  {text}'[:width]}")
            self._stream.flush()
        elif time.monotonic() - self._told >= self._every:
            self._told = time.monotonic()
            self.event(text)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began


def prepare(out: Path, owned: Sequence[str] = OWNED) -> None:
    """Create the output directory, or remove the files of an earlier demo from it, and nothing else.

    Args:
        out: The directory.
        owned: Names that the demo creates in it.

    Raises:
        ConfigurationError: the directory contains other files.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARKER).is_file())):
        raise ConfigurationError(
            f"{out} is not empty, and its content is not from an earlier demo",
            remedy="Choose another directory with --out, or delete the content of this one.",
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in owned:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (out / MARKER).write_text(json.dumps({"made by": "holdfast demo", "owns": owned}) + "\n", encoding="utf-8")


class Demo:
    """One run.

    Args:
        options: Its options; ``options.out`` is prepared.
        teller: Reports the progress.
    """

    def __init__(self, options: Options, teller: Teller) -> None:
        self._options = options
        self._teller = teller
        self._draw = random.Random(options.seed)
        self._acknowledged = self._resent = self._resent_before = 0
        self._forwarded = self._landed = 0
        self._problem = ""
        self._landed_to: dict[int, int] = {}
        self._moved = (0, 0, 0)
        self._moved_at = time.monotonic()

    async def run(self) -> Outcome:
        """Run from the first process to the verdict, and leave no process behind in any case.

        Raises:
            DemoFailed: a part of the demo failed, or there is no further progress.
        """
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        options = self._options
        port, admin_port, service_port, service_admin_port = free_ports(4)
        faults = Faults(options.loss, options.loss, double=0.1, delay=0.1, max_delay=0.02)
        try:
            async with (
                HTTPClient(total_timeout=10.0) as http,
                LossyProxy(f"http://127.0.0.1:{port}/", faults, seed=options.seed) as before,
                LossyProxy(f"http://127.0.0.1:{service_port}/", faults, seed=options.seed + 1) as behind,
            ):
                self._before, self._behind = before, behind
                self._write_config(port, admin_port)
                admin = f"http://127.0.0.1:{admin_port}"
                self._broker = self._server(
                    BROKER, admin, http, ["broker", "--config", str(options.out / "broker.toml")]
                )
                service_admin = f"http://127.0.0.1:{service_admin_port}"
                told = [
                    "receive",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(service_port),
                    "--admin",
                    str(service_admin_port),
                ]
                told += ["--store", str(options.out / "service"), "--log-level", "info"]
                self._service = self._server(SERVICE, service_admin, http, told)
                self._driver = Child(SPARK, "holdfast.pipeline.jobs.land", self._job(admin), options.out / "spark.log")
                sending = [str(options.out / "outbox"), before.url, str(options.messages)]
                self._source = Child(SOURCE, "demo.sending", sending, options.out / "source.log")
                try:
                    return await self._run()
                finally:
                    for child in (self._source, self._driver, self._broker, self._service):
                        await child.kill()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def _write_config(self, port: int, admin_port: int) -> None:
        told = BROKER_TOML.format(
            store=self._options.out.resolve() / "broker",
            partitions=PARTITIONS,
            port=port,
            admin_port=admin_port,
            queue=QUEUE,
            to=self._behind.url,
        )
        (self._options.out / "broker.toml").write_text(told, encoding="utf-8")

    def _server(self, name: str, admin: str, http: HTTPClient, arguments: list[str]) -> Server:
        log = self._options.out / ("broker.log" if name == BROKER else "service.log")
        return Server(name, arguments, log, admin, http)

    def _job(self, admin: str) -> list[str]:
        options = self._options
        # Few batches, because each costs Spark seconds of processor time, but enough for kills between them.
        rows = max(1, min(20_000, options.messages // 5))
        interval = min(15.0, options.messages / 10_000)
        job = ["--json", "--broker", admin, "--queue", QUEUE, "--out", str(options.out / "landed")]
        job += ["--away-seconds", "60"]  # also if the broker is dead when Spark starts
        job += ["--checkpoint", str(options.out / "checkpoint"), "--schema", SCHEMA_DDL]
        return [*job, "--max-rows-per-batch", str(rows), "--interval", f"{interval:g}"]

    async def _run(self) -> Outcome:
        async with asyncio.TaskGroup() as group:
            for server in (self._broker, self._service):
                group.create_task(self._bring_up(server))
        for server in (self._broker, self._service):
            await server.hold(QUEUE, "verdict")
        async with asyncio.TaskGroup() as group:
            telling = [group.create_task(self._tell()), group.create_task(self._watch())]
            killing = group.create_task(self._kill_in_turn())
            landing = group.create_task(self._land(all_sent := asyncio.Event()))
            await self._send()
            await killing
            self._teller.event(f"all {self._options.messages:,} messages are acknowledged by the broker")
            all_sent.set()
            await landing
            await self._all_forwarded()
            for task in telling:
                task.cancel()
        for server in (self._broker, self._service):
            await server.read_counts()
        return await self._judge()

    # --- the broker and the service -------------------------------------------------------------------------------

    async def _bring_up(self, server: Server) -> None:
        seconds = await server.come_up()
        self._teller.event(f"{server.name} {'is up' if server.lives == 1 else 'is back'} after {seconds:.1f} s")

    async def _kill_in_turn(self) -> None:
        for share, name in KILLS:
            while self._acknowledged < share * self._options.messages:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self._draw.uniform(0, 0.1))
            if name != SOURCE:
                await self._kill(self._broker if name == BROKER else self._service)
            elif self._source.is_running:
                await self._source.kill()  # the loop that reads its output starts it again
                self._told_kill(name)

    async def _kill(self, server: Server) -> None:
        await server.read_counts()
        await server.kill()
        self._told_kill(server.name)
        await self._bring_up(server)

    def _told_kill(self, name: str) -> None:
        so_far = f"{self._acknowledged:,} acknowledged, {self._forwarded:,} forwarded, {self._landed:,} landed so far"
        self._teller.event(f"killed {name} with SIGKILL; {so_far}")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            for server in (self._broker, self._service):
                with contextlib.suppress(TransportError):  # the demo is just killing it
                    await server.read_counts()
            with contextlib.suppress(TransportError):
                self._forwarded = sum((await self._service.ends(QUEUE)).values())

    async def _all_forwarded(self) -> None:
        while self._forwarded < self._options.messages:
            await asyncio.sleep(0.05)

    # --- the source -----------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Run the source until every departure is sent, one Sequence an airline; restart it after each kill."""
        while True:
            async for told in lines_of(await self._source.start()):
                self._acknowledged = max(self._acknowledged, told["acknowledged"])
                self._resent = self._resent_before + told["resent"]
                self._problem = told["problem"]
            code = await self._source.ended()
            self._resent_before = self._resent
            if code == 0:
                return
            if code != -signal.SIGKILL:
                raise self._source.failed(f"ended with exit code {code}")
            self._teller.event(f"started {SOURCE} again, with the same store")

    # --- the Spark driver -----------------------------------------------------------------------------------------

    async def _land(self, all_sent: asyncio.Event) -> None:
        """Run Spark until every delivered message has landed, with kills among the first batches."""
        batches = 0
        self._teller.event(f"starting {SPARK}: its first rows may take half a minute")
        async for event in self._events(await self._driver.start()):
            batches += event["event"] == "batch"
            self._take(event)
            if batches == 1 and event["event"] == "batch" and all_sent.is_set():
                await self._kill(self._broker)  # while Spark reads from it
            if batches == KILL_DRIVER_AFTER:
                break
        await asyncio.sleep(self._draw.uniform(0, 0.5))  # into the next batch
        await self._driver.kill()
        self._told_kill(SPARK)
        lines = self._events(await self._driver.start())
        self._teller.event(f"started {SPARK} again, with the same checkpoint")
        ends: dict[int, int] | None = None
        async for event in lines:
            self._take(event)
            if all_sent.is_set() and ends is None:
                ends = await self._broker.ends(QUEUE)
            if ends is not None and all(self._landed_to.get(one, 0) >= end for one, end in ends.items()):
                break
        if await self._driver.stop(60.0) != 0:
            raise self._driver.failed("ended with an error")

    async def _events(self, output: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        """Yield the driver's events, and ``{"event": "nothing"}`` at intervals while it prints none."""
        while True:
            try:
                async with asyncio.timeout(0.5):
                    line = await output.readuntil()
            except TimeoutError:
                yield {"event": "nothing"}
                continue
            except asyncio.IncompleteReadError:
                raise self._driver.failed("ended unexpectedly") from None
            yield json.loads(line)

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "batch":
            self._landed = event["total"]
            self._landed_to = parse(event["end"]).queues[QUEUE].positions

    # --- what is told ---------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            now, lost = time.monotonic(), self._before.counts.lost + self._behind.counts.lost
            counts = (self._acknowledged, self._options.messages, self._forwarded, self._landed)
            self._teller.status(progress_text(*counts, lost=lost))
            moved = (self._acknowledged, self._forwarded, self._landed)
            if self._moved != moved:
                self._moved, self._moved_at = moved, now
            elif now - self._moved_at > STALLED_AFTER:
                raise DemoFailed(
                    f"nothing has moved for {STALLED_AFTER:.0f} s: {self._acknowledged:,} acknowledged, "
                    f"{self._forwarded:,} forwarded, {self._landed:,} landed"
                    f"{f'; {self._problem}' if self._problem else ''}",
                    remedy=f"The logs are in {self._options.out}.",
                )

    async def _judge(self) -> Outcome:
        self._teller.event("reading both queues and the landed table, and comparing each field with the data set")
        count, landed = self._options.messages, self._options.out / "landed"
        outcome = Outcome(
            await asyncio.to_thread(check_queue, self._broker.admin, QUEUE, count),
            await asyncio.to_thread(check_queue, self._service.admin, QUEUE, count),
            await asyncio.to_thread(check_landed, landed, count),
        )
        for server in (self._broker, self._service):
            await server.stop(30.0)
        before, behind = self._before.counts, self._behind.counts
        outcome.counts = {
            "sent": self._acknowledged,
            "lost before the broker": before.lost,
            "lost behind the broker": behind.lost,
            "unreachable": before.unreachable + behind.unreachable,
            "doubled": before.doubled + behind.doubled,
            "delayed": before.delayed + behind.delayed,
            "dropped by the broker": self._broker.duplicates_dropped,
            "dropped by the service": self._service.duplicates_dropped,
            "kills": sum(child.lives - 1 for child in (self._source, self._broker, self._service, self._driver)),
        }
        if outcome.landed.rows:
            self._teller.event("asking Spark how late each airline was")
            outcome.airlines = await self._summarise(landed)
        outcome.seconds = self._teller.seconds
        return outcome

    async def _summarise(self, landed: Path) -> list[dict[str, Any]]:
        child = Child("the summary", "demo.summary", [str(landed)], self._options.out / "spark.log")
        try:
            output = await (await child.start()).read()
            if await child.stop(60.0) != 0:
                raise child.failed("failed")
        finally:
            await child.kill()
        return [json.loads(line) for line in output.splitlines()]


def run(options: Options, teller: Teller | None = None) -> Outcome:
    """Run the demo; see :class:`Demo`. Ctrl-C ends it and all its processes.

    Raises:
        ConfigurationError: the directory contains other files.
        DemoFailed: a part of the demo failed.
    """
    prepare(options.out)
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(Demo(options, teller or Teller()).run())
