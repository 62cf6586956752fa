"""What a task does with XML, without Spark: every row comes out, with its values or the reasons why not.

Covers pipeline/mediation/transformations/parsing.py and pipeline/mediation/transformations/problems.py.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, IntegerType, StringType, StructField, StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.transformations.parsing import _Parser, parse_json, parse_xml
from holdfast.pipeline.mediation.transformations.problems import PROBLEMS, _Worker, check_column
from holdfast.pipeline.mediation.transformations.xsd import XSD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[3] / "examples" / "mediation" / "order.xsd"
ORDER = (
    "<order xmlns='urn:example:orders' id='{}'><customer>c</customer><amount currency='EUR'>{}</amount>"
    "<line><article>a</article><pieces>1</pieces></line></order>"
)
NUMBERS = StructType([StructField("n", IntegerType()), StructField("price", DecimalType(4, 1))])


def looked(parser: _Parser, *bodies: str | None, before: list[list[str]] | None = None) -> list[tuple[Any, list[str]]]:
    into = "p" if parser.fields.fields else ""
    told = pa.array(before or [[] for _ in bodies], pa.list_(pa.string()))
    batch = pa.record_batch({"body": pa.array(bodies, pa.string()), "n": range(len(bodies)), PROBLEMS: told})
    (made,) = _Worker(["body", "n"], "body", into, parser.fields, parser)(iter([batch]))
    assert made.column("n").to_pylist() == [*range(len(bodies))]
    values = made.column("p").to_pylist() if into else [None for _ in bodies]
    return list(zip(values, made.column(PROBLEMS).to_pylist(), strict=True))


def parser(fields: StructType = NUMBERS, element: str = "", xsd: XSD | None = None, most: int = 1_000) -> _Parser:
    return _Parser(fields, element, xsd, (), most)


def test_each_row_has_its_values_or_the_reasons_and_keeps_those_it_had() -> None:
    found = looked(
        parser(),
        *(f"<o><n>{number}</n><price>1.5</price></o>" for number in range(6)),
        "<o><n>x</n><price>1</price></o>",
        None,
        "<o",
        before=[["earlier"], *[[] for _ in range(8)]],
    )
    assert [row[0]["n"] for row in found[:6]] == [*range(6)]
    assert [row[1] for row in found] == [
        ["earlier"],
        *[[] for _ in range(5)],
        ["n: 'x' is not an integer"],
        ["there is no XML: the column is null"],
        [found[-1][1][0]],
    ]
    assert found[-1][1][0].startswith("not well-formed")


def test_an_xsd_reports_each_breach_with_its_line_and_checks_the_element() -> None:
    xsd = XSD.read(EXAMPLE)
    fields = xsd.columns("order")
    name = xsd.element("order")
    good, bad, other, breach = looked(
        parser(fields, name, xsd),
        ORDER.format(1, "1.50"),
        ORDER.format(2, "1.555"),
        "<confirmation xmlns='urn:example:orders' order='1'><customer>c</customer><amount>1</amount>"
        "<pieces>1</pieces></confirmation>",
        "<order xmlns='urn:example:orders' id='1'>\n<amount currency='EUR'>1</amount></order>",
    )
    assert good[1] == []
    assert bad[1][0] == "amount.value: '1.555' is not a decimal(12,2)"
    assert bad[1][1].startswith("line 1: Element '{urn:example:orders}amount': [facet 'fractionDigits']")
    assert other[1] == ["is <{urn:example:orders}confirmation>, not <{urn:example:orders}order>"]
    assert breach[1][0].startswith("line 2: Element '{urn:example:orders}amount': This element is not expected")
    assert looked(parser(fields, name), ORDER.format(1, "1.50"))[0][1] == []


def test_without_fields_xml_is_only_held_against_what_it_must_be() -> None:
    found = looked(parser(StructType(), "", XSD.read(EXAMPLE)), ORDER.format(1, 2), "<a", "<!DOCTYPE a []><a/>", "<a/>")
    assert [len(reasons) for _, reasons in found] == [0, 1, 1, 1]
    assert found[2][1] == ["has a DOCTYPE, which SOAP does not allow"]


def test_what_entities_would_expand_to_is_never_looked_at() -> None:
    laughs = "<!DOCTYPE o [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;'>]><o><n>&b;</n></o>"
    external = "<!DOCTYPE o SYSTEM 'http://127.0.0.1:9/o.dtd'><o><n>1</n></o>"
    for reasons in (row[1] for row in looked(parser(element="o"), laughs, external)):
        assert reasons == ["has a DOCTYPE, which SOAP does not allow"]


def test_xml_with_too_many_elements_is_not_read() -> None:
    ((_, reasons),) = looked(parser(element="o", most=3), "<o><n>1</n><n>2</n><n>3</n></o>")
    assert reasons == ["has more than 3 elements"]


class Rows:
    """As much of a DataFrame as is looked at."""

    schema = StructType([StructField("n", IntegerType()), StructField("t", StringType())])
    columns: tuple[str, ...] = ("n", "t")


@pytest.mark.parametrize(("name", "what"), [("body", "the rows have no column 'body'"), ("n", "n is int, not text")])
def test_a_column_that_cannot_hold_xml_is_refused(name: str, what: str) -> None:
    check_column(Rows(), "T")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=what):
        check_column(Rows(), name)  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "content"),
    [
        ("n INT NOT NULL", ("<n>1</n>", "<n>x</n>")),
        ("s STRUCT<n: INT NOT NULL> NOT NULL", ("<s><n>1</n></s>", "<s><n>x</n></s>")),
        ("l ARRAY<STRUCT<n: INT NOT NULL>> NOT NULL", ("<l><n>1</n></l>", "<l><n>x</n></l>")),
    ],
)
def test_what_a_schema_demands_and_a_row_lacks_is_a_problem_of_that_row(
    spark: SparkSession, schema: str, content: tuple[str, str]
) -> None:
    good, bad = (f"<o>{one}</o>" for one in content)
    rows = spark.createDataFrame([(text,) for text in (good, bad, "<o/>", "<o", None)], "body STRING")
    problems = [row["problems"] for row in parse_xml(rows, schema=schema, into="p").collect()]
    assert [bool(told) for told in problems] == [False, True, True, True, True], problems


@pytest.mark.spark
def test_json_is_read_by_a_schema_and_what_does_not_fit_is_a_problem(spark: SparkSession) -> None:
    schema = "id BIGINT, amount DECIMAL(10,2), lines ARRAY<STRING>"
    fits = {'{"id": 1, "amount": 2.50, "lines": ["a"]}': (1, Decimal("2.50"), ["a"]), '{"x": 0}': (None, None, None)}
    wrong = ['{"id": "x"}', '{"id": 9223372036854775808}', '{"lines": {}}']
    broken = ["", "{", '{"id": 1} and more', "<a/>", '{"id": NaN}', "[" * 100_000]
    others = ["[1]", "5", "null", '[{"id": 1}, {"id": 2}]']
    rows = spark.createDataFrame([(text,) for text in [*fits, *wrong, *broken, *others, None]], "body STRING")
    for row in parse_json(rows, schema, into="o").collect():
        text, told = row["body"], row["problems"]
        if text in fits:
            assert (tuple(row["o"]), told) == (fits[text], [])
            continue
        assert row["o"] is None, text
        assert len(told) == 1
        if text is None:
            assert told == ["there is no JSON: the column is null"]
        elif text in broken:
            assert told[0].startswith("is not JSON: "), text
        elif text in others:
            assert told == ["is JSON, but not an object"]
        else:
            assert told[0].startswith("does not fit struct<id:bigint"), text
