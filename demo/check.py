"""The demo's verdict: a comparison of the queues and the landed table with the data set.

It trusts no counter of the parts it judges. It reads a queue record by record and the files with pyarrow, without
Spark, and takes the departures from the data set again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.flights import COLUMNS, Departure, departure_xml, departures
from holdfast.client.data_plane import DataPlane, Patience, read_range
from holdfast.client.offsets import Range
from holdfast.core.records import Record
from holdfast.store.records import decode_record

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 5
"""Number of examples to keep for each kind of fault; every fault is counted."""
_CHUNK = 10_000


@dataclass
class Faults:
    """Faults of one kind: their number, and descriptions of the first few."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, what: str) -> None:
        """Count a fault."""
        self.count += 1
        if len(self.examples) < SHOWN:
            self.examples.append(what)


@dataclass
class Verdict:
    """The findings in one place.

    Attributes:
        rows: Number of messages.
        missing: Departures without a message.
        doubled: Messages beyond the first of a departure.
        out_of_order: Messages behind a later message of their Sequence.
        different: Messages that differ from their departure in any field.
    """

    rows: int = 0
    missing: Faults = field(default_factory=Faults)
    doubled: Faults = field(default_factory=Faults)
    out_of_order: Faults = field(default_factory=Faults)
    different: Faults = field(default_factory=Faults)

    def faults(self) -> Iterator[tuple[str, Faults]]:
        """Yield the kinds of faults by name."""
        yield "missing", self.missing
        yield "doubled", self.doubled
        yield "out of order", self.out_of_order
        yield "different", self.different

    @property
    def is_exact(self) -> bool:
        """Whether every departure is there once, in order, and unchanged."""
        return not any(faults.count for _, faults in self.faults())


class _Order:
    """Checks the order of message numbers within each Sequence."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._highest: dict[str, int] = {}

    def see(self, sequence: str, number: int, where: str) -> None:
        highest = self._highest.get(sequence, 0)
        if number < highest:
            self._verdict.out_of_order.add(f"{sequence} number {number} is behind number {highest} ({where})")
        self._highest[sequence] = max(highest, number)


def check_queue(server: str, queue: str, count: int) -> Verdict:
    """Read a whole queue over the data plane and compare it with the first ``count`` departures, body by body.

    The queue is in order if each Sequence's messages are in the order of their numbers, and each airline's departures
    in the order of the data set, whichever Sequences carried them.

    Args:
        server: URL of the admin listener.
        queue: The queue; no record of it may have been deleted.
        count: Number of sent departures.

    Raises:
        PipelineError: the queue cannot be read.
    """
    verdict = Verdict()
    by_sequence, by_airline = _Order(verdict), _Order(verdict)
    sent = {departure_xml(departure): place for place, departure in enumerate(departures(count))}
    airlines = [str(departure["carrier"]) for departure in departures(count)]
    seen = bytearray(count)
    for record, where in records_of(server, queue):
        verdict.rows += 1
        by_sequence.see(record.sequence, record.message_number, where)
        place = sent.get(record.body)
        if place is None or record.action != ACTION or not record.message_id:
            verdict.different.add(f"{where}: {record.action} {record.body[:80]!r} was never sent so")
        elif seen[place]:
            verdict.doubled.add(f"departure {place + 1} of the data set, at {where}")
        else:
            seen[place] = True
            by_airline.see(airlines[place], place + 1, where)
    for (number, departure), was_seen in zip(numbered(count), seen, strict=True):
        if not was_seen:
            verdict.missing.add(_name(number, departure))
    return verdict


def records_of(server: str, queue: str) -> Iterator[tuple[Record, str]]:
    """Yield every record of a queue with a description of its position.

    Raises:
        PipelineError: the queue cannot be read.
    """
    plane = DataPlane(server)
    try:
        ends = plane.ends(queue)
        for partition, (first, end) in sorted(ends.partitions.items()):
            part = Range(partition, first, end)
            for records in read_range(plane, queue, ends.epoch, part, Patience(30.0)):
                for offset, data in records:
                    yield decode_record(data), f"partition {partition} offset {offset}"
    finally:
        plane.close()


def numbered(count: int) -> Iterator[tuple[int, Departure]]:
    """Yield the first ``count`` departures, each with its message number in its airline's Sequence."""
    numbers: Counter[str] = Counter()
    for departure in departures(count):
        carrier = str(departure["carrier"])
        numbers[carrier] += 1
        yield numbers[carrier], departure


def _name(number: int, departure: Departure) -> str:
    return (
        f"{departure['carrier']} message {number}: flight {departure['flight']} from {departure['origin']} "
        f"to {departure['dest']}, {departure['time_hour']}"
    )


def check_landed(directory: Path, count: int) -> Verdict:
    """Compare the Delta table in ``directory`` with the first ``count`` departures, field by field."""
    from deltalake import DeltaTable

    verdict = Verdict()
    columns = ["sequence", "message_number", "message_id", "action", "received_at", "body", "corrupt_record", *COLUMNS]
    if not DeltaTable.is_deltatable(str(directory)):
        for number, departure in numbered(count):
            verdict.missing.add(_name(number, departure))
        return verdict
    place = ["partition", "offset"]
    table = DeltaTable(str(directory)).to_pyarrow_table(columns=[*columns, *place])
    table = table.sort_by([(name, "ascending") for name in place])
    verdict.rows = table.num_rows
    order = _Order(verdict)
    rows: dict[tuple[str, int], int] = {}
    keys = [table.column(name).to_pylist() for name in ("sequence", "message_number", "carrier")]
    for row, (sequence, number, carrier) in enumerate(zip(*keys, strict=True)):
        order.see(sequence, number, f"row {row}")
        if rows.setdefault((carrier or "", number), row) != row:
            verdict.doubled.add(f"{carrier} message {number} of {sequence}")
    _check_fields(verdict, table, rows, count)
    for carrier, number in rows:
        verdict.doubled.add(f"{carrier or 'no airline'} message {number} was never sent")
    return verdict


def _check_fields(verdict: Verdict, table: pa.Table, rows: dict[tuple[str, int], int], count: int) -> None:
    """Compare every departure with its row, some thousand at a time, and remove the compared rows from ``rows``."""
    wanted: list[tuple[int, int, Departure]] = []
    for number, departure in numbered(count):
        row = rows.pop((str(departure["carrier"]), number), None)
        if row is None:
            verdict.missing.add(_name(number, departure))
            continue
        wanted.append((row, number, departure))
        if len(wanted) == _CHUNK:
            _compare(verdict, table, wanted)
            wanted = []
    if wanted:
        _compare(verdict, table, wanted)


def _compare(verdict: Verdict, table: pa.Table, wanted: list[tuple[int, int, Departure]]) -> None:
    found: list[dict[str, Any]] = table.take([row for row, _, _ in wanted]).to_pylist()
    for landed, (_, number, departure) in zip(found, wanted, strict=True):
        wrong = [name for name in COLUMNS if landed[name] != departure[name]]
        if landed["body"].encode() != departure_xml(departure):
            wrong.append("body")
        if landed["action"] != ACTION or not landed["message_id"] or landed["received_at"] is None:
            wrong.append("message_id, action or received_at")
        if landed["corrupt_record"] is not None:
            wrong.append(f"corrupt_record: {landed['corrupt_record']}")
        if wrong:
            verdict.different.add(f"{_name(number, departure)}: {', '.join(wrong)}")


ACTION = "urn:holdfast:flights/Departed"
"""wsa:Action of every message of the demo."""
