"""The capacity of a large cluster: costs of the engines, a model with what saturates first, and a simulation.

    python bench/cluster_capacity.py                       # the model and the simulation of 50 nodes and 10^6 Sequences
    python bench/cluster_capacity.py --measure postgresql  # what a commit costs a server of PostgreSQL
    python bench/cluster_capacity.py --measure kafka       # what one costs three brokers of Kafka

The model's costs are options; their defaults are those that docs/internals/cluster-capacity.md explains. The simulation
runs the real memberships on a virtual clock. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import load
from large_cluster import LargeCluster, Storm

from holdfast.cluster.shares import shares
from holdfast.core.records import Batch, Record
from holdfast.store import open_store

ROOT = Path(__file__).resolve().parent.parent
NODES = (3, 10, 50)
PARTITIONS = {3: 24, 10: 40, 50: 64}


@dataclass(frozen=True)
class Costs:
    """CPU in microseconds, of one message or one commit.

    Attributes:
        accept: A message at the node that owns its Sequence, in our processes.
        passing: In addition, a message that another node passes on.
        commit, record: A group commit in the engine, and each message in it.
        flushes: Group commits a second that the engine can sync, of all writers together; 0: it syncs none.
        most_group: Messages in a group commit at full load.
        message_bytes: A message in HTTP.
        copies: How often the engine sends each stored byte to its own other machines.
    """

    accept: float
    passing: float
    commit: float
    record: float = 0.0
    flushes: float = 0.0
    most_group: float = 100.0
    message_bytes: int = 1500
    copies: int = 1


@dataclass(frozen=True)
class Machine:
    """A machine: its cores, and the bytes a second of its network."""

    cores: int
    network: float = 1.25e9  # 10 Gbit/s


def of_postgresql(accept: float, passing: float) -> Costs:
    """One server with 8 cores, as measured here; see the page for where the numbers come from."""
    return Costs(accept, passing, commit=83.0, record=4.3, flushes=2146.0)


def of_kafka(accept: float, passing: float) -> Costs:
    """Three brokers with 8 cores each; the CPU of a commit is that of all three. They sync no commit."""
    return Costs(accept, passing, commit=1210.0, copies=2)


def limits(nodes: int, partitions: int, costs: Costs, machine: Machine, engine: Machine) -> dict[str, float]:
    """Return the messages a second at which each part of a cluster is full.

    Args:
        nodes, partitions: The cluster. A load balancer divides connections evenly, without stickiness.
        costs: The costs.
        machine: A node.
        engine: A machine of the database, or all brokers of Kafka as one.
    """
    passed = (nodes - 1) / nodes
    owned = list(shares({f"node-{number}": 0 for number in range(nodes)}, partitions).values())
    busiest = max(owned) / partitions  # its part of the messages, as owner
    each = costs.accept * busiest + costs.passing * passed * 0.5 * (busiest + 1 / nodes)
    inside = 2 * costs.message_bytes * passed  # a message that is passed on leaves one node and enters another
    ours = {
        "CPU of the busiest node": machine.cores * 1e6 / each,
        "one process for each partition": 1e6 * partitions / (costs.accept + 0.5 * costs.passing * passed),
        "network of the busiest node": machine.network / (busiest * (2 * costs.message_bytes + inside)),
        "network of the engine": engine.network / (costs.message_bytes * (1 + costs.copies)),
        "CPU of the engine": engine.cores * 1e6 / (costs.commit / costs.most_group + costs.record),
    }
    return ours | ({"commits of the engine": costs.flushes * costs.most_group} if costs.flushes else {})


def model(engine: str, costs: Costs, machine: Machine, server: Machine) -> None:
    """Print the limits of all sizes."""
    tables = {nodes: limits(nodes, PARTITIONS[nodes], costs, machine, server) for nodes in NODES}
    print(f"\n{engine}: messages a second, {machine.cores} cores a node")
    print("".join([f"{'nodes / partitions':<34}", *(f"{n:>8} /{PARTITIONS[n]:>3}" for n in NODES)]))
    for name in tables[NODES[0]]:
        print("".join([f"{name:<34}", *(f"{tables[n][name]:>13,.0f}" for n in NODES)]))
    first = [min(tables[n], key=tables[n].__getitem__) for n in NODES]
    print("first: " + "; ".join(f"{n} nodes: {name}" for n, name in zip(NODES, first, strict=True)))


ENGINES: dict[str, tuple[Callable[[float, float], Costs], Machine]] = {
    "PostgreSQL": (of_postgresql, Machine(8)),
    "Kafka": (of_kafka, Machine(24, 3 * 1.25e9)),
}


# --- the engines ------------------------------------------------------------------------------------------------------


def measure(
    url_of: Callable[[int], str], pids: list[int], writers: int, group: int, seconds: float
) -> tuple[float, ...]:
    """Return commits a second of several writers, and the engine's and our own CPU in microseconds a commit."""
    stores = [open_store(url_of(number)) for number in range(writers)]
    record = Record("urn:uuid:bench", 1, "urn:bench:action", b"x" * 1024, time.time(), "urn:uuid:1", "http://bench/")
    counts = [0] * writers
    over = time.monotonic() + seconds

    def fill(number: int) -> None:
        store, end = stores[number], 0
        while time.monotonic() < over:
            appends = [("bench", 0, offset, record) for offset in range(end, end + group)]
            store.commit(Batch(appends=appends, sequences={"urn:uuid:bench": {"ranges": [[1, end + group]]}}))
            end += group
            counts[number] += 1

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(writers)]
    engine, own, begun = load.cpu_seconds(pids), time.process_time(), time.monotonic()
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    elapsed = time.monotonic() - begun
    engine, own = load.cpu_seconds(pids) - engine, time.process_time() - own
    for store in stores:
        store.close()
    count = sum(counts)
    return count / elapsed, 1e6 * engine / count, 1e6 * own / count


