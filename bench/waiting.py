"""The cost of a source with more waiting messages than memory holds.

The benchmark measures memory and rate while the backlog fills, the time from a start to the first message, and memory
and rate while the backlog drains. Each part is a separate process, so that its memory is that of the part. The first
part submits messages to the core of a source with a granted Sequence and a silent destination; they go to the store in
the core's own batches. The core also drains them, to a destination that acknowledges immediately, without a socket.
backlog.py measures the cost of reading the records.

    python bench/waiting.py [--messages 10000000] [--bytes 1024] [--directory DIR] [--keep]
    python bench/waiting.py fill|start|drain DIR [--messages N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import Source, SourceHTTP
from holdfast.core.events import ReadWanted, Transmit
from holdfast.core.messages import (
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    SequenceAcknowledgement,
)
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.versions import Versions
from holdfast.http.outcome import Done
from holdfast.store.rocksdb.store import RocksDBStore

TO = "http://127.0.0.1:9/"
QUEUE = "outbox/"
VERSIONS = Versions()
TOGETHER = 1000
"""Messages in a batch."""


def memory() -> dict[str, int]:
    """Return the megabytes of this process: resident now, and the maximum."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) >> 10 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"resident": found["VmRSS"], "most resident": found["VmHWM"]}


def bodies(size: int, chance: random.Random) -> list[bytes]:
    """Return bodies that hardly compress, because they contain random digits."""
    frame = b'<order xmlns="urn:bench">%s</order>'
    return [frame % chance.randbytes((size - len(frame)) // 2).hex().encode() for _ in range(4096)]


def fill(directory: Path, count: int, size: int) -> dict[str, Any]:
    """Fill the backlog."""
    store = RocksDBStore(directory)
    chance = random.Random(1)
    some = bodies(size, chance)
    protocol = RMProtocol(Queue("replies"), Environment(store.read, lambda: f"urn:uuid:{chance.random()}", lambda: 0.0))
    protocol.recover(store.load(), time.time())
    outbox = protocol.outbound.open("", TO, [(VERSIONS, False)])
    started, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        body, now = some[number & 4095], time.time()
        record = Record("", 0, "urn:bench:order", body, now, f"urn:uuid:{number:036}", TO)
        protocol.submit(outbox, record, now)
        if not (number + 1) % TOGETHER or number + 1 == count:
            _commit(protocol, store)
    elapsed, spent = time.perf_counter() - started, time.process_time() - cpu
    filled = memory()
    store.close()
    return {"messages/s": round(count / elapsed), "CPU us": round(spent / count * 1e6, 1), **filled}


def _commit(protocol: RMProtocol, store: RocksDBStore) -> None:
    while protocol.wants_commit:
        store.commit(protocol.take_batch())
        protocol.batch_durable(time.time())
        for effect in protocol.take_effects():
            if isinstance(effect, Transmit) and isinstance(effect.envelope.control, CreateSequence):
                granted = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, relates_to=effect.source)
                granted.control = CreateSequenceResponse("urn:uuid:granted")
                protocol.received(effect, granted, time.time())
            elif isinstance(effect, ReadWanted):
                found = store.read(effect.queue, effect.partition, effect.start, effect.end)
                protocol.records_read(effect, found, time.time())


def drain(directory: Path, count: int) -> dict[str, Any]:
    """Let the core send messages to a destination that acknowledges immediately, and delete them."""
    store = RocksDBStore(directory)
    chance = random.Random(2)
    protocol = RMProtocol(Queue("replies"), Environment(store.read, lambda: f"urn:uuid:{chance.random()}", lambda: 0.0))
    started, cpu = time.perf_counter(), time.process_time()
    protocol.recover(store.load(), time.time())
    outbox = protocol.outbound.open("", TO, [(VERSIONS, False)])
    first = outbox.records.first
    protocol.pump(time.time())
    while outbox.records.first - first < count:
        sent: Transmit | None = None
        for effect in protocol.take_effects():
            if isinstance(effect, Transmit):
                sent = effect if sent is None or sent.number < effect.number else sent
            elif isinstance(effect, ReadWanted):
                found = store.read(effect.queue, effect.partition, effect.start, effect.end)
                protocol.records_read(effect, found, time.time())
        if sent is not None:
            arrived = SequenceAcknowledgement("urn:uuid:granted", ((1, sent.number),))
            envelope = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, control=Acknowledge())
            envelope.acknowledgements = (arrived,)
            protocol.received(sent, envelope, time.time())
            protocol.pump(time.time())
        if protocol.wants_commit:
            store.commit(protocol.take_batch())
            protocol.batch_durable(time.time())
    elapsed, spent = time.perf_counter() - started, time.process_time() - cpu
    drained = memory()
    store.close()
    return {"messages/s": round(count / elapsed), "CPU us": round(spent / count * 1e6, 1), **drained}


class Silence:
    """A destination that accepts requests and never answers."""

    def __init__(self) -> None:
        self.first = asyncio.Event()

    def request(self, method: str, url: str, body: bytes, headers: Mapping[str, str], done: Done) -> None:
        """Accept a request."""
        self.first.set()

    async def close(self) -> None:
        """Do nothing: nothing is open."""


async def start(directory: Path) -> dict[str, Any]:
    """Start a source on the backlog, until its first message leaves."""
    silence = Silence()
    started, cpu = time.perf_counter(), time.process_time()
    async with asyncio.timeout(600):
        source = Source(TO, directory, http=SourceHTTP(transport=silence))
        await source.open()
        await silence.first.wait()
        elapsed, spent = time.perf_counter() - started, time.process_time() - cpu
        waiting = source.progress.outstanding
        figures = {"seconds": round(elapsed, 3), "CPU s": round(spent, 3), "waiting": waiting, **memory()}
        await source.close(0.0)
    return figures


def part(*arguments: str) -> dict[str, Any]:
    """Run one part in a separate process."""
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"{arguments[0]}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Run all parts for a backlog and for a small one; or run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("fill", "start", "drain"))
    parser.add_argument("store", nargs="?", type=Path)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", action="store_true", help="in one line")
    parser.add_argument("--keep", action="store_true", help="leave the store")
    options = parser.parse_args()
    if options.part is None:
        found: list[dict[str, Any]] = []
        base = Path(tempfile.mkdtemp(prefix="waiting-", dir=options.directory))
        try:
            for count in (10_000, options.messages):
                store = base / str(count)
                figures = {
                    "messages": count,
                    "fill": part("fill", str(store), "--messages", str(count), "--bytes", str(options.bytes)),
                    "start": part("start", str(store)),
                    "drain": part("drain", str(store), "--messages", str(min(count, 1_000_000))),
                }
                found.append(figures)
        finally:
            if not options.keep:
                shutil.rmtree(base)
        print(json.dumps(found, indent=None if options.json else 2))
        return
    runs = {
        "fill": lambda: fill(options.store, options.messages, options.bytes),
        "drain": lambda: drain(options.store, options.messages),
        "start": lambda: asyncio.run(start(options.store)),
    }
    print(json.dumps(runs[options.part]()))


if __name__ == "__main__":
    main()
