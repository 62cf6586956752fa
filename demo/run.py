"""The demo: real departures through a bad network and three kills, into Parquet, and an exact table at the end.

Owns the course of one run: who is started, killed and restarted when, and what is told meanwhile. The RM Source and the
network are in this process; the RM Destination and the Spark driver are processes of their own, for they get killed.
What it all came to is judged by ``demo_check``, which trusts none of the counters here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from demo.check import ACTION, Verdict, check_landed, check_queue
from demo.flights import SCHEMA_DDL, Departure, departure_xml, departures
from demo.processes import QUEUE, Child, DemoFailed, destination
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.endpoint.lanes import Progress
from holdfast.endpoint.source import Sent, Source
from holdfast.exceptions import ConfigurationError
from holdfast.http.client import HTTPClient
from holdfast.http.outcome import Response, TransportError
from holdfast.http.server import event_loop_factory
from holdfast.pipeline.offsets import positions_of
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy

MARKER = "holdfast-demo.json"
OWNED = (MARKER, "inbox", "outbox", "landed", "checkpoint", "destination.log", "spark.log", "source.log")
"""What a run makes in its directory, and all that the next one removes."""

BATCH = 64
"""Departures handed to the source together: they share a sync of its store."""
OUTSTANDING = 64
"""Batches that are not acknowledged yet, at most: the source's memory stays the same however many there are to send."""

POLICY = SourcePolicy(
    # Made for this network: it is local, so a round trip is milliseconds, and it loses at random, not because it is
    # full, so that sending again soon does no harm. The defaults suit the open network.
    retransmission=RetransmissionPolicy(initial=0.25, floor=0.05, cap=0.25),
    window=32,
    initial_window=16,
)

KILL_AT = (0.30, 0.65)
"""The shares of messages acknowledged at which the destination is killed."""
KILL_DRIVER_AFTER = 2
"""Batches landed when the Spark driver is killed."""
STALLED_AFTER = 180.0
"""Seconds without progress after which the demo gives up rather than wait for ever."""


@dataclass(frozen=True)
class Options:
    """What one run is to be like.

    Args:
        messages: How many departures.
        loss: Probability that a request is lost, and, again, that a response is.
        seed: Of what the network does, and of the moments of the kills.
        out: Directory for everything the run makes.
    """

    messages: int
    loss: float
    seed: int
    out: Path


