"""A backlog larger than memory: the broker's memory, its write and read rates, and its start time.

    python bench/backlog.py                               # a million messages of 1 KB
    python bench/backlog.py --messages 10000000 --json    # ten million: some 11 GB of disk, and some minutes

A separate process puts records into the embedded store, in batches of 200 over four partitions, each batch synced. With
no records, a tenth and all of them, the benchmark starts the server on the store. It measures the time from the start
of the process to the first acknowledged message, the memory at that moment, and rate and memory under load. At the end
it reads everything back in order, with an empty system cache: the store's files as bytes, RocksDB's own iterator, the
store's records as bytes, and as records. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import load
from broker import ask, begin, ended, tell
from systems import Running, System, systems

from holdfast.core.records import Batch, Record
from holdfast.store.rocksdb.store import RocksDBStore

QUEUE, PARTITIONS, BATCH = "inbox", 4, 200
PATIENCE = 600.0
"""Seconds for a server to start."""


def main() -> None:
    """Measure and print."""
    names = [one.name for one in systems() if one.store and not one.forwards]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1024, help="of each body")
    parser.add_argument("--system", choices=names, default=names[-1], help="what is started on the store")
    parser.add_argument("--seconds", type=float, default=3.0, help="of load at each size")
    parser.add_argument("--directory", help="where the store is made; that of temporary files if not said")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fill", nargs=2, metavar=("STORE", "END"), help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=2, metavar=("STORE", "HOW"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        print(json.dumps(fill(Path(options.fill[0]), int(options.fill[1]), options.bytes)))
        return
    if options.read:
        print(json.dumps(WAYS[options.read[1]](Path(options.read[0]))))
        return
    conditions = begin()
    system = next(one for one in systems() if one.name == options.system)
    with tempfile.TemporaryDirectory(prefix="backlog-", dir=options.directory) as directory:
        figures = measure(system, Path(directory) / "system", options)
    if options.json:
        print(json.dumps({**ended(conditions), **figures}, indent=1))
    else:
        show(figures)


def measure(system: System, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all measurements."""
    store = directory / system.store
    sizes: list[dict[str, Any]] = [{"messages": 0, **served(system, directory, options.seconds)}]
    for size in (options.messages // 10, options.messages):
        tell(f"filling up to {size:,}")
        written = child("--fill", str(store), str(size), "--bytes", str(options.bytes))
        tell(f"  {written['rate']:,.0f} a second; starting on it")
        sizes.append({"messages": size, "written": written, **served(system, directory, options.seconds)})
    reads = {}
    for how in WAYS:
        forget_cache(store)
        reads[how] = child("--read", str(store), how)
        tell(f"{how}: {reads[how]['messages'] / reads[how]['seconds']:,.0f} messages a second")
    return {"system": system.name, "bytes": options.bytes, "sizes": sizes, "reads": reads}


def child(*words: str) -> dict[str, Any]:
    """Return the output of this script run as a separate process with empty memory."""
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# --- writing --------------------------------------------------------------------------------------------------------


def fill(place: Path, end: int, size: int) -> dict[str, float]:
    """Append records up to ``end`` in total, like a broker with this many connections, but without a network."""
    store = RocksDBStore(place)
    text = os.urandom(1 << 20).hex().encode()  # two octets for each random one: compresses about as well as markup
    ends = [store.load().bounds.get((QUEUE, partition), (0, 0))[1] for partition in range(PARTITIONS)]
    begun = sum(ends)
    started, cpu, told = time.perf_counter(), time.process_time(), time.monotonic()
    for number in range(begun, end, BATCH):
        partition = number // BATCH % PARTITIONS
        first, now = ends[partition], time.time()
        appends = []
        for offset in range(first, first + min(BATCH, end - number)):
            body = b"<m>%b</m>" % text[(at := offset * 7919 % (len(text) - size)) : at + size - 7]
            appends.append((QUEUE, partition, offset, record(partition, offset, body, now)))
        store.commit(Batch(appends=appends))
        ends[partition] = first + len(appends)
        if time.monotonic() - told > 10:
            told = time.monotonic()
            tell(f"  {sum(ends):,}")
    count = max(1, sum(ends) - begun)
    elapsed, spent = time.perf_counter() - started, time.process_time() - cpu
    figures = {"rate": count / elapsed, "cpu_us": 1e6 * spent / count, **memory(os.getpid())}
    store.close()
    return figures


def record(partition: int, offset: int, body: bytes, now: float) -> Record:
    """Return a message as a queue stores it."""
    return Record(
        f"urn:uuid:00000000-0000-4000-8000-00000000000{partition}",
        offset + 1,
        f"{load.CONTRACT}/notify",
        body,
        now,
        f"urn:uuid:00000000-0000-4000-8000-{offset:012x}",
        "http://127.0.0.1/",
    )


# --- serving --------------------------------------------------------------------------------------------------------


def served(system: System, directory: Path, seconds: float) -> dict[str, Any]:
    """Start the server on its store; return its times, rate and memory."""
    forget_cache(directory)
    begun = time.perf_counter()
    with Running(system, directory) as running:
        up = time.perf_counter() - begun
        acknowledge_one(running.url)
        first = time.perf_counter() - begun
        (pid,) = running.pids
        idle = memory(pid)
        loaded = ask(running, 64, 370, seconds)
        return {
            "up_seconds": up,  # until it prints its address
            "first_acknowledged_seconds": first,
            "started": idle,
            "load": asdict(loaded),
            "loaded": memory(pid),
        }


def acknowledge_one(url: str) -> None:
    """Create a Sequence and get one message acknowledged, however long that takes."""
    script = load.reliable("1.1")(url, 0)
    host, _, port = url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        for _ in range(2):
            connection.sendall(script.next_request())
            answer = connection.recv(1 << 16)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            while len(body) < length:
                body += connection.recv(1 << 16)
            problem = script.check(int(head.split()[1]), body)
            if problem:
                raise SystemExit(problem)


def memory(pid: int) -> dict[str, float]:
    """Return the MiB of a process: resident, resident without file-backed pages, and the maximum resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    values = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.endswith("kB")}
    names = {"resident": "VmRSS", "anonymous": "RssAnon", "most": "VmHWM"}
    return {name: round(int(values[key]) / 1024, 1) for name, key in names.items()}


# --- reading --------------------------------------------------------------------------------------------------------


def files(place: Path) -> list[Path]:
    """Return all files below a directory."""
    return sorted(path for path in place.rglob("*") if path.is_file())


def forget_cache(place: Path) -> None:
    """Drop these files from the system's cache, as after a restart of the machine."""
    for path in files(place):
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _timed(read: Callable[[], Iterator[tuple[int, int]]]) -> dict[str, float]:
    started, cpu, count, size = time.perf_counter(), time.process_time(), 0, 0
    for messages, octets in read():
        count, size = count + messages, size + octets
    elapsed, spent = time.perf_counter() - started, time.process_time() - cpu
    return {"messages": count, "bytes": size, "seconds": elapsed, "cpu_us": 1e6 * spent / max(1, count)}


def scan(place: Path) -> dict[str, float]:
    """Read the store's files completely, a megabyte at a time: the limit of the disk."""

    def read() -> Iterator[tuple[int, int]]:
        for path in files(place):
            with path.open("rb", buffering=0) as file:
                while data := file.read(1 << 20):
                    yield 0, len(data)

    found = _timed(read)
    store = RocksDBStore(place, read_only=True)
    found["messages"] = sum(end - first for first, end in store.load().bounds.values())
    store.close()
    found["cpu_us"] *= 1 / max(1, found["messages"])
    return found


def iterate(place: Path) -> dict[str, float]:
    """Read all keys and values with RocksDB's own iterator, through its Python binding."""
    store = RocksDBStore(place)

    def read() -> Iterator[tuple[int, int]]:
        for key, value in store._db.items():
            yield 1, len(key) + len(value)

    found = _timed(read)
    store.close()
    return found


def pages(place: Path, *, decodes: bool) -> dict[str, float]:
    """Read the store's records, one partition after the other, in pages as readers request them."""
    store = RocksDBStore(place)

    def read() -> Iterator[tuple[int, int]]:
        for (queue, partition), (first, end) in store.load().bounds.items():
            while first < end:
                if decodes:
                    page = store.read(queue, partition, first, end)
                    first, count = page[-1][0] + 1, len(page)
                    yield count, sum(len(one.body) for _, one in page)
                else:
                    encoded = store.read_encoded(queue, partition, first, end)
                    first, count = encoded[-1][0] + 1, len(encoded)
                    yield count, sum(len(data) for _, data in encoded)

    found = _timed(read)
    store.close()
    return found


WAYS: dict[str, Callable[[Path], dict[str, float]]] = {
    "the files, as bytes": scan,
    "RocksDB's iterator": iterate,
    "the store, encoded": lambda place: pages(place, decodes=False),
    "the store, records": lambda place: pages(place, decodes=True),
}


def show(figures: dict[str, Any]) -> None:
    """Print two tables."""
    head = f"{'waiting':>12}{'written/s':>11}{'CPU us':>8}{'up s':>7}{'first s':>9}"
    print(f"{head}{'MiB':>8}{'loaded':>8}{'rate/s':>9}{'p99 ms':>8}")
    for row in figures["sizes"]:
        written = row.get("written")
        how = f"{written['rate']:11,.0f}{written['cpu_us']:8.1f}" if written else f"{'':19}"
        times = f"{row['up_seconds']:7.2f}{row['first_acknowledged_seconds']:9.2f}"
        held = f"{row['started']['resident']:8.0f}{row['loaded']['most']:8.0f}"
        print(f"{row['messages']:12,}{how}{times}{held}{row['load']['rate']:9,.0f}{row['load']['p99']:8.1f}")
    print(f"\n{'read in order, cold':<22}{'messages/s':>12}{'MB/s':>8}{'CPU us':>8}")
    for how, row in figures["reads"].items():
        rate, speed = row["messages"] / row["seconds"], row["bytes"] / row["seconds"] / 1e6
        print(f"{how:<22}{rate:12,.0f}{speed:8,.0f}{row['cpu_us']:8.2f}")


if __name__ == "__main__":
    main()
