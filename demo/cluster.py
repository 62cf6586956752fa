"""Three brokers of one cluster, killed in turn while orders flow through them, and an exact count at the end.

    python -m demo.cluster

The sources, the service and the balancer are in this process. The brokers are separate processes, so that they can be
killed. They share a PostgreSQL database, which the demo starts if no ``--database`` is given.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import holdfast
from demo.balancer import Balancer
from demo.database import check_database, private_database
from demo.processes import STALLED_AFTER, DemoFailed, Server
from demo.run import Teller
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import HoldfastError
from holdfast.http.client.client import HTTPClient
from holdfast.http.server.server import event_loop_factory
from holdfast.testing.ports import free_ports

NODES = ("a", "b", "c")
SOURCES = ("web shop", "call center")
STAGES = 4 * len(NODES)
"""Parts of the orders. For each broker: before its kill, when it is killed, while it is down, and while it restarts."""
BROKER_TOML = """\
# One node of the cluster. The others have the same file, with their own name and ports.
store = {store}
listen.port = {port}
admin.port = {admin_port}

[cluster]
secret_file = "cluster.secret"
node = "{node}"
partitions = 6
lease = 2
port = 0

[queues.orders]

[forwarders.service]
queue = "orders"
to = "{to}"
"""


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


class Cluster:
    """One run.

    Args:
        orders: Number of orders of each source.
        database: URL of the database.
        directory: Directory for the files of the run.
        teller: Reports the progress.
    """

    def __init__(self, orders: int, database: str, directory: Path, teller: Teller) -> None:
        self._orders = orders
        self._database = database
        self._directory = directory
        self._teller = teller
        self._received: dict[str, list[int]] = {name: [] for name in SOURCES}
        self._sent = 0
        self._pause = 0.0
        self._arrived = time.monotonic()
        self._brokers: list[Server] = []
        self._down: set[str] = set()

    async def run(self) -> list[str]:
        """Run from the first process to the verdict; return the faults by source. No process is left in any case.

        Raises:
            DemoFailed: a broker failed, or the orders stopped arriving.
        """
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with AsyncExitStack() as stack:
            service = Service(self._make_service(), Listeners(port=0))
            await service.start()
            stack.push_async_callback(service.close)
            http = await stack.enter_async_context(HTTPClient(total_timeout=10.0))
            ports = free_ports(2 * len(NODES))
            self._brokers = self._make_brokers(ports, service.url, http)
            for broker in self._brokers:
                stack.push_async_callback(broker.kill)
            self._teller.event(f"starting brokers {', '.join(NODES)} as one cluster")
            await asyncio.gather(*(broker.come_up() for broker in self._brokers))
            self._teller.event(f"the three brokers are ready; two sources send {self._orders:,} orders each")
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
            self._teller.event("all orders are acknowledged and received; stopping the brokers")
            for broker in self._brokers:
                if code := await broker.stop(30.0):
                    raise broker.failed(f"ended with exit code {code} at the end")
        found = {name: faults_of(numbers, self._orders) for name, numbers in self._received.items()}
        return [f"{name}: {fault}" for name, fault in found.items() if fault]

    def _make_brokers(self, ports: Sequence[int], to: str, http: HTTPClient) -> list[Server]:
        (self._directory / "cluster.secret").write_text(secrets.token_hex(32), encoding="utf-8")
        store, brokers = json.dumps(self._database), []  # a string in JSON is one in TOML
        for node, port, admin_port in zip(NODES, ports[::2], ports[1::2], strict=True):
            config, log = (self._directory / f"{node}.{kind}" for kind in ("toml", "log"))
            text = BROKER_TOML.format(store=store, port=port, admin_port=admin_port, node=node, to=to)
            config.write_text(text, encoding="utf-8")
            arguments = ["broker", "--config", str(config)]
            brokers.append(Server(f"broker {node}", arguments, log, f"http://127.0.0.1:{admin_port}", http))
        return brokers

    def _make_service(self) -> holdfast.Destination:
        app = holdfast.Destination(self._directory / "service")

        @app.on("urn:demo:order")
        async def order(message: holdfast.Message) -> None:
            self._received[message.body.get("source", "")].append(int(message.body.get("number", "0")))
            now = time.monotonic()
            self._pause, self._arrived = max(self._pause, now - self._arrived), now

        return app

    async def _kill_in_turn(self, sources: Sequence[holdfast.Source]) -> None:
        for stage, broker in zip(range(1, STAGES, 4), self._brokers, strict=True):
            await self._send(sources, stage)
            await self._receive(self._sent)
            before = self._sent
            await self._send(sources, stage + 1)
            await self._receive(before + 1)
            self._down.add(broker.name)
            await broker.kill()
            self._teller.event(f"killed {broker.name} with SIGKILL; the service has received {self._counted}")
            self._pause, self._arrived = 0.0, time.monotonic()
            await self._send(sources, stage + 2)
            await self._receive(self._sent)
            self._teller.event(f"the other two carried on; longest gap {self._pause:.1f} s; received {self._counted}")
            await self._send(sources, stage + 3)
            _, seconds = await asyncio.gather(self._receive(self._sent), broker.come_up())
            self._down.clear()
            self._teller.event(f"{broker.name} was started again and is ready after {seconds:.1f} s")

    async def _send(self, sources: Sequence[holdfast.Source], stage: int) -> None:
        """Send each source's orders up to the end of a stage."""
        first, last = self._sent // len(SOURCES) + 1, self._orders * stage // STAGES
        await asyncio.gather(
            *(
                source.send(f'<order source="{name}" number="{number}"/>', action="urn:demo:order")
                for number in range(first, last + 1)  # each send() takes its message number before its first await
                for name, source in zip(SOURCES, sources, strict=True)
            )
        )
        self._sent = last * len(SOURCES)

    async def _receive(self, count: int) -> None:
        """Wait until the service has received ``count`` orders of both sources together."""
        self._arrived = time.monotonic()
        while self._total < count:
            for broker in self._brokers:
                if not broker.is_running and broker.name not in self._down:
                    raise broker.failed("ended unexpectedly")
            if time.monotonic() - self._arrived > STALLED_AFTER:
                raise DemoFailed(f"the service has received {self._counted}, and none for {STALLED_AFTER:.0f} s")
            self._teller.status(f"received {self._counted}")
            await asyncio.sleep(0.005)

    @property
    def _total(self) -> int:
        return sum(map(len, self._received.values()))

    @property
    def _counted(self) -> str:
        return f"{self._total:,} of {self._orders * len(SOURCES):,} orders"


