"""Three brokers of one cluster, killed in turn while orders flow through them, and an exact count at the end.

    python -m demo.cluster
    python -m demo.cluster --engine kafka

The sources, the two services and the balancer are in this process. The brokers are separate processes, so that they can
be killed, and so is Spark. The brokers share a PostgreSQL database or a topic of Kafka, which the demo starts.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import re
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import holdfast
from demo.balancer import Balancer
from demo.cluster_spark import READER
from demo.database import check_database, private_database
from demo.kafka import private_kafka
from demo.processes import STALLED_AFTER, Child, DemoFailed, Server
from demo.run import Teller
from demo.whole_check import committed
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import HoldfastError
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import TransportError
from holdfast.http.server.server import event_loop_factory
from holdfast.pipeline.jobs.command import PYTHON_IS_LATE
from holdfast.testing.ports import free_ports

NODES = ("a", "b", "c")
SOURCES = ("web shop", "call center")
SERVICES = ("warehouse", "billing")
SPARK = "Spark's table"
STAGES = 4 * len(NODES)
"""Parts of the orders. For each broker: before its kill, when it is killed, while it is down, and while it restarts."""
LEASES = {"postgresql": 2, "kafka": 3}
"""Seconds. On Kafka, a killed node counts as dead after that."""
BROKER_TOML = """\
# One node of the cluster. The others have the same file, with their own name and ports.
store = {store}
partitions = 1
sessions = 0
listen.port = {port}
admin.port = {admin_port}

[cluster]
secret_file = "cluster.secret"
node = "{node}"
partitions = 6
lease = {lease}
port = 0

[queues.orders]
"""
FORWARDER_TOML = """
[forwarders.{name}]
queue = "orders"
to = "{to}"
"""
_ORDER = re.compile(r'<order source="([^"]*)" number="(\d+)"/>')


@dataclass(frozen=True)
class Options:
    """The options of one run.

    Args:
        orders: Number of orders of each source.
        engine: "postgresql" or "kafka".
        store: URL of the database or of the topic.
        has_spark: Whether Spark reads the orders too.
    """

    orders: int
    engine: str
    store: str
    has_spark: bool


def faults_of(received: Sequence[int], count: int) -> str:
    """Compare the numbers that the service received from a source with 1 to ``count``; return "" if they match."""
    if list(received) == list(range(1, count + 1)):
        return ""
    distinct, expected = set(received), set(range(1, count + 1))
    late = sum(one > other for one, other in itertools.pairwise(received))
    return (
        f"{len(expected - distinct):,} missing, {len(received) - len(distinct):,} received again, "
        f"{late:,} out of order, {len(distinct - expected):,} never sent"
    )


def landed(table: Path) -> Iterator[tuple[int, int, str]]:
    """Yield place and body of each order that Spark has landed: partition, offset, body."""
    if not (table / "_spark_metadata").is_dir():
        return
    for rows in committed(table):
        yield from zip(*(rows.column(name).to_pylist() for name in ("partition", "offset", "body")), strict=True)


def numbers_of(table: Path) -> dict[str, list[int]]:
    """Return the numbers of each source's orders that Spark has landed, in the order of the queue."""
    found: dict[str, list[int]] = {name: [] for name in SOURCES}
    for *_, body in sorted(landed(table)):
        order = _ORDER.fullmatch(body)
        assert order is not None, body
        found[order[1]].append(int(order[2]))
    return found


