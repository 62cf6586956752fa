"""The process that the crash tests kill: commits numbered batches and acknowledges each on its standard output.

Run as a program: ``crash_child.py <location of the store>``. The tests import it too: the same batches make the
expected content.
"""

from __future__ import annotations

import os
import random
import sys

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.store import is_kafka, open_store
from holdfast.store.rocksdb import changes, opening
from holdfast.store.sql import changes as sql_changes
from holdfast.store.sql import records as sql_records
from holdfast.store.sql import store as sql

QUEUES = [("orders", 0), ("orders", 7), ("out", 1)]
SWEEP_BYTES = 30_000  # so that a run of some hundred batches deletes bytes many times
PIECE_BYTES = 1_500  # so that some of the records are in several rows


def _record(n: int, i: int, size: int) -> Record:
    return Record(f"urn:s{n % 3}", n * 100 + i, "urn:a", b"%08d" % n + b"x" * size, float(n))


def batch(n: int, before: Snapshot) -> Batch:
    """Batch number ``n``, made of nothing but ``n`` and what the store held before it."""
    draw = random.Random(n)
    made = Batch(sequences={"serial": {"n": n}}, cursors={("orders", 0, "serial"): {"n": n}})
    if n == 1:
        made.queues = {"orders": {"epoch": "e", "partitions": 8}, "out": {"epoch": "f", "partitions": 2}}
    end = {where: before.bounds.get(where, (0, 0))[1] for where in QUEUES}
    for i in range(draw.randrange(1, 12)):
        where = draw.choice(QUEUES)
        made.appends.append((*where, end[where], _record(n, i, draw.choice([10, 300, 4000]))))
        end[where] += 1
    for i in range(20, 20 + draw.randrange(3)):
        made.holds.append((f"urn:s{n % 3}", n * 100 + i, _record(n, i, 100)))
    for sequence, numbers in sorted(before.held.items()):
        for number in numbers:
            match draw.randrange(4):
                case 0:
                    where = draw.choice(QUEUES)
                    made.releases.append((sequence, number, *where, end[where], float(number)))
                    end[where] += 1
                case 1:
                    made.drops.append((sequence, number))
    if draw.random() < 0.05:
        made.sequences[f"urn:s{draw.randrange(3)}"] = None
    else:
        made.sequences[f"urn:s{n % 3}"] = {"ranges": [[1, n]]}
    for where in QUEUES:
        if draw.random() < 0.5:
            made.trims[where] = end[where] - draw.randrange(60)
    if draw.random() < 0.03:
        made.deletes.append(draw.choice(QUEUES))
    return made


def serial(snapshot: Snapshot) -> int:
    """The number of the last batch in a store."""
    return int(snapshot.sequences.get("serial", {"n": 0})["n"])


def main(location: str) -> None:
    """Go on from whatever batch the store ends with, until killed."""
    changes.SWEEP_BYTES = sql_changes.SWEEP_BYTES = SWEEP_BYTES
    sql_changes.PIECE_BYTES = sql_records.PIECE_BYTES = PIECE_BYTES
    sql.LOCK_SECONDS = 60.0
    opening.MEMTABLE_BYTES = 1 << 18
    if is_kafka(location):
        from holdfast.store.kafka import sweep

        sweep.FEWEST_BYTES, sweep.STEP_BYTES = 50_000, 5_000
    store = open_store(location)
    n = serial(store.load())
    while True:
        n += 1
        store.commit(batch(n, store.load()))
        os.write(1, b"%d\n" % n)


if __name__ == "__main__":
    main(sys.argv[1])