@click.command(context_settings={"max_content_width": 110})
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
    help="A PostgreSQL database for the cluster. The demo stores its rows in a new space, and leaves them there. "
    "Without this option, the demo starts a private server in a temporary directory.",
)
def cluster(orders: int, database: str | None) -> None:
    """Kill each of three brokers while orders flow through them, and count the orders at the end.

    The three brokers are the nodes of one cluster: they share a PostgreSQL database. Two sources send orders to them
    through a small balancer, which gives each connection to the next broker. The brokers store the orders in a queue,
    and a forwarder sends them to a service. Brokers a, b and c are killed in turn with SIGKILL. Each time, the other
    two carry on its work, and the demo starts it again. At the end, the service must have received each order once,
    and the orders of each source in order.

    \b
    python -m demo.cluster
    python -m demo.cluster --orders 20000 --database postgresql://holdfast@db.example/holdfast

    \b
    Exit code 0: the count is exact. 1: it is not, or a part failed; the output says which. 2: wrong usage.
    """
    teller = Teller()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            if database is None:
                teller.event("starting a private PostgreSQL server in a temporary directory")
                database = stack.enter_context(private_database())
            else:
                database += f"{'&' if '?' in database else '?'}space=demo-{secrets.token_hex(4)}"
            check_database(database)
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-demo-")))
            runner = stack.enter_context(asyncio.Runner(loop_factory=event_loop_factory()))
            faults = runner.run(Cluster(orders, database, directory, teller).run())
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
    click.echo(
        f"Exact: after {len(NODES)} kills, the service received each of the {orders * len(SOURCES):,} orders once, and "
        f"those of each source in order. {teller.seconds:.0f} s."
    )


if __name__ == "__main__":
    cluster(prog_name="python -m demo.cluster")
