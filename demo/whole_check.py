"""The verdict on the whole run: tables, sums and alerts, each compared with a new computation from the data set.

It reads the tables with pyarrow, without Spark, and the alerts from the second service's queue. It computes the
expected values from the CSV files in plain Python.
"""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lxml import etree

from demo.check import Faults, records_of
from demo.flights import COLUMNS, Departure, departures

if TYPE_CHECKING:
    import pyarrow as pa

LATE = 120
SAID = ("carrier", "flight", "origin", "dest", "time_hour", "sched_dep_time", "dep_delay")
"""The fields of an alert."""
JOINED = (
    ("airlines_name", ("carrier",), "airlines", ("carrier",), "name"),
    ("airports_name", ("dest",), "airports", ("faa",), "name"),
    ("planes_model", ("tailnum",), "planes", ("tailnum",), "model"),
    ("weather_temp", ("origin", "time_hour"), "weather", ("origin", "time_hour"), "temp"),
)
"""A landed column, and the columns of the departure that determine it; then its table, key and column there."""

Row = tuple[Any, ...]


def check_landed(out: Path, tables: Path, count: int) -> dict[str, Faults]:
    """Compare the committed files of Spark's sink with the departures, field by field, including joined columns."""
    missing, doubled, joined = Faults(), Faults(), Faults()
    expected = Counter(tuple(departure[name] for name in COLUMNS) for departure in departures(count))
    lookups = _lookups(tables)
    for table in committed(out / "landed"):
        values = [table.column(name).to_pylist() for name in COLUMNS]
        for row in zip(*values, strict=True):
            if expected[row] > 0:
                expected[row] -= 1
            else:
                doubled.add(f"{row}")
        _check_joins(table, lookups, joined)
    for row, left in expected.items():
        for _ in range(left):
            missing.add(f"{row}")
    return {"departures missing": missing, "departures duplicated or different": doubled, "joins wrong": joined}


def committed(directory: Path) -> Iterator[pa.Table]:
    """Yield the files that the sink's log names; it omits files of batches that a kill interrupted."""
    import pyarrow.parquet as pq

    log = directory / "_spark_metadata"
    compacted = max((int(file.stem) for file in log.glob("*.compact")), default=-1)
    later = [file for file in log.iterdir() if file.name.isdigit() and int(file.name) > compacted]
    files = [log / f"{compacted}.compact"] * (compacted >= 0) + sorted(later, key=lambda file: int(file.name))
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines()[1:]:
            yield pq.ParquetFile(directory / Path(json.loads(line)["path"]).name).read()


def _table(tables: Path, name: str) -> Iterator[dict[str, str | None]]:
    with (tables / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield {column: None if value == "NA" else value for column, value in row.items()}


def _lookups(tables: Path) -> list[dict[Row, str | None]]:
    return [
        {tuple(row[one] for one in key): row[column] for row in _table(tables, name)}
        for _, _, name, key, column in JOINED
    ]


def _check_joins(table: pa.Table, lookups: list[dict[Row, str | None]], faults: Faults) -> None:
    for (column, keys, *_), lookup in zip(JOINED, lookups, strict=True):
        found = zip(*(table.column(name).to_pylist() for name in (column, *keys)), strict=True)
        for value, *key in found:
            if value != lookup.get(tuple(key)):
                faults.add(f"{column} of {key} is {value!r}, not {lookup.get(tuple(key))!r}")


def check_delays(out: Path, count: int) -> dict[str, Faults]:
    """Compare the sums by hour and airport with those of the data set."""
    import pyarrow.parquet as pq

    wrong = Faults()
    late: dict[tuple[datetime, str], list[int]] = defaultdict(list)
    for departure in departures(count):
        hour = datetime.fromisoformat(str(departure["time_hour"]))
        delays = late[hour, str(departure["origin"])]
        if isinstance(departure["dep_delay"], int):
            delays.append(departure["dep_delay"])
    for row in pq.read_table(out / "delays").to_pylist():
        start = row["hour"]["start"]  # Spark's own INT96 has no zone: it is UTC
        key = (start.astimezone(UTC) if start.tzinfo else start.replace(tzinfo=UTC), row["origin"])
        if key not in late:
            wrong.add(f"{key} is not an hour of the data set, or appears twice")
            continue
        delays = late.pop(key)
        if (row["departed"], row["most"]) != (len(delays), max(delays, default=None)) or not _is_mean(row, delays):
            wrong.add(f"{key}: {row['departed']}, {row['mean']}, {row['most']}")
    for key in late:
        wrong.add(f"{key} is missing")
    return {"hours wrong": wrong}


def _is_mean(row: dict[str, Any], delays: list[int]) -> bool:
    return row["mean"] is None if not delays else abs(row["mean"] - sum(delays) / len(delays)) < 1e-9


def late_departures(count: int) -> Iterator[Departure]:
    """Yield the departures that require an alert, in the data set's order."""
    for departure in departures(count):
        if isinstance(departure["dep_delay"], int) and departure["dep_delay"] > LATE:
            yield departure


def check_alerts(service: str, queue: str, count: int) -> dict[str, Faults]:
    """Compare the second service's alerts with the late departures: each once, and those of an airline in order."""
    missing, doubled, disordered = Faults(), Faults(), Faults()
    due = [tuple(departure[name] for name in SAID) for departure in late_departures(count)]
    places: dict[Row, list[int]] = defaultdict(list)
    for place, alert in enumerate(due):
        places[alert].append(place)
    reached: dict[str, int] = {}
    for record, where in records_of(service, queue):
        alert = _alert(record.body)
        if not places[alert]:
            doubled.add(f"{where}: {alert}")
            continue
        place = places[alert].pop(0)
        if place < reached.get(str(alert[0]), -1):
            disordered.add(f"{where}: {alert}")
        reached[str(alert[0])] = place
    for alert, left in places.items():
        for _ in left:
            missing.add(f"{alert}")
    return {"alerts missing": missing, "alerts duplicated or never due": doubled, "alerts out of order": disordered}


def _alert(body: bytes) -> Row:
    said = {one.tag: one.text for one in etree.fromstring(body)}
    whole = ("flight", "sched_dep_time", "dep_delay")
    return tuple(int(said[name] or "") if name in whole else said[name] for name in SAID)