def measure_all(url_of: Callable[[str], Callable[[int], str]], pids: list[int], seconds: float) -> None:
    print("writers  group  commits/s  messages/s  engine us/commit  our us/commit")
    for writers in (1, 8):
        for group in (1, 10, 100):
            rate, engine, own = measure(url_of(f"w{writers}g{group}"), pids, writers, group, seconds)
            print(f"{writers:>7}{group:>7}{rate:>11,.0f}{rate * group:>12,.0f}{engine:>18,.0f}{own:>15,.0f}")


def measure_postgresql(seconds: float) -> None:
    """Measure a private server."""
    from demo.database import private_database

    with private_database() as url:
        directory = url.rpartition("host=")[2]
        pid = int(Path(directory, "data", "postmaster.pid").read_text().split()[0])
        measure_all(lambda name: lambda number: f"{url}&space={name}x{number}", [pid], seconds)


def measure_kafka(seconds: float) -> None:
    """Measure three brokers on this machine."""
    from kafka_nodes import KafkaNodes

    with tempfile.TemporaryDirectory() as directory:
        with KafkaNodes(ROOT / ".pytest_cache" / "d" / "kafka-server", 3) as brokers:
            pids = [one.pid for one in brokers.processes if one is not None]
            caches = iter(range(1 << 30))
            measure_all(
                lambda _name: lambda _number: brokers.new_url(Path(directory, f"cache{next(caches)}")), pids, seconds
            )


# --- the simulation ---------------------------------------------------------------------------------------------------


def simulate(nodes: int, partitions: int, sequences: int, start: float, seed: int) -> None:
    """Print what storms do to a large cluster."""
    cluster = LargeCluster(seed, nodes, partitions, sequences, start=start)
    storms: list[Storm] = [cluster.storm("all nodes start", joins=nodes)]
    shares_now = cluster.sequences_of_nodes()
    before, since = cluster.requests.total(), cluster.now
    cluster.run_until(cluster.now + 60.0)
    rest = (cluster.requests.total() - before) / (cluster.now - since)
    few, many = 1, max(1, nodes // 5)
    for name, kills, joins in (
        ("one node is killed", few, 0),
        ("it is back", 0, few),
        (f"{many} nodes are killed", many, 0),
        ("they are back", 0, many),
        (f"{nodes // 2} nodes are killed", nodes // 2, 0),
        ("they are back", 0, nodes // 2),
    ):
        storms.append(cluster.storm(name, kills, joins))
        cluster.run_until(cluster.now + 30.0)
    print(f"\n{nodes} nodes, {partitions} partitions, {sequences:,} Sequences; a worker takes {start:g} s to serve")
    print("event                        s  longest  moved  starts  Sequences without a node")
    for one in storms:
        print(
            f"{one.name:<24}{one.seconds:>6.1f}{one.longest:>9.2f}{one.moved:>7}{one.most_starts:>8}{one.unserved:>10.1%}"
        )
    mean = sequences / nodes
    print(
        f"statements a second at rest: {rest:.0f}; Sequences of a node: {shares_now[0] / mean:.2f} of the mean at most"
    )
    of_partition = [count / sequences * partitions for count in cluster.sequences.values()]
    print(f"Sequences of a partition: {min(of_partition):.3f} to {max(of_partition):.3f} of the mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", choices=("postgresql", "kafka"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--accept", type=float, default=103.0)
    parser.add_argument("--passing", type=float, default=31.0)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--sequences", type=int, default=1_000_000)
    parser.add_argument("--start", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.measure == "postgresql":
        measure_postgresql(options.seconds)
        return
    if options.measure == "kafka":
        measure_kafka(options.seconds)
        return
    machine = Machine(options.cores)
    for engine, (costs, server) in ENGINES.items():
        model(engine, costs(options.accept, options.passing), machine, server)
    simulate(options.nodes, PARTITIONS.get(options.nodes, 64), options.sequences, options.start, options.seed)


if __name__ == "__main__":
    main()
