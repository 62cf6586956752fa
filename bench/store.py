"""The commit speed of the stores: messages per second and CPU microseconds per message, by batch size.

Each commit appends 1 KB records to one queue and saves one Sequence's state and one cursor, and is durable when it
returns. The processor time is the whole process's, including RocksDB's background threads, but without a database's
server.

    python bench/store.py [--seconds 0.5] [--rounds 1] [--bytes 1024] [--directory DIR] [--database URL ...] [--kafka]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.records import Batch, Record
from holdfast.store import IN_MEMORY, open_store
from holdfast.store.base import Store

ROOT = Path(__file__).resolve().parent.parent
SIZES = (1, 10, 100, 1000)


def fill(store: Store, batch_size: int, body: bytes, seconds: float) -> tuple[float, float, float]:
    """Commit batches for a while; return messages per second, CPU microseconds per message, median milliseconds per
    commit."""
    record = Record("urn:uuid:bench", 1, "urn:bench:action", body, time.time(), "urn:uuid:1", "http://localhost/bench")
    end = store.load().bounds.get(("bench", 0), (0, 0))[1]
    begun = end
    took = []
    started, cpu = time.perf_counter(), time.process_time()
    until = started + seconds
    while (now := time.perf_counter()) < until:
        store.commit(
            Batch(
                appends=[("bench", 0, offset, record) for offset in range(end, end + batch_size)],
                sequences={"urn:uuid:bench": {"state": "created", "ranges": [[1, end + batch_size]]}},
                cursors={("bench", 0, "handler"): {"offset": end}},
                trims={("bench", 0): end - 10_000},
            )
        )
        took.append(time.perf_counter() - now)
        end += batch_size
    count = end - begun
    elapsed, spent = time.perf_counter() - started, time.process_time() - cpu
    return count / elapsed, spent / count * 1e6, sorted(took)[len(took) // 2] * 1e3


def read_back(store: Store) -> tuple[float, float]:
    """Read all records in pages; return messages per second and CPU microseconds per message."""
    first, end = store.load().bounds["bench", 0]
    started, cpu = time.perf_counter(), time.process_time()
    offset = first
    while offset < end:
        offset = store.read("bench", 0, offset, end)[-1][0] + 1
    elapsed, spent = time.perf_counter() - started, time.process_time() - cpu
    return (end - first) / elapsed, spent / (end - first) * 1e6


def main() -> None:
    """Print one table for all stores; the medians of all rounds, in which the stores take turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each batch size runs")
    parser.add_argument("--rounds", type=int, default=1, help="how often each store runs, in turn")
    parser.add_argument("--bytes", type=int, default=1024, help="size of a message body")
    parser.add_argument("--directory", help="where RocksDB writes (default: a temporary directory)")
    parser.add_argument(
        "--database", action="append", default=[], help="a database's URL, as for any store; repeatable"
    )
    parser.add_argument("--kafka", action="store_true", help="three private brokers of Kafka, too")
    options = parser.parse_args()
    body = b"x" * options.bytes
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
        places: list[str | Path] = [IN_MEMORY, Path(directory) / "store", *options.database]
        if options.kafka:
            places.append(stack.enter_context(private_kafka(Path(directory, "cache"))))
        stores = {name_of(place): open_store(place) for place in places}
        found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
        for store in stores.values():
            fill(store, SIZES[-1], body, options.seconds)  # the first commits of a process cost more
        for _ in range(options.rounds):
            for size in SIZES:
                for name, store in stores.items():
                    found.setdefault((name, size), []).append(fill(store, size, body, options.seconds))
        titles = f"{'store':<12}{'batch':>6}{'messages/s':>13}{'CPU us/message':>16}"
        print(f"{titles}{'to rocksdb':>12}{'ms/commit (p50)':>17}")
        for name, store in stores.items():
            for size in SIZES:
                rate, cpu, median = (statistics.median(values) for values in zip(*found[name, size], strict=True))
                ratio = cpu / statistics.median(one[1] for one in found["rocksdb", size])
                print(f"{name:<12}{size:>6}{rate:>13,.0f}{cpu:>16.1f}{ratio:>12.2f}{median:>17.3f}")
            rate, cpu = read_back(store)
            print(f"{name:<12}{'read':>6}{rate:>13,.0f}{cpu:>16.1f}")
            store.close()


def name_of(place: str | Path) -> str:
    """Return the name of a store in the table."""
    if isinstance(place, Path):
        return "rocksdb"
    return "memory" if place == IN_MEMORY else place.partition(":")[0]


@contextlib.contextmanager
def private_kafka(cache: Path) -> Iterator[str]:
    """Run three brokers of Kafka on this machine, and yield the URL of a store."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from kafka_nodes import KafkaNodes

    with KafkaNodes(ROOT / ".pytest_cache" / "d" / "kafka-server", 3) as brokers:
        yield brokers.new_url(cache)


if __name__ == "__main__":
    main()
