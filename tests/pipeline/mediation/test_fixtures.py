"""Local files as a pipeline's messages: which file is whose, and what a row of it has."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.cli.running.message_files import KEYS, OF_RECEIVED, UNSENT, MessageFiles
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.file import Pipeline, read_pipeline
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SourcePlan
from holdfast.pipeline.mediation.execution.samples import made_of
from holdfast.pipeline.mediation.expectation import differences, read_expectation, report
from holdfast.pipeline.mediation.fixtures import (
    SEQUENCE,
    _columns,
    _rows,
    message_files,
    messages_of,
    rows_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[3] / "examples" / "mediation" / "orders.toml"
QUEUE = SourcePlan("orders", broker="http://127.0.0.1:1", queue=("orders",))
_REQUIRED = [name for name, _, nullable in _columns(QUEUE) if not nullable]
TOPIC = SourcePlan("orders", kafka="127.0.0.1:1", topic=("orders",))


def plan_of(*sources: str) -> PipelinePlan:
    return PipelinePlan("p", "/c", sources=tuple(SourcePlan(one, broker="http://127.0.0.1:1") for one in sources))


def rows(source: SourcePlan, *files: Path) -> list[dict[str, Any]]:
    return _rows(source, messages_of(source, files))


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


def test_a_line_that_the_command_send_reads_is_a_message_too(tmp_path: Path) -> None:
    """The messages of one key are in one Sequence, and the others in another one."""
    file = tmp_path / "sent.jsonl"
    whole = {"body": "<a/>", "action": "urn:x", "key": "a", "message_id": "urn:1", "attachments": [{"base64": ""}]}
    assert set(whole) == set(KEYS)
    lines = [whole, {"body": "<b/>"}, *({"body": "c", "key": key} for key in ("b", "a", ""))]
    found = rows(QUEUE, _written(file, *lines))
    sequences = [one["sequence"] for one in found]
    assert [one["message_number"] for one in found] == [1, 1, 1, 2, 2]
    assert sequences[0] == sequences[3] and sequences[1] == sequences[4] == SEQUENCE and len(set(sequences)) == 3
    assert (found[0]["message_id"], found[0]["action"]) == ("urn:1", "urn:x")
    assert [one["sequence"] for one in rows(QUEUE, file)] == sequences, "the same in every run"
    letters = SourcePlan("dead", broker="http://127.0.0.1:1", queue=("orders",), options={"read": "letters"})
    with pytest.raises(ConfigurationError, match="no column 'key'"):
        messages_of(letters, [file])


def test_the_command_send_reads_the_columns_of_a_source(tmp_path: Path) -> None:
    """It refuses only those that would be lost, if they have a value."""
    columns = {name for name, *_ in _columns(QUEUE)}
    assert columns <= {*KEYS, *OF_RECEIVED, *UNSENT}
    file = tmp_path / "received.jsonl"
    (row,) = rows(QUEUE, _written(file, {"body": "<a/>", "action": "urn:x", "received_at": 946684800.5}))
    assert row["received_at"] == row["delivered_at"] + timedelta(seconds=0.5)
    _written(file, row | {"received_at": 946684800.5, "delivered_at": "2000-01-01T00:00:00Z", "message_id": None})
    (sent,) = MessageFiles((str(file),), True, "urn:other", "usual", None, False)
    assert (sent.body, sent.action, sent.key, sent.message_id) == ("<a/>", "urn:x", "usual", None)
    for name in UNSENT:
        _written(file, {"body": "<a/>", name: "x"})
        with pytest.raises(ConfigurationError, match=f"line 1 is not a message: the command does not send its {name}"):
            list(MessageFiles((str(file),), True, "urn:other", "", None, False))


def _written(file: Path, *lines: dict[str, Any]) -> Path:
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"received_at": 1e300}, "received_at is 1E+300, not a time"),
        ({"key": 7}, "more.jsonl:1: key is 7, not a string"),
        ({"attachments": {}}, "its source has no column 'attachments'"),
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
