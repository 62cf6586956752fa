"""All departures through every part: broker, Spark, tables, and alerts back out, with kills of each part.

    python -m demo.whole --messages all

It runs ``examples/departures.py`` as a user would, and audits the journals at the end. ``demo.whole_check`` judges the
result from the data set.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from demo.__main__ import Messages
from demo.check import Faults
from demo.flights import data_file
from demo.processes import Child, Server, lines_of
from demo.run import MARKER, Teller, prepare
from demo.whole_check import check_alerts, check_delays, check_landed, late_departures
from holdfast.exceptions import HoldfastError
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import TransportError
from holdfast.http.server.server import event_loop_factory
from holdfast.pipeline.jobs.command import PYTHON_IS_LATE
from holdfast.testing.ports import free_ports

PROGRAM = Path(__file__).resolve().parents[1] / "examples" / "departures.py"
SOURCE, BROKER, SERVICE, SPARK = "the source", "the broker", "the second service", "the Spark program"
KILLS = ((0.15, SOURCE), (0.3, BROKER), (0.45, SPARK), (0.6, SOURCE), (0.7, BROKER), (0.75, SERVICE), (0.85, SPARK))
"""Shares of the messages that the broker has acknowledged, and the process killed at that share."""
LOGS = ("broker.log", "service.log", "source.log", "spark.log", "audit.log")
OWNED = (MARKER, "broker.toml", "broker", "service", "outbox", "spark", "audit", *LOGS)
"""Everything that a run creates in its directory; the next run removes exactly this."""


BROKER_TOML = """\
# Spark reads the departures from one queue. A forwarder sends Spark's alerts from the other one to a second service.
store = "{store}"
partitions = 4
listen.port = {port}
admin.port = {admin_port}

[queues.departures]

[queues.alerts]

[forwarders.alerts]
queue = "alerts"
to = "http://127.0.0.1:{service_port}/"
"""


@dataclass
class Outcome:
    """The result of a run: the faults by kind, and the results of the audits."""

    faults: dict[str, Faults] = field(default_factory=dict)
    audits: dict[str, tuple[int, str]] = field(default_factory=dict)
    alerts: int = 0
    kills: int = 0
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether there are no faults, and no journal shows a broken guarantee."""
        return not any(one.count for one in self.faults.values()) and not any(code for code, _ in self.audits.values())


