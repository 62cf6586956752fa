"""The verdict on the whole run finds what is wrong with tables, sums and alerts, and finds nothing in exact ones."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo import whole_check
from demo.check import Faults
from demo.flights import data_file, departures
from holdfast.core.records import Record

COUNT = 400
Row = dict[str, Any]


def found(faults: dict[str, Faults]) -> dict[str, int]:
    return {kind: one.count for kind, one in faults.items() if one.count}


@pytest.fixture(scope="module")
def tables() -> Path:
    return data_file().parent


@pytest.fixture
def rows(tables: Path) -> list[Row]:
    """What an exact run joins."""
    looked_up: dict[str, dict[tuple[Any, ...], Any]] = defaultdict(dict)
    for name, key, column in (
        ("airlines", ("carrier",), "name"),
        ("airports", ("faa",), "name"),
        ("planes", ("tailnum",), "model"),
        ("weather", ("origin", "time_hour"), "temp"),
    ):
        with (tables / f"{name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                looked_up[f"{name}_{column}"][tuple(row[one] for one in key)] = (
                    None if row[column] == "NA" else row[column]
                )
    return [
        {
            **one,
            "airlines_name": looked_up["airlines_name"].get((one["carrier"],)),
            "airports_name": looked_up["airports_name"].get((one["dest"],)),
            "planes_model": looked_up["planes_model"].get((one["tailnum"],)),
            "weather_temp": looked_up["weather_temp"].get((one["origin"], one["time_hour"])),
        }
        for one in departures(COUNT)
    ]


def land(out: Path, *batches: list[Row]) -> None:
    """Write files as Spark's sink does, with its log, and one that no log names."""
    log = out / "landed" / "_spark_metadata"
    log.mkdir(parents=True)
    for number, batch in enumerate(batches):
        pq.write_table(pa.Table.from_pylist(batch), out / "landed" / f"part-{number}.parquet")
        entry = {"path": f"file:///elsewhere/part-{number}.parquet", "action": "add"}
        (log / str(number)).write_text(f"v1\n{json.dumps(entry)}\n")
    pq.write_table(pa.Table.from_pylist(batches[0]), out / "landed" / "part-orphan.parquet")


def test_an_exact_table_has_no_fault(tmp_path: Path, rows: list[Row], tables: Path):
    land(tmp_path, rows[:150], rows[150:])
    assert found(whole_check.check_landed(tmp_path, tables, COUNT)) == {}


def test_what_is_compacted_in_the_log_is_read_once(tmp_path: Path, rows: list[Row], tables: Path):
    land(tmp_path, rows[:100], rows[100:200], rows[200:])
    log = tmp_path / "landed" / "_spark_metadata"
    entries = [(log / str(number)).read_text().splitlines()[1] for number in (0, 1)]
    (log / "1.compact").write_text("\n".join(["v1", *entries]) + "\n")
    assert found(whole_check.check_landed(tmp_path, tables, COUNT)) == {}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda rows: rows.pop(7), {"departures missing": 1}),
        (lambda rows: rows.append(rows[7]), {"departures duplicated or different": 1}),
        (
            lambda rows: rows[7].update(dep_delay=1234),
            {"departures missing": 1, "departures duplicated or different": 1},
        ),
        (lambda rows: rows[7].update(airports_name="Nowhere"), {"joins wrong": 1}),
        (lambda rows: rows[7].update(weather_temp=None), {"joins wrong": 1}),
    ],
)
def test_a_damaged_table_is_found_out(
    tmp_path: Path, rows: list[Row], tables: Path, damage: Callable[[list[Row]], Any], expected: dict[str, int]
):
    damage(rows)
    land(tmp_path, rows)
    assert found(whole_check.check_landed(tmp_path, tables, COUNT)) == expected


@pytest.fixture
def hours() -> list[Row]:
    """What an exact run sums up."""
    late: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in departures(COUNT):
        delays = late[str(one["time_hour"]), str(one["origin"])]
        if one["dep_delay"] is not None:
            delays.append(int(one["dep_delay"]))
    sums = []
    for (hour, origin), delays in late.items():
        start = datetime.fromisoformat(hour)
        mean = sum(delays) / len(delays) if delays else None
        window = {"start": start, "end": start + timedelta(hours=1)}
        sums.append(
            {"hour": window, "origin": origin, "departed": len(delays), "mean": mean, "most": max(delays, default=None)}
        )
    return sums


@pytest.mark.parametrize(
    ("damage", "count"),
    [
        (lambda hours: None, 0),
        (lambda hours: hours.pop(), 1),
        (lambda hours: hours.append(hours[0]), 1),
        (lambda hours: hours[3].update(departed=1000), 1),
        (lambda hours: hours[3].update(mean=hours[3]["mean"] + 0.001), 1),
        (lambda hours: hours[3].update(origin="XXX"), 2),
    ],
)
def test_sums_are_held_against_the_data_set(
    tmp_path: Path, hours: list[Row], damage: Callable[[list[Row]], Any], count: int
):
    damage(hours)
    pq.write_table(pa.Table.from_pylist(hours), tmp_path / "delays")
    assert found(whole_check.check_delays(tmp_path, COUNT)) == ({"hours wrong": count} if count else {})


def alert(departure: dict[str, Any]) -> Record:
    said = "".join(f"<{name}>{departure[name]}</{name}>" for name in whole_check.SAID)
    return Record("urn:sequence", 1, "urn:flights:Late", f"<alert>{said}</alert>".encode(), 0.0)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda alerts: None, {}),
        (lambda alerts: alerts.pop(2), {"alerts missing": 1}),
        (lambda alerts: alerts.append(alerts[2]), {"alerts duplicated or never due": 1}),
        (lambda alerts: alerts.append(alert(dict(next(departures(1))))), {"alerts duplicated or never due": 1}),
    ],
)
def test_alerts_are_held_against_the_late_departures(
    monkeypatch: pytest.MonkeyPatch, damage: Callable[[list[Record]], Any], expected: dict[str, int]
):
    assert verdict_on_alerts(monkeypatch, damage) == expected


def test_alerts_of_one_airline_must_be_in_order(monkeypatch: pytest.MonkeyPatch):
    assert set(verdict_on_alerts(monkeypatch, lambda alerts: alerts.reverse())) == {"alerts out of order"}


def verdict_on_alerts(monkeypatch: pytest.MonkeyPatch, damage: Callable[[list[Record]], Any]) -> dict[str, int]:
    alerts = [alert(dict(one)) for one in whole_check.late_departures(5000)]
    assert len(alerts) > 50
    damage(alerts)
    read = [(one, f"offset {place}") for place, one in enumerate(alerts)]
    monkeypatch.setattr(whole_check, "records_of", lambda service, queue: read)
    return found(whole_check.check_alerts("http://service", "inbox", 5000))
