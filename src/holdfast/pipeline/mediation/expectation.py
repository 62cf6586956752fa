"""The expected rows of a pipeline's test, and their differences from the actual rows.

A line is ``{"sink": NAME, "row": {…}}`` or ``{"dead_letter": {…}}``. The columns that any line of a sink has are
compared in all rows of that sink; a line without one of them expects null. The order of rows is not compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast.exceptions import ConfigurationError, counted
from holdfast.pipeline.mediation.fixtures import json_lines
from holdfast.settings import suggestion

Rows = Mapping[str, list[dict[str, Any]]]
"""Sink -> its rows; under ``""`` the dead letters."""
_FORM = 'write {"sink": "NAME", "row": {"body": "…"}} or {"dead_letter": {"step": "…"}}'
SHOWN = 20
"""Maximum of differences shown for a sink."""
_LONG = 60
"""Maximum of characters shown of differing texts; longer ones are cut around the first difference."""


@dataclass(frozen=True)
class Difference:
    """A missing row, an unexpected row, or two rows that differ in some columns.

    Args:
        sink: The sink; "": the dead letters.
        expected: The missing row, None without one.
        found: The unexpected row, None without one.
    """

    sink: str
    expected: dict[str, Any] | None
    found: dict[str, Any] | None

    @property
    def columns(self) -> list[str]:
        """The columns in which two rows differ."""
        expected, found = self.expected or {}, self.found or {}
        return [one for one in {**expected, **found} if _frozen(expected.get(one)) != _frozen(found.get(one))]


def read_expectation(file: Path, sinks: Iterable[str]) -> Rows:
    """Read the expected rows.

    Args:
        file: The file, a JSON object on each line.
        sinks: The pipeline's.

    Raises:
        ConfigurationError: A line has another form, or names no sink of the pipeline.
    """
    expected: dict[str, list[dict[str, Any]]] = {**{name: [] for name in sinks}, "": []}
    try:
        content = file.read_bytes()
    except OSError as error:
        remedy = "Omit --expect to print the rows, check them, and save them as this file"
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}", remedy=remedy) from None
    for number, line in json_lines(file, content):
        row = line.get("row") if set(line) == {"sink", "row"} else line.get("dead_letter")
        if not isinstance(row, dict) or (len(line) > 1 and "dead_letter" in line):
            raise ConfigurationError(f"{file}:{number}: is not an expected row", remedy=_FORM)
        sink = line.get("sink", "")
        if not isinstance(sink, str) or sink not in expected or ("sink" in line and not sink):
            names = ", ".join(name for name in expected if name) or "none"
            raise ConfigurationError(
                f"{file}:{number}: the pipeline has no sink {json.dumps(sink)}",
                remedy=suggestion(str(sink), filter(None, expected), f"Its sinks are {names}"),
            )
        expected[sink].append(row)
    return expected


def check_columns(expected: Rows, found: Rows, file: str) -> None:
    """Check that the rows of a sink have the columns of the expected ones.

    Raises:
        ConfigurationError: They lack one; suggests the nearest.
    """
    for sink, rows in expected.items():
        known = dict.fromkeys(name for row in found[sink] for name in row)
        wrong = next((name for row in rows for name in row if known and name not in known), None)
        if wrong is not None:
            where = f"the sink {sink}" if sink else "the dead letters"
            raise ConfigurationError(
                f"{file}: the rows of {where} have no column {json.dumps(wrong)}",
                remedy=suggestion(wrong, known, f"Their columns are {', '.join(known)}"),
            )


def lines_of(rows: Rows) -> Iterator[str]:
    """Yield rows in the format of a file of expected rows."""
    for sink, made in rows.items():
        for row in made:
            line = {"sink": sink, "row": row} if sink else {"dead_letter": row}
            yield exact_text(line)


def differences(expected: Rows, found: Rows) -> list[Difference]:
    """Compare the rows of every sink; a missing row and the most similar unexpected row count as one difference."""
    return [one for sink in found for one in _of_a_sink(sink, expected.get(sink, []), found[sink])]


def _of_a_sink(sink: str, expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> Iterator[Difference]:
    names = dict.fromkeys(name for row in expected for name in row)
    if expected:
        found = [{name: row.get(name) for name in names} for row in found]
    missing, more = _without(expected, found), _without(found, expected)
    for row in missing:
        same = [len(names) - len(Difference(sink, row, one).columns) for one in more[:SHOWN]]
        is_alike = max(same, default=0) > 0 or (len(names) == 1 and bool(more))
        yield Difference(sink, row, more.pop(same.index(max(same))) if is_alike else None)
    for row in more:
        yield Difference(sink, None, row)


def _without(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that are not in ``others``, or more often than there."""
    left = Counter(map(_frozen, others))
    kept = []
    for row in rows:
        key = _frozen(row)
        left[key] -= 1
        if left[key] < 0:
            kept.append(row)
    return kept


def _frozen(value: Any) -> Hashable:
    """Return a JSON value that can be compared and counted; a key with null equals a missing one."""
    if isinstance(value, dict):
        return frozenset((name, _frozen(one)) for name, one in value.items() if one is not None)
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return ("bool", value) if isinstance(value, bool) else value


def as_json(found: Rows, differing: list[Difference]) -> str:
    rows = {sink or "dead_letters": len(made) for sink, made in found.items()}
    told = [{"sink": one.sink or None, "expected": one.expected, "found": one.found} for one in differing]
    return exact_text({"rows": rows, "differences": told})


def report(found: Rows, differing: list[Difference]) -> Iterator[str]:
    """Yield the differences as text, for people: for each sink their number, then the rows."""
    for sink, rows in found.items():
        own = [one for one in differing if one.sink == sink]
        name = f"sink {sink}" if sink else "dead letters"
        if not own:
            yield f"{name}: {counted(len(rows), 'row')} as expected"
            continue
        yield f"{name}: {counted(len(own), 'difference')} in {counted(len(rows), 'row')}"
        for one in own[:SHOWN]:
            yield from _shown(one)
        if len(own) > SHOWN:
            yield f"  … and {len(own) - SHOWN} more"


def _shown(one: Difference) -> Iterator[str]:
    if one.found is None:
        yield f"  missing:    {exact_text(one.expected)}"
    elif one.expected is None:
        yield f"  unexpected: {exact_text(one.found)}"
    else:
        differing = one.columns
        same = {name: value for name, value in one.expected.items() if name not in differing}
        yield f"  a row differs{f': {exact_text(same)}' if same else ''}"
        for name in differing:
            expected, found = _apart(one.expected.get(name), one.found.get(name))
            yield f"    {name} expected: {expected}"
            yield f"    {name} found:    {found}"


def _apart(expected: Any, found: Any) -> tuple[str, str]:
    """Return two values as texts; long ones from shortly before the first difference."""
    one, other = exact_text(expected), exact_text(found)
    if max(len(one), len(other)) <= _LONG:
        return one, other
    at = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    since = max(0, at - _LONG // 3)
    cut = [text[since : since + 2 * _LONG] + ("…" if len(text) > since + 2 * _LONG else "") for text in (one, other)]
    return ("…" if since else "") + cut[0], ("…" if since else "") + cut[1]


def exact_text(value: Any) -> str:
    """Return a value as JSON, with the digits of each Decimal."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {exact_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(exact_text, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
