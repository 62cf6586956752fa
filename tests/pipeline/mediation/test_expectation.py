"""Expected rows against those that were made: what is compared, and how a difference reads. No Spark."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.expectation import (
    as_json,
    check_columns,
    differences,
    lines_of,
    read_expectation,
    report,
)


def written(tmp_path: Path, *lines: Any) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return file


def test_rows_are_compared_by_the_columns_that_their_sinks_lines_have_in_any_order(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {"sink": "a", "row": {"id": 2, "amount": 7.5}},
        {"sink": "a", "row": {"id": 1}},
        {"dead_letter": {"step": "read"}},
    )
    expected = read_expectation(file, ["a", "b"])
    first = {"id": 1, "amount": None, "more": "x"}
    found: dict[str, list[dict[str, Any]]] = {
        "a": [first, {"id": 2, "amount": Decimal("7.50"), "more": "y"}],
        "b": [],
        "": [{"step": "read", "offset": 4}],
    }
    assert differences(expected, found) == []
    found["a"][0] = {**first, "amount": 0}
    (one,) = differences(expected, found)
    assert (one.sink, one.columns) == ("a", ["amount"])


def test_a_row_is_expected_as_often_as_it_has_a_line() -> None:
    row = {"id": 1}
    assert [one.found for one in differences({"a": [row]}, {"a": [row, row]})] == [row]
    assert [one.expected for one in differences({"a": [row, row]}, {"a": [row]})] == [row]
    assert differences({"a": [{"id": True}]}, {"a": [{"id": 1}]}) != []


def test_a_sink_without_a_line_has_no_rows() -> None:
    (one,) = differences({}, {"a": [{"id": 1}]})
    assert (one.expected, one.found) == (None, {"id": 1})


def test_a_report_shows_of_long_texts_what_differs_and_counts_what_it_leaves_out() -> None:
    long = "<order>" + "x" * 500 + "<amount>{}</amount>" + "y" * 500
    expected = {"a": [{"id": 1, "body": long.format(5)}], "b": [], "": []}
    found: dict[str, list[dict[str, Any]]] = {
        "a": [{"id": 1, "body": long.format(6)}],
        "b": [{"id": number} for number in range(25)],
        "": [],
    }
    lines = list(report(found, differences(expected, found)))
    assert lines[:2] == ["sink a: 1 difference in 1 row", '  a row differs: {"id": 1}']
    assert "<amount>5<" in lines[2]
    assert "<amount>6<" in lines[3]
    assert max(map(len, lines)) < 200
    assert lines[4:6] == ["sink b: 25 differences in 25 rows", '  unexpected: {"id": 0}']
    assert lines[-2:] == ["  … and 5 more", "dead letters: 0 rows as expected"]
    told = json.loads(as_json(found, differences(expected, found)))
    assert told["rows"] == {"a": 1, "b": 25, "dead_letters": 0}
    assert len(told["differences"]) == 26


def test_rows_that_are_printed_are_expected_as_they_are(tmp_path: Path) -> None:
    made: dict[str, list[dict[str, Any]]] = {
        "a": [{"id": 1, "amount": Decimal("12345678901234567.89"), "all": [Decimal("1.10"), None]}],
        "": [{"step": "read", "reasons": ["it is «no» XML"]}],
    }
    file = written(tmp_path, *lines_of(made))
    assert '"amount": 12345678901234567.89' in file.read_text()
    assert differences(read_expectation(file, ["a"]), made) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "rows.jsonl:2: is not JSON"),
        ("[]", "rows.jsonl:2: is not a JSON object"),
        ({"id": 1}, "rows.jsonl:2: is not an expected row"),
        ({"sink": "a", "row": {}, "dead_letter": {}}, "rows.jsonl:2: is not an expected row"),
        ({"sink": "c", "row": {}}, 'rows.jsonl:2: the pipeline has no sink "c"; Its sinks are a, b'),
        ({"sink": "", "row": {}}, 'rows.jsonl:2: the pipeline has no sink ""'),
        ({"sink": ["a"], "row": {}}, 'rows.jsonl:2: the pipeline has no sink ["a"]'),
    ],
)
def test_a_line_that_is_no_expected_row_is_named(line: Any, told: str, tmp_path: Path) -> None:
    file = written(tmp_path, {"sink": "a", "row": {}}, line)
    with pytest.raises(ConfigurationError) as wrong:
        read_expectation(file, ["a", "b"])
    assert told in str(wrong.value).replace("\n  ", "; ")


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Omit --expect"):
        read_expectation(tmp_path / "rows.jsonl", ["a"])


def test_an_expected_column_that_no_row_of_the_sink_has_is_a_mistake() -> None:
    found: dict[str, Any] = {"a": [{"total": 1}, {"total": None}], "b": [], "": []}
    with pytest.raises(ConfigurationError, match='the rows of the sink a have no column "totl"') as caught:
        check_columns({"a": [{"totl": 1}], "b": [], "": []}, found, "x.jsonl")
    assert "'total'" in caught.value.remedy
    check_columns({"a": [{"total": 2}], "b": [{"any": 1}], "": []}, found, "x.jsonl")  # b has no rows, so no columns