@dataclass
class Outcome:
    """What a run came to.

    Attributes:
        queue: What was delivered into the destination's queue.
        landed: What is in the Parquet files.
        counts: What was counted on the way, by the table's labels.
        airlines: The delay summary.
        seconds: How long it took.
    """

    queue: Verdict
    landed: Verdict
    counts: dict[str, int] = field(default_factory=dict)
    airlines: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether every departure was delivered and landed once, in order, as it was sent."""
        return self.queue.is_exact and self.landed.is_exact


class Teller:
    """Tells how far a run is: one live line on a terminal, a line every few seconds in a log.

    Args:
        stream: Where to.
        every: Seconds between lines in a log.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 5.0) -> None:
        self._stream = stream or sys.stdout
        self._is_live = self._stream.isatty()
        self._every = every
        self._began = self._told = time.monotonic()

    def event(self, text: str) -> None:
        """Something that stays to be read."""
        start = "\r\x1b[2K" if self._is_live else ""
        self._stream.write(f"{start}{self.seconds:6.1f} s  {text}\n")
        self._stream.flush()

    def status(self, text: str) -> None:
        """How far it is; may be called often."""
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[2K{f'{self.seconds:6.1f} s  {text}'[:width]}")
            self._stream.flush()
        elif time.monotonic() - self._told >= self._every:
            self._told = time.monotonic()
            self.event(text)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began


def prepare(out: Path) -> None:
    """Make the directory ready: made if missing; what an earlier demo left there is removed, and nothing else.

    Raises:
        ConfigurationError: something else is in it.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARKER).is_file())):
        raise ConfigurationError(
            f"{out} is not empty, and not from an earlier demo",
            remedy="Give another directory with --out, or empty this one yourself.",
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in OWNED:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (out / MARKER).write_text(json.dumps({"made by": "holdfast demo", "owns": OWNED}) + "\n", encoding="utf-8")


class Demo:
    """One run.

    Args:
        options: What it is to be like; ``options.out`` is prepared.
        teller: Told how far it is.
    """

    def __init__(self, options: Options, teller: Teller) -> None:
        self._options = options
        self._teller = teller
        self._draw = random.Random(options.seed)
        port, admin_port = free_ports(2)
        self._url = f"http://127.0.0.1:{port}/"
        self._admin = f"http://127.0.0.1:{admin_port}"
        out = options.out
        self._destination = destination(out / "inbox", port, admin_port, out / "destination.log")
        # Few batches, for each costs Spark seconds of processor time; but enough to be killed among them.
        rows = max(1, min(20_000, options.messages // 5))
        interval = min(15.0, options.messages / 10_000)
        job = ["--broker", self._admin, "--queue", QUEUE, "--out", str(out / "landed")]
        job += ["--checkpoint", str(out / "checkpoint"), "--schema", SCHEMA_DDL]
        job += ["--max-rows-per-batch", str(rows), "--interval", f"{interval:g}"]
        self._driver = Child("the Spark driver", "holdfast.pipeline.land_job", job, out / "spark.log")
        self._progress = Progress()
        self._duplicates_dropped = self._duplicates_now = self._landed = 0
        self._landed_to: dict[int, int] = {}
        self._moved = (0, 0)
        self._moved_at = time.monotonic()

    async def run(self) -> Outcome:
        """From the first process to the verdict; none is left behind, however it ends.

        Raises:
            DemoFailed: a part of it failed, or nothing moves any more.
        """
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            async with HTTPClient(total_timeout=10.0) as self._http:
                await self._start_destination()
                await self._hold_everything()
                return await self._run()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._driver.kill()
            await self._destination.kill()

    async def _run(self) -> Outcome:
        options = self._options
        faults = Faults(options.loss, options.loss, double=0.1, delay=0.1, max_delay=0.02)
        async with LossyProxy(self._url, faults, seed=options.seed) as network:
            async with asyncio.TaskGroup() as group:
                telling = [group.create_task(self._tell(network)), group.create_task(self._watch_metrics())]
                killing = group.create_task(self._kill_destination())
                landing = group.create_task(self._land(all_sent := asyncio.Event()))
                await self._send(network.url)
                await killing
                self._teller.event(f"all {options.messages:,} messages are acknowledged")
                all_sent.set()
                await landing
                for task in telling:
                    task.cancel()
            await self._scrape()
            return await self._judge(network)

    # --- the destination ------------------------------------------------------------------------------------------

    async def _start_destination(self) -> None:
        began = time.monotonic()
        await self._destination.start()
        while not await self._is_well():
            if not self._destination.is_running:
                raise self._destination.failed("ended by itself")
            if time.monotonic() - began > STALLED_AFTER:
                raise self._destination.failed("does not come up")
            await asyncio.sleep(0.02)
        came = "is up" if self._destination.lives == 1 else "is back"
        self._teller.event(f"the destination {came} after {time.monotonic() - began:.1f} s")

    async def _is_well(self) -> bool:
        try:
            return (await self._ask("GET", "/healthz")).status == 200
        except TransportError:
            return False

    async def _ask(self, method: str, path: str, body: bytes = b"") -> Response:
        return await self._http.fetch(method, self._admin + path, body, {})

    async def _hold_everything(self) -> None:
        """A cursor of our own that never moves, so that the whole queue is there to be judged at the end."""
        queue = json.loads((await self._ask("GET", "/queues")).body)["queues"][QUEUE]
        body = {"epoch": queue["epoch"], "offsets": dict.fromkeys(queue["partitions"], 0)}
        answer = await self._ask("PUT", f"/queues/{QUEUE}/cursors/verdict", json.dumps(body).encode())
        assert answer.status == 200, answer

    async def _kill_destination(self) -> None:
        for share in KILL_AT:
            while self._progress.acknowledged < share * self._options.messages:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self._draw.uniform(0, 0.1))
            await self._scrape()
            await self._destination.kill()
            self._duplicates_dropped += self._duplicates_now
            self._duplicates_now = 0
            so_far = f"{self._progress.acknowledged:,} acknowledged so far"
            self._teller.event(f"killed the destination with SIGKILL; {so_far}")
            await self._start_destination()

    async def _watch_metrics(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            with contextlib.suppress(TransportError):  # it is being killed just now
                await self._scrape()

    async def _scrape(self) -> None:
        told = (await self._ask("GET", "/metrics")).body.decode()
        found = re.search(r'^holdfast_incidents_total\{name="duplicate dropped"\} (\S+)', told, re.M)
        if found:
            self._duplicates_now = max(self._duplicates_now, int(float(found[1])))

    # --- the source -----------------------------------------------------------------------------------------------

    async def _send(self, url: str) -> None:
        """Send every departure, one Sequence an airline, and wait until all are acknowledged and ended."""
        store = self._options.out / "outbox"
        async with Source(url, store, offer=False, policy=POLICY) as source:
            self._progress = source.progress
            waiting: deque[list[Sent]] = deque()
            for batch in _batches(departures(self._options.messages)):
                # In the order of the data set: each send() takes its number before it first waits.
                waiting.append(await asyncio.gather(*(_send_one(source, departure) for departure in batch)))
                if len(waiting) >= OUTSTANDING:
                    await _acknowledged(waiting.popleft())
            while waiting:
                await _acknowledged(waiting.popleft())

    # --- the Spark driver -----------------------------------------------------------------------------------------

    async def _land(self, all_sent: asyncio.Event) -> None:
        """Land the queue, with one kill after the first batches; until all that was delivered is landed."""
        batches = 0
        async for event in self._events(await self._driver.start()):
            batches += event["event"] == "batch"
            self._take(event)
            if batches == KILL_DRIVER_AFTER:
                break
        await asyncio.sleep(self._draw.uniform(0, 0.5))  # into the next batch
        await self._driver.kill()
        self._teller.event(f"killed the Spark driver with SIGKILL; {self._landed:,} landed so far")
        lines = self._events(await self._driver.start())
        self._teller.event("started the Spark driver again, with the same checkpoint")
        ends: dict[int, int] | None = None
        async for event in lines:
            self._take(event)
            if all_sent.is_set() and ends is None:
                ends = await self._ends()
            if ends is not None and all(self._landed_to.get(one, 0) >= end for one, end in ends.items()):
                break
        if await self._driver.stop(60.0) != 0:
            raise self._driver.failed("did not end well")

    async def _events(self, output: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        """What the driver says, and ``{"event": "nothing"}`` now and then while it says nothing."""
        while True:
            try:
                async with asyncio.timeout(0.5):
                    line = await output.readuntil()
            except TimeoutError:
                yield {"event": "nothing"}
                continue
            except asyncio.IncompleteReadError:
                raise self._driver.failed("ended by itself") from None
            yield json.loads(line)

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "batch":
            self._landed = event["total"]
            self._landed_to = positions_of(event["end"], QUEUE)

    async def _ends(self) -> dict[int, int]:
        partitions = json.loads((await self._ask("GET", f"/queues/{QUEUE}/ends")).body)["partitions"]
        return {int(partition): int(bounds["end"]) for partition, bounds in partitions.items()}

    # --- what is told ---------------------------------------------------------------------------------------------

    async def _tell(self, network: LossyProxy) -> None:
        while True:
            await asyncio.sleep(0.2)
            progress, now = self._progress, time.monotonic()
            self._teller.status(
                f"{progress.acknowledged:,}/{self._options.messages:,} acknowledged, "
                f"{network.counts.lost:,} lost on the wire, {progress.resent:,} retransmitted; "
                f"{self._landed:,} landed by Spark"
            )
            if self._moved != (progress.acknowledged, self._landed):
                self._moved, self._moved_at = (progress.acknowledged, self._landed), now
            elif now - self._moved_at > STALLED_AFTER:
                raise DemoFailed(
                    f"nothing has moved for {STALLED_AFTER:.0f} s: {progress.acknowledged:,} acknowledged, "
                    f"{self._landed:,} landed{f'; {progress.problem}' if progress.problem else ''}",
                    remedy=f"The logs are in {self._options.out}.",
                )

    async def _judge(self, network: LossyProxy) -> Outcome:
        self._teller.event("reading the queue and the Parquet files, and comparing each field with the data set")
        count, landed = self._options.messages, self._options.out / "landed"
        outcome = Outcome(
            await asyncio.to_thread(check_queue, self._admin, QUEUE, count),
            await asyncio.to_thread(check_landed, landed, count),
        )
        await self._destination.stop(30.0)
        counts = network.counts
        outcome.counts = {
            "sent": self._progress.acknowledged,
            "requests lost": counts.requests_lost,
            "responses lost": counts.responses_lost,
            "unreachable": counts.unreachable,
            "doubled": counts.doubled,
            "delayed": counts.delayed,
            "retransmitted": self._progress.resent,
            "duplicates dropped": self._duplicates_dropped + self._duplicates_now,
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


def _send_one(source: Source, departure: Departure) -> Coroutine[Any, Any, Sent]:
    return source.send(departure_xml(departure), action=ACTION, sequence_key=str(departure["carrier"]))


async def _acknowledged(batch: list[Sent]) -> None:
    for sent in batch:
        await sent.acknowledged()


def _batches(every: Iterator[Departure]) -> Iterator[list[Departure]]:
    while batch := list(islice(every, BATCH)):
        yield batch


def run(options: Options, teller: Teller | None = None) -> Outcome:
    """Carry out one run; see :class:`Demo`. Ctrl-C ends it, and every process of it.

    Raises:
        ConfigurationError: the directory is in use for something else.
        DemoFailed: a part of it failed.
    """
    prepare(options.out)
    log = logging.getLogger("holdfast")
    handler = logging.FileHandler(options.out / "source.log", encoding="utf-8")
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            return runner.run(Demo(options, teller or Teller()).run())
    finally:
        log.removeHandler(handler)
        handler.close()
        log.level, log.propagate = before