class Cluster:
    """One run.

    Args:
        options: Its options.
        directory: Directory for the files of the run.
        teller: Reports the progress.
    """

    def __init__(self, options: Options, directory: Path, teller: Teller) -> None:
        self._options = options
        self._directory = directory
        self._teller = teller
        self._received: dict[str, dict[str, list[int]]] = {
            service: {source: [] for source in SOURCES} for service in SERVICES
        }
        self._sent = 0
        self._pause = 0.0
        self._arrived = time.monotonic()
        self._brokers: list[Server] = []
        self._down: set[str] = set()
        self._spark: Child | None = None
        self._reading: asyncio.Task[None] | None = None

    async def run(self) -> list[str]:
        """Run from the first process to the verdict; return the faults by receiver and source. No process is left in
        any case.

        Raises:
            DemoFailed: a broker or Spark failed, or the orders stopped arriving.
        """
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with AsyncExitStack() as stack:
            services = {name: Service(self._make_service(name), Listeners(port=0)) for name in SERVICES}
            for service in services.values():
                await service.start()
                stack.push_async_callback(service.close)
            http = await stack.enter_async_context(HTTPClient(total_timeout=10.0))
            ports = free_ports(2 * len(NODES))
            self._brokers = self._make_brokers(ports, {name: one.url for name, one in services.items()}, http)
            for broker in self._brokers:
                stack.push_async_callback(broker.kill)
            self._teller.event(f"starting brokers {', '.join(NODES)} as one cluster")
            await asyncio.gather(*(broker.come_up() for broker in self._brokers))
            self._teller.event(f"the three brokers are ready; two sources send {self._options.orders:,} orders each")
            if self._options.has_spark:
                await self._start_spark(stack)
            balancer = Balancer(ports[::2])
            url = await balancer.start()
            stack.callback(balancer.close)
            sources = [
                await stack.enter_async_context(holdfast.Source(url, self._directory / name)) for name in SOURCES
            ]
            await self._kill_in_turn(sources)
            for source in sources:
                await source.flush(STALLED_AFTER)
                await source.close()
            self._teller.event("all orders are acknowledged and received")
            if self._options.has_spark:
                await self._end_spark()
            self._teller.event("stopping the brokers")
            for broker in self._brokers:
                if code := await broker.stop(30.0):
                    raise broker.failed(f"ended with exit code {code} at the end")
        found = dict(self._received)
        if self._options.has_spark:
            found[SPARK] = numbers_of(self._directory / "spark" / "table")
        return [
            f"{receiver}, {source}: {fault}"
            for receiver, received in found.items()
            for source, numbers in received.items()
            if (fault := faults_of(numbers, self._options.orders))
        ]

    def _make_brokers(self, ports: Sequence[int], to: dict[str, str], http: HTTPClient) -> list[Server]:
        (self._directory / "cluster.secret").write_text(secrets.token_hex(32), encoding="utf-8")
        engine, brokers = self._options.engine, []
        store = json.dumps(self._options.store)  # a string in JSON is one in TOML
        forwarders = "".join(FORWARDER_TOML.format(name=name, to=url) for name, url in to.items())
        for node, port, admin_port in zip(NODES, ports[::2], ports[1::2], strict=True):
            config, log = (self._directory / f"{node}.{kind}" for kind in ("toml", "log"))
            text = BROKER_TOML.format(store=store, port=port, admin_port=admin_port, node=node, lease=LEASES[engine])
            config.write_text(text + forwarders, encoding="utf-8")
            arguments = ["broker", "--config", str(config)]
            brokers.append(Server(f"broker {node}", arguments, log, f"http://127.0.0.1:{admin_port}", http))
        return brokers

    def _make_service(self, name: str) -> holdfast.Destination:
        app = holdfast.Destination(self._directory / name)

        @app.on("urn:demo:order")
        async def order(message: holdfast.Message) -> None:
            received = self._received[name]
            received[message.body.get("source", "")].append(int(message.body.get("number", "0")))
            now = time.monotonic()
            self._pause, self._arrived = max(self._pause, now - self._arrived), now

        return app

    async def _start_spark(self, stack: AsyncExitStack) -> None:
        """Start the Spark program. Its cursor keeps all orders, also from before it reads."""
        await self._hold()
        out, log = self._directory / "spark", self._directory / "spark.log"
        out.mkdir()
        told = [",".join(broker.admin for broker in self._brokers), str(out)]
        self._spark = Child("Spark", Path(__file__).with_name("cluster_spark.py"), told, log)
        stack.push_async_callback(self._spark.kill)
        self._reading = asyncio.create_task(self._run_spark(self._spark))
        stack.callback(self._reading.cancel)

    async def _run_spark(self, spark: Child) -> None:
        """Run the Spark program to its end; again if the machine was too busy to start a Python process in time."""
        while True:
            await spark.start()
            if not (code := await spark.ended()):
                return
            if PYTHON_IS_LATE not in spark.log.read_text(errors="replace")[-50_000:]:
                raise spark.failed(f"ended with exit code {code}")

    async def _hold(self) -> None:
        began = time.monotonic()
        while True:
            try:
                return await self._brokers[0].hold("orders", READER)
            except TransportError as error:  # a partition is on its way to a node that has just joined
                if time.monotonic() - began > STALLED_AFTER:
                    raise self._brokers[0].failed("does not create Spark's cursor") from error
                await asyncio.sleep(0.1)

    async def _land(self, count: int) -> None:
        """Wait until Spark has landed ``count`` orders."""
        assert self._spark is not None
        seen, since = -1, time.monotonic()
        while (rows := sum(1 for _ in landed(self._directory / "spark" / "table"))) < count:
            self._check_processes()
            if rows > seen:
                seen, since = rows, time.monotonic()
            if time.monotonic() - since > STALLED_AFTER:
                raise self._spark.failed(f"has landed {rows:,} orders, and none for {STALLED_AFTER:.0f} s")
            self._teller.status(f"Spark has landed {rows:,} orders" if rows else "Spark is starting")
            await asyncio.sleep(0.2)

    async def _end_spark(self) -> None:
        """Let Spark land the rest, and end."""
        assert self._reading is not None
        await self._land(self._options.orders * len(SOURCES))
        (self._directory / "spark" / "end").touch()
        async with asyncio.timeout(STALLED_AFTER):
            await self._reading
        rows = sum(1 for _ in landed(self._directory / "spark" / "table"))
        self._teller.event(f"Spark has read the whole queue, and landed {rows:,} orders")

    async def _kill_in_turn(self, sources: Sequence[holdfast.Source]) -> None:
        for stage, broker in zip(range(1, STAGES, 4), self._brokers, strict=True):
            await self._send(sources, stage)
            await self._receive(self._sent)
            if self._options.has_spark:
                await self._land(1)
            before = self._sent
            await self._send(sources, stage + 1)
            await self._receive(before + 1)
            self._down.add(broker.name)
            await broker.kill()
            self._teller.event(f"killed {broker.name} with SIGKILL; {self._counted}")
            self._pause, self._arrived = 0.0, time.monotonic()
            await self._send(sources, stage + 2)
            await self._receive(self._sent)
            self._teller.event(f"the other two carried on; longest gap {self._pause:.1f} s; {self._counted}")
            await self._send(sources, stage + 3)
            _, seconds = await asyncio.gather(self._receive(self._sent), broker.come_up())
            self._down.clear()
            self._teller.event(f"{broker.name} was started again and is ready after {seconds:.1f} s")

    async def _send(self, sources: Sequence[holdfast.Source], stage: int) -> None:
        """Send each source's orders up to the end of a stage."""
        first, last = self._sent // len(SOURCES) + 1, self._options.orders * stage // STAGES
        await asyncio.gather(
            *(
                source.send(f'<order source="{name}" number="{number}"/>', action="urn:demo:order")
                for number in range(first, last + 1)  # each send() takes its message number before its first await
                for name, source in zip(SOURCES, sources, strict=True)
            )
        )
        self._sent = last * len(SOURCES)

    async def _receive(self, count: int) -> None:
        """Wait until each service has received ``count`` orders of both sources together."""
        self._arrived = time.monotonic()
        while min(self._totals.values()) < count:
            self._check_processes()
            if time.monotonic() - self._arrived > STALLED_AFTER:
                raise DemoFailed(f"{self._counted}, and none for {STALLED_AFTER:.0f} s")
            self._teller.status(self._counted)
            await asyncio.sleep(0.005)

    def _check_processes(self) -> None:
        for broker in self._brokers:
            if not broker.is_running and broker.name not in self._down:
                raise broker.failed("ended unexpectedly")
        if self._reading is not None and self._reading.done():
            self._reading.result()
            raise DemoFailed("Spark ended too early")

    @property
    def _totals(self) -> dict[str, int]:
        return {name: sum(map(len, received.values())) for name, received in self._received.items()}

    @property
    def _counted(self) -> str:
        counts = ", ".join(f"{name} {count:,}" for name, count in self._totals.items())
        return f"received of {self._options.orders * len(SOURCES):,} orders: {counts}"


