"""The command, and its report.

Covers pipeline/jobs/reassemble.py and pipeline/reassembly/report.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from captured import Captured, wild_capture
from click.testing import CliRunner
from lxml import html

from holdfast.core.messages import Envelope, Sequence
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.pipeline.jobs.reassemble import _figures, _reassemble, reassemble_command
from holdfast.pipeline.reassembly.report import MOST_RANGES, as_html, in_a_sentence, report
from holdfast.pipeline.reassembly.rows import MESSAGES, UNPLACED
from holdfast.pipeline.reassembly.tables import SEQUENCES, Reassembled
from holdfast.wire.encoding.envelopes import encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def message(number: int, body: str = "<x/>") -> bytes:
    envelope = Envelope(SOAP.V1_1, Addressing.V2005_08, RM.V1_1, action="urn:<put>", to="http://x/")
    envelope.sequence, envelope.body = Sequence("urn:s", number), body.encode()
    return encode(envelope)


def arguments(*capture: Path, **given: Any) -> dict[str, Any]:
    return {"capture": [str(path) for path in capture], "column": None, "report": None, **given}


@pytest.mark.spark
def test_files_are_put_together_and_what_is_wrong_is_said(
    as_json: None, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captured = tmp_path / "captured" / "deeper"
    captured.mkdir(parents=True)
    for number in (1, 2, 4):
        (captured / f"{number}.xml").write_bytes(message(number))
    (captured / "again.xml").write_bytes(message(2))
    (captured / "other.xml").write_bytes(message(4, "<y/>"))
    (captured / "broken.xml").write_bytes(b"<x")
    out, file = str(tmp_path / "out"), tmp_path / "gaps.json"
    done = _reassemble(spark, arguments(tmp_path / "captured", out=out))
    found = _figures(done, file)
    assert found == "Sequences incomplete: 1; numbers missing: 1; unreadable: 1; conflict: 1."
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    steps = [line.get("done") or line["event"] for line in lines]
    assert steps == ["decoded", "sequences", "messages", "unplaced", "not read", "not read", "end"]
    assert [(line["why"], line["kind"], line["count"], line["files"]) for line in lines[4:6]] == [
        ("conflict", "xml", 1, 1),
        ("unreadable", "xml", 1, 1),
    ]
    assert lines[0]["messages"] == 5
    gathered = json.loads(file.read_text(encoding="utf-8"))
    assert gathered["figures"] == {key: value for key, value in lines[-1].items() if key != "event"}
    (row,) = gathered["sequences"]
    assert (row["missing"], row["duplicates"], row["conflicts"]) == ([[3, 3]], 1, [4])
    assert {(one["why"], Path(one["source"]).name) for one in gathered["unplaced"]} == {
        ("unreadable", "broken.xml"),
        ("conflict", "other.xml"),
    }
    page = as_html(report(done))
    assert "urn:s" in page and "broken.xml" in page and "1-2 4" in page
    told = html.document_fromstring(page)
    (link,) = told.xpath("//a")  # of the conflict
    assert link.text == "urn:s"
    assert told.get_element_by_id(link.get("href")[1:]).xpath("td[1]")[0].text_content() == "urn:s"


@pytest.mark.nightly
@pytest.mark.spark
def test_unreadable_files_are_grouped_by_reason_and_kind_by_frequency(spark: SparkSession, tmp_path: Path) -> None:
    """However many there are, and though each has bytes and places of its own."""
    captured = tmp_path / "captured"
    captured.mkdir()
    har = {"entries": [{"request": {"postData": {"text": message(1).decode()}}, "response": {}}]}
    (captured / "1.har").write_text(json.dumps({"log": har}))
    for number in range(3):
        head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (900 + number)
        (captured / f"{number}.http").write_bytes(head + b"x" * (5 + number))
        (captured / f"{number}.pcap").write_bytes(b"\xd4\xc3\xb2\xa1" + bytes([number + 1]) * 9)
    (captured / "other.log").write_bytes(b"POST / HTTP/1.1\r\nContent-Length: 700\r\n\r\nx")
    gathered = report(_reassemble(spark, arguments(captured, out=str(tmp_path / "out"))))
    found = [(group["count"], group["kind"], group["problem"].partition(" (")[0]) for group in gathered.groups]
    cut_off = "cut off: … of the … bytes of this HTTP message"
    assert found == [(3, "http", cut_off), (3, "pcap", "a packet capture"), (1, "log", cut_off)]
    assert gathered.figures.messages == 1
    page = as_html(gathered)
    assert page.index("a packet capture") < page.index("urn:s")


@pytest.mark.nightly
@pytest.mark.spark
def test_a_column_of_parquet_is_put_together_and_a_whole_one_says_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(message(number), "topic", number) for number in (2, 1, 2)]
    spark.createDataFrame(rows, "value BINARY, source STRING, position INT").write.parquet(str(tmp_path / "topic"))
    done = _reassemble(spark, arguments(tmp_path / "topic", out=str(tmp_path / "out"), column="value"))
    assert _figures(done, None) == ""
    assert [row["position"] for row in done.messages.orderBy("message_number").collect()] == [1, 2]


@pytest.mark.spark
def test_a_report_shows_the_worst_first_and_not_more_than_its_limits(spark: SparkSession) -> None:
    many = [(lower, lower) for lower in range(1, 4 * MOST_RANGES, 2)]

    def row(sequence: str, state: str, missing: list[tuple[int, int]]) -> tuple[Any, ...]:
        standing = ("1.1", state, "", None, None, 1, [(1, 1)], missing, [], [], [], 1, 1, 0, [], 0, True, [])
        return (sequence, *standing, None, None)

    rows = [row("urn:a", "tail unknown", []), row("urn:<b>", "incomplete", many)]
    empty = (spark.createDataFrame([], schema) for schema in (MESSAGES, UNPLACED))
    messages, unplaced = empty
    gathered = report(Reassembled(messages, spark.createDataFrame(rows, SEQUENCES), unplaced))
    assert [one["sequence"] for one in gathered.sequences] == ["urn:<b>", "urn:a"]
    assert gathered.figures.missing == len(many)
    page = as_html(gathered)
    assert f"and {len(many) - MOST_RANGES} more ranges" in page
    assert "urn:&lt;b&gt;" in page and "<b>" not in page
    assert "Sequences incomplete: 1;" in in_a_sentence(gathered.figures)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--out", "x"], "Missing argument 'CAPTURE...'"),
        (["here"], "Missing option '--out'"),
        (["here", "--out", "x", "--report", "gaps.txt"], ".json or .html, not '.txt'"),
        (["here", "--out", "x", "--timeout", "5"], "--timeout has no effect without --stream: omit it."),
        (["here", "--out", "x", "--available-now"], "--available-now has no effect without --stream: omit it."),
        (["here", "--out", "x", "--stream"], "--stream needs a --checkpoint"),
        (["a", "b", "--out", "x", "--stream", "--checkpoint", "c"], "--stream needs exactly one CAPTURE"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(given: list[str], told: str) -> None:
    result = CliRunner().invoke(reassemble_command, given)
    assert result.exit_code == 2 and told in result.output


def test_the_wild_capture_is_wild() -> None:
    """What the tests stand on: each seed has losses, repeats, conflicts, rubbish, and more than one version."""
    capture: list[Captured] = [one for seed in range(10) for one in wild_capture(seed)]
    assert {one.why for one in capture} == {"", "plain", "unreadable"}
    assert {one.key[1] for one in capture if one.key} >= {"1.0", "1.1"}
    assert any(one.marker for one in capture) and any(one.ended == "terminated" for one in capture)


def test_a_capture_that_is_not_there_is_told_before_spark_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(reassemble_command, [str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "the capture" in str(result.exception)
