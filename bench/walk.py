"""The processor time of a durable message by stages: each stage alone, in one thread, without sockets.

Sixty-four Sequences, half of them in each batch, as in a server with 64 busy connections. The figures are CPU
microseconds per message of this thread: of the best batch, of the fifth percentile, and the median. On a shared
machine, the first two show the cost of the code, and the third the influence of other load.

    python bench/walk.py [--batches 1500] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from time import thread_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load

from holdfast.core.events import Respond
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules
from holdfast.core.queues.queue import Queue
from holdfast.endpoint.engine.engine import new_identifier
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.wire import decode, encode

STAGES = ("decode", "receive", "take the batch", "commit", "tell it is durable", "encode the answers")
SEQUENCES, BATCH = 64, 32
QUANTILES = {"best": 0.0, "5 %": 0.05, "median": 0.5}


def content(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


def walk(protocol: RMProtocol, store: RocksDBStore, scripts: list[load.Script]) -> list[float]:
    """Run one batch; return the times between its stages."""
    requests = [(script, content(script.next_request())) for script in scripts]
    times = [thread_time()]
    envelopes = [(script, decode(request)) for script, request in requests]
    times.append(thread_time())
    now = time.time()
    for script, envelope in envelopes:
        protocol.receive(envelope, script, now)
    times.append(thread_time())
    batch = protocol.take_batch()
    times.append(thread_time())
    store.commit(batch)
    times.append(thread_time())
    protocol.batch_durable(now)
    answers = [effect for effect in protocol.take_effects() if isinstance(effect, Respond)]
    times.append(thread_time())
    encoded = [encode(answer.envelope) if answer.envelope is not None else b"" for answer in answers]
    times.append(thread_time())
    for answer, body in zip(answers, encoded, strict=True):
        problem = answer.back_channel.check(200, body)
        if problem:
            raise SystemExit(problem)
    return [later - earlier for earlier, later in pairwise(times)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    make = load.reliable()
    scripts = [make("http://127.0.0.1:1/", number) for number in range(SEQUENCES)]
    with tempfile.TemporaryDirectory() as directory:
        store = RocksDBStore(Path(directory) / "store")
        protocol = RMProtocol(
            Queue("inbox", 4),
            Environment(store.read, new_identifier, lambda: 0.5),
            rules=MessageRules(replies=lambda _action: False),
        )
        walk(protocol, store, scripts)  # creates the Sequences
        gc.set_threshold(20_000)  # as in a server
        gc.freeze()
        batches = [
            walk(protocol, store, scripts[begin : begin + BATCH])
            for number in range(options.batches)
            for begin in [BATCH * (number % (SEQUENCES // BATCH))]
        ]
        store.close()
    table: dict[str, dict[str, float]] = {}
    for stage, took in zip(STAGES, zip(*batches, strict=True), strict=True):
        ordered = sorted(took)
        table[stage] = {
            name: 1e6 * ordered[int(share * (len(ordered) - 1))] / BATCH for name, share in QUANTILES.items()
        }
    table["all"] = {name: sum(row[name] for row in table.values()) for name in QUANTILES}
    if options.json:
        print(json.dumps(table))
        return
    print(f"{'CPU us/message':<20}" + "".join(f"{name:>9}" for name in QUANTILES))
    for stage, row in table.items():
        print(f"{stage:<20}" + "".join(f"{value:>9.1f}" for value in row.values()))


if __name__ == "__main__":
    main()
