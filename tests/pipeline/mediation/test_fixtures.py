"""Local files as a pipeline's messages: which file is whose, and what a row of it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.file import Pipeline, read_pipeline
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SourcePlan
from holdfast.pipeline.mediation.execution.samples import made_of
from holdfast.pipeline.mediation.expectation import differences, read_expectation, report
from holdfast.pipeline.mediation.fixtures import _columns, _messages, _row, message_files, messages_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[3] / "examples" / "mediation" / "orders.toml"
QUEUE = SourcePlan("orders", broker="http://127.0.0.1:1", queue=("orders",))
_REQUIRED = [name for name, _, nullable in _columns(QUEUE) if not nullable]
TOPIC = SourcePlan("orders", kafka="127.0.0.1:1", topic=("orders",))


def plan_of(*sources: str) -> PipelinePlan:
    return PipelinePlan("p", "/c", sources=tuple(SourcePlan(one, broker="http://127.0.0.1:1") for one in sources))


def rows(source: SourcePlan, *files: Path) -> list[dict[str, Any]]:
    columns = _columns(source)
    given = [one for file in files for one in _messages(file, columns, is_kafka=source.kafka is not None)]
    return [_row(number, one, columns, source) for number, one in enumerate(given)]


def test_files_are_told_apart_by_the_names_of_their_sources(tmp_path: Path) -> None:
    for name in ("b.xml", "a.xml", "c=d.xml"):
        (tmp_path / name).write_text("<a/>")
    a, b, odd = tmp_path / "a.xml", tmp_path / "b.xml", tmp_path / "c=d.xml"
    assert message_files([str(odd), str(b), f"{tmp_path}/[ab].xml"], plan_of("one")) == {"one": [odd, b, a, b]}
    two = plan_of("one", "two", "three")
    assert message_files([f"two={tmp_path}/?.xml", f"one={odd}"], two) == {"one": [odd], "two": [a, b], "three": []}
    with pytest.raises(ConfigurationError, match=r"names no source, but the pipeline has 3\s+Write one="):
        message_files([str(a)], two)
    with pytest.raises(
        ConfigurationError, match=r"the pipeline has no source 'oen'\s+Name a file with messages, or write one="
    ):
        message_files([f"oen={a}"], plan_of("one"))
    with pytest.raises(ConfigurationError, match="the file"):
        message_files([f"{tmp_path}/*.json"], two.__class__("p", "/c", sources=two.sources[:1]))


def test_a_file_is_a_body_without_its_declaration_even_if_it_is_no_xml(tmp_path: Path) -> None:
    latin, broken = tmp_path / "latin.xml", tmp_path / "broken.xml"
    latin.write_bytes('<?xml version="1.0" encoding="ISO-8859-1"?>\n<a>é</a>\n'.encode("latin-1"))
    broken.write_bytes(b"<a")
    first, second = rows(QUEUE, latin, broken)
    assert (first["body"], first["message_id"], first["offset"], first["queue"]) == (
        "<a>é</a>",
        "latin.xml",
        0,
        "orders",
    )
    assert (second["body"], second["offset"], second["message_number"]) == ("<a", 1, 2)
    assert (second["delivered_at"] - first["delivered_at"]).total_seconds() == 1


def test_a_soap_envelope_is_refused_as_a_body(tmp_path: Path) -> None:
    file = tmp_path / "1.xml"
    file.write_text('<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body/></s:Envelope>')
    with pytest.raises(ConfigurationError, match="contains a SOAP envelope"):
        rows(QUEUE, file)


def test_a_line_of_json_gives_any_column_of_its_source(tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    lines = [{"body": "<a/>", "action": "urn:x", "delivered_at": "2026-07-01T09:30:00"}, {"body": "b", "offset": 7}]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    first, second = rows(QUEUE, file)
    assert (first["action"], first["delivered_at"].isoformat()) == ("urn:x", "2026-07-01T09:30:00+00:00")
    assert (second["offset"], second["message_id"]) == (7, "more.jsonl:3")
    file.write_text(json.dumps({"body": "{}", "key": "k", "headers": {"tenant": "t"}}))
    (topic,) = rows(TOPIC, file)
    assert (topic["key"], topic["headers"], topic["queue"]) == ("k", {"tenant": "t"}, "orders")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"bodi": ""}, "more.jsonl:1: its source has no column 'bodi'"),
        ({"offset": "1"}, 'more.jsonl:1: offset is "1", not a long'),
        ({"offset": True}, "more.jsonl:1: offset is true, not a long"),
        ({"delivered_at": "noon"}, "more.jsonl:1: delivered_at is 'noon', not a time"),
        ({"body": 7}, "more.jsonl:1: body is 7, not a string"),
        ({"body": "\ud800"}, 'more.jsonl:1: body is "\\ud800", not a string'),
        ({"offset": 2**63}, "more.jsonl:1: offset is 9223372036854775808, not a long"),
        ({"partition": -(2**31) - 1}, "more.jsonl:1: partition is -2147483649, not an integer"),
        ({"offset": 1.5}, "more.jsonl:1: offset is "),
        *[({name: None}, f"more.jsonl:1: {name} is null, but every message has one") for name in _REQUIRED],
    ],
)
def test_a_line_that_is_no_message_is_named(line: dict[str, Any], told: str, tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text(json.dumps(line))
    with pytest.raises(ConfigurationError) as wrong:
        rows(QUEUE, file)
    assert told in str(wrong.value)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_rows_of_the_example_are_those_of_its_file_without_a_broker(spark: SparkSession, tmp_path: Path) -> None:
    work = tmp_path / "work"
    plan = read_pipeline(EXAMPLE, {"broker": "http://127.0.0.1:1", "work": str(work)})
    files = message_files([f"{EXAMPLE.parent}/messages/*.xml"], plan)
    expected = read_expectation(EXAMPLE.parent / "rows.jsonl", [sink.name for sink in plan.sinks])
    made = made_of(
        spark, plan, lambda session, source: rows_of(session, source, messages_of(source, files[source.name]))
    )
    assert list(report(made, differences(expected, made))) == [
        "sink first: 2 rows as expected",
        "sink others: 1 row as expected",
        "dead letters: 2 rows as expected",
    ]
    assert not work.exists()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_rows_of_topics_and_of_inferred_fields_come_from_files_alone(spark: SparkSession, tmp_path: Path) -> None:
    messages = tmp_path / "messages.jsonl"
    line = {"body": "<o><n>7</n></o>", "key": "k", "headers": {"tenant": "t"}}
    messages.write_text(json.dumps(line))
    made = Pipeline()
    made.settings(name="p", checkpoint=str(tmp_path / "checkpoint"))
    made.source("orders", kafka="127.0.0.1:1", topic="orders")
    made.step("read", parse={"infer": 10}, input="orders")
    made.sink("out", kafka="127.0.0.1:1", topic="out", key="key", headers="map('n', parsed.n)")
    made.route("read", "out")
    made.dead_letters(table=str(tmp_path / "dead"))
    plan = made.plan()
    found = made_of(spark, plan, lambda session, source: rows_of(session, source, messages_of(source, [messages])))
    assert found[""] == []
    (row,) = found["out"]
    assert (row["key"], row["body"], row["headers"]["n"]) == ("k", "<o><n>7</n></o>", "7")
    assert not (tmp_path / "checkpoint").exists()