class Whole:
    """One run.

    Args:
        count: Number of departures.
        out: Directory for all files of the run, prepared.
        seed: Of the moments of the kills.
        teller: Reports the progress.
    """

    def __init__(self, count: int, out: Path, seed: int, teller: Teller) -> None:
        self._count = count
        self._out = out.resolve()
        self._teller = teller
        self._draw = random.Random(seed)
        self._acknowledged = 0
        self._is_sent = False
        self._tables = data_file().parent  # airlines, airports, planes and weather, as CSV

    async def run(self) -> Outcome:
        """Run from the first process to the verdict, and leave no process behind in any case.

        Raises:
            DemoFailed: a part of the demo failed.
        """
        out, (port, admin_port, service_port, service_admin_port) = self._out, free_ports(4)
        config = BROKER_TOML.format(store=out / "broker", port=port, admin_port=admin_port, service_port=service_port)
        (out / "broker.toml").write_text(config, encoding="utf-8")
        admin, service_admin = (f"http://127.0.0.1:{one}" for one in (admin_port, service_admin_port))
        receive = ["receive", "--port", str(service_port), "--admin", str(service_admin_port)]
        async with HTTPClient(total_timeout=10.0) as http:
            broker = ["broker", "--config", str(out / "broker.toml")]
            self._broker = Server(BROKER, broker, out / "broker.log", admin, http)
            service = [*receive, "--store", str(out / "service")]
            self._service = Server(SERVICE, service, out / "service.log", service_admin, http)
            sending = [str(out / "outbox"), f"http://127.0.0.1:{port}/", str(self._count)]
            self._source = Child(SOURCE, "demo.sending", sending, out / "source.log")
            told = [admin, str(out / "spark"), str(self._tables)]
            self._spark = Child(SPARK, PROGRAM, told, out / "spark.log")
            self._last = Child(SPARK, PROGRAM, [*told, "--available-now"], out / "spark.log")
            try:
                return await self._run()
            finally:
                for child in (self._source, self._spark, self._last, self._broker, self._service):
                    await child.kill()

    async def _run(self) -> Outcome:
        for server in (self._broker, self._service):
            await server.come_up()
        await self._service.hold("inbox", "verdict")
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._tell())
            running = group.create_task(self._keep_running(self._spark))
            group.create_task(self._send())
            await group.create_task(self._kill_in_turn())
            while not self._is_sent:
                await asyncio.sleep(0.05)
            self._teller.event(f"all {self._count:,} departures are acknowledged by the broker")
            await self._work_on()
            running.cancel()
            await self._spark.kill()
            self._teller.event("killed the Spark program again; it now runs until it has read every message")
            await self._keep_running(self._last)
            telling.cancel()
        alerts = sum(1 for _ in late_departures(self._count))
        while sum((await self._service.ends("inbox")).values()) < alerts:
            await asyncio.sleep(0.1)
        return await self._judge(alerts)

    async def _send(self) -> None:
        while True:
            async for told in lines_of(await self._source.start()):
                self._acknowledged = max(self._acknowledged, told["acknowledged"])
            code = await self._source.ended()
            if code == 0:
                self._is_sent = True
                return
            if code != -signal.SIGKILL:
                raise self._source.failed(f"ended with exit code {code}")

    async def _kill_in_turn(self) -> None:
        for share, name in KILLS:
            while self._acknowledged < share * self._count:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self._draw.uniform(0, 0.5))
            await self._kill(name)

    async def _kill(self, name: str) -> None:
        child = {SOURCE: self._source, BROKER: self._broker, SERVICE: self._service, SPARK: self._spark}[name]
        if not child.is_running:
            return
        await child.kill()
        self._teller.event(f"killed {name} with SIGKILL; {self._acknowledged:,} acknowledged so far")
        if isinstance(child, Server):
            await child.come_up()  # the loops that wait for the other processes restart them

    async def _keep_running(self, program: Child) -> None:
        """Run the Spark program until it ends successfully, and restart it after a kill.

        It is also restarted if Spark fails because a busy machine needs more than ten seconds to start a Python
        process.
        """
        while True:
            await program.start()
            code = await program.ended()
            if code == 0:
                return
            if code != -signal.SIGKILL and PYTHON_IS_LATE not in program.log.read_text(errors="replace")[-50_000:]:
                raise program.failed(f"ended with exit code {code}")

    async def _work_on(self) -> None:
        """Let Spark read the rest; it is killed in the middle of that, too."""
        while not await self._has_begun():
            await asyncio.sleep(0.2)
        await asyncio.sleep(self._draw.uniform(0, 3))
        await self._kill(SPARK)
        await asyncio.sleep(self._draw.uniform(5, 15))

    async def _has_begun(self) -> bool:
        """Whether every query has finished a batch."""
        return all(
            (self._out / "spark" / "at" / name / "commits" / "0").is_file() for name in ("landed", "delays", "alerts")
        )

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(1)
            arrived = 0
            with suppress(TransportError):  # the demo is just killing it
                arrived = sum((await self._service.ends("inbox")).values())
            self._teller.status(f"{self._acknowledged:,}/{self._count:,} acknowledged, {arrived:,} alerts arrived")

    async def _judge(self, alerts: int) -> Outcome:
        self._teller.event("comparing the tables, the sums and the alerts with the data set")
        spark = self._out / "spark"
        outcome = Outcome(alerts=alerts)
        outcome.faults |= await asyncio.to_thread(check_landed, spark, self._tables, self._count)
        outcome.faults |= await asyncio.to_thread(check_delays, spark, self._count)
        outcome.faults |= await asyncio.to_thread(check_alerts, self._service.admin, "inbox", self._count)
        for server in (self._broker, self._service):
            await server.stop(30.0)
        self._teller.event("auditing both journals")
        for name in ("broker", "service"):
            outcome.audits[name] = await self._audit(name)
        children = (self._source, self._spark, self._broker, self._service)
        outcome.kills = sum(child.lives - 1 for child in children) + 1
        outcome.seconds = self._teller.seconds
        return outcome

    async def _audit(self, name: str) -> tuple[int, str]:
        report = self._out / "audit" / f"{name}.html"
        report.parent.mkdir(exist_ok=True)
        told = ["audit", str(self._out / name / "journal"), "--html", str(report)]
        child = Child(f"the audit of {name}", "holdfast", told, self._out / "audit.log")
        said = await (await child.start()).read()
        return await child.ended(), said.decode()


@click.command()
@click.option("--messages", type=Messages(), default="20000", show_default=True, help="How many departures to send.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the kills.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="whole-out",
    show_default=True,
    help="Directory for all files of the run.",
)
def whole(messages: int, seed: int, out: Path) -> None:
    """Send departures through a broker into Spark, and alerts for late ones back out; kill each part meanwhile.

    \b
    python -m demo.whole --messages all
    python -m demo.whole --messages 5000 --seed 7 --out /tmp/whole

    \b
    Exit code 0: tables, sums and alerts match the data set exactly, and the audit finds nothing. 1: otherwise.
    """
    try:
        prepare(out, OWNED)
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            outcome = runner.run(Whole(messages, out, seed, Teller()).run())
    except HoldfastError as error:
        click.echo(f"\nholdfast demo: {error}", err=True)
        sys.exit(1)
    for kind, faults in outcome.faults.items():
        click.echo(f"{faults.count:>8,} {kind}")
        for example in faults.examples:
            click.echo(f"         {example}")
    for name, (code, said) in outcome.audits.items():
        click.echo(f"audit of {name}, exit code {code}:\n{said}")
    verdict = "Exact" if outcome.is_exact else "NOT exact"
    click.echo(
        f"{verdict}: {messages:,} departures, {outcome.alerts:,} alerts, {outcome.kills} kills, {outcome.seconds:.0f} s"
    )
    sys.exit(0 if outcome.is_exact else 1)


if __name__ == "__main__":
    whole(prog_name="python -m demo.whole")