def _require_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise DemoFailed("Spark is not installed", remedy="pip install 'holdfast[spark]', or use --no-spark.")


@click.command(context_settings={"max_content_width": 110})
@click.option(
    "--engine",
    type=click.Choice(list(LEASES)),
    default="postgresql",
    show_default=True,
    help="What the brokers share. The demo starts a private server in a temporary directory.",
)
@click.option(
    "--orders",
    type=click.IntRange(600, 100_000),
    default=2_400,
    show_default=True,
    help="How many orders each of the two sources sends.",
)
@click.option(
    "--database",
    metavar="URL",
    help="A PostgreSQL database for the cluster instead of a private server. The demo stores its rows in a new space, "
    "and leaves them there.",
)
@click.option("--spark/--no-spark", "has_spark", default=True, show_default=True, help="Whether Spark reads them too.")
def cluster(engine: str, orders: int, database: str | None, has_spark: bool) -> None:
    """Kill each of three brokers while orders flow through them, and count the orders at the end.

    The three brokers are the nodes of one cluster: they share a PostgreSQL database, or a topic of Kafka. Two sources
    send orders to them through a small balancer, which gives each connection to the next broker. The brokers store the
    orders in a queue. Two forwarders send each of them to two services, and Spark lands them in a table. Brokers a, b
    and c are killed in turn with SIGKILL. Each time, the other two carry on its work, and the demo starts it again. At
    the end, both services and the table must have each order once, and the orders of each source in order.

    \b
    python -m demo.cluster
    python -m demo.cluster --engine kafka --no-spark
    python -m demo.cluster --orders 20000 --database postgresql://holdfast@db.example/holdfast

    \b
    Exit code 0: the count is exact. 1: it is not, or a part failed; the output says which. 2: wrong usage.
    """
    if database is not None and engine != "postgresql":
        raise click.UsageError("--database is for --engine postgresql")
    teller = Teller()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            if has_spark:
                _require_spark()
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-demo-")))
            if engine == "kafka":
                teller.event("starting a private Kafka broker in a temporary directory")
                store = stack.enter_context(private_kafka(directory))
            elif database is None:
                teller.event("starting a private PostgreSQL server in a temporary directory")
                store = stack.enter_context(private_database())
            else:
                store = f"{database}{'&' if '?' in database else '?'}space=demo-{secrets.token_hex(4)}"
            if engine == "postgresql":
                check_database(store)
            runner = stack.enter_context(asyncio.Runner(loop_factory=event_loop_factory()))
            faults = runner.run(Cluster(Options(orders, engine, store, has_spark), directory, teller).run())
    except HoldfastError as error:
        click.echo(f"\nholdfast demo: {error}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("\nholdfast demo: stopped; no process is left.", err=True)
        sys.exit(130)
    for fault in faults:
        click.echo(f"NOT exact, {fault}", err=True)
    if faults:
        sys.exit(1)
    receivers = ["both services", SPARK] if has_spark else ["both services"]
    click.echo(
        f"Exact: after {len(NODES)} kills, {' and '.join(receivers)} have each of the {orders * len(SOURCES):,} orders "
        f"once, and those of each source in order. {teller.seconds:.0f} s."
    )


if __name__ == "__main__":
    cluster(prog_name="python -m demo.cluster")
