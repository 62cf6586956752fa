"""What tasks stage and what the driver publishes, against a small server, without Spark.

Covers pipeline/writer/rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_server import FakeServer
from fake_sinks import FIELDS, decode_rows
from hive_dataset import dataset_of
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from sink_steps import Died, Query, attempt, bodies, failures, schema

from holdfast.client.data_plane import Patience
from holdfast.client.errors import BatchRefused, ServerAway, SinkBound, WriteRefused
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.source import WsrmDataSource
from holdfast.pipeline.writer import rows as rows_room
from holdfast.pipeline.writer.client import Batch
from holdfast.pipeline.writer.rows import Part, RowEncoder
from holdfast.pipeline.writer.sink import TaskWriter, WsrmWriter, planned


def test_rows_are_published_in_the_order_of_tasks_and_then_of_rows(server: FakeServer) -> None:
    Query(server).run(0, bodies("a", "b", "c", "d"), bodies(), bodies("e"))
    sink = server.sinks["q1"]
    assert sink.bodies == ["<a/>", "<b/>", "<c/>", "<d/>", "<e/>"]
    assert sink.rows[0] == {
        "key": None, "queue": "out", "to": None, "action": "urn:a", "headers": None, "body": b"<a/>",
        "message_id": None, "relates_to": None, "reply_to": None,
    }  # fmt: skip


def test_a_batch_without_rows_is_published_so_that_the_next_one_follows_it(server: FakeServer) -> None:
    query = Query(server)
    query.run(0, bodies("a"))
    query.run(1, bodies())
    query.run(2, bodies("b"))
    assert server.sinks["q1"].bodies == ["<a/>", "<b/>"]


def test_a_batch_that_a_task_was_told_is_published_is_not_published_without_its_rows(server: FakeServer) -> None:
    """Another driver of the checkpoint publishes between two tasks of this one; then the store is put back."""
    ours, other = Query(server), Query(server)
    ours.run(0, bodies("a"))
    staged = [ours.task(1, 0, bodies("b"))]
    before = deepcopy(server.sinks["q1"])
    other.run(1, bodies("b"), bodies("c"))
    staged.append(ours.task(1, 1, bodies("c")))
    server.sinks.sinks["q1"] = before
    ours.writer("body").commit(list(staged), 1)
    assert server.sinks["q1"].bodies == ["<a/>"]
    with pytest.raises(BatchRefused):
        ours.run(2, bodies("d"))  # so it is seen what the store lacks


def test_rows_staged_by_a_failed_task_are_discarded_even_after_a_lost_answer(server: FakeServer) -> None:
    faults = ["after"]
    server.on_sink = lambda request: faults.pop() if faults and "/parts" in request else None
    with pytest.raises(ServerAway):
        Query(server).task(0, 0, bodies("a"))
    assert len(server.sinks.tokens) == 1
    assert not server.sinks["q1"].staged


def test_a_commit_without_messages_asks_nobody(server: FakeServer) -> None:
    Query(server).writer("body").commit([], 0)
    Query(server).writer("body").commit([None], 0)
    assert server.requests == []


def test_a_repeated_batch_sends_nothing_and_its_rows_are_read_to_their_end(server: FakeServer) -> None:
    query = Query(server)
    query.run(0, bodies("a", "b"))
    staged = query.task(0, 0, bodies("a", "b"))
    assert (staged.already, staged.tokens) == (True, ())
    query.writer("body").commit([staged], 0)
    assert server.sinks["q1"].bodies == ["<a/>", "<b/>"]


def test_a_large_task_goes_out_in_parts(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_room, "PART_BYTES", 100)
    staged = Query(server).task(0, 0, bodies(*range(20)))
    assert len(staged.tokens) == 7
    Query(server).writer("body").commit([staged], 0)
    assert server.sinks["q1"].bodies == [f"<{number}/>" for number in range(20)]


def test_a_task_reads_its_rows_as_it_sends_them(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_room, "PART_BYTES", 100)
    read: list[int] = []
    ahead: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(50):
            read.append(number)
            yield pa.record_batch(bodies(number, number))

    def count(request: str) -> None:
        ahead.append(2 * len(read) - sum(len(rows) for _, _, rows in server.sinks.sinks["q1"].staged.values()))

    query = Query(server)
    query.run(0, bodies())
    server.on_sink = count
    options, plan = planned(query.options, schema("body"), False, stream=True)
    staged = TaskWriter(options, plan, Batch("q1", "q1", 1), 0).write(batches())
    assert (staged.rows, len(staged.tokens) > 30) == (100, True)
    assert max(ahead) <= 6  # a part of three, and the rest of a batch of two


def test_each_row_names_its_queue_or_goes_to_that_of_the_option(server: FakeServer) -> None:
    rows = {"body": ["<a/>", "<b/>", "<c/>"], "to": ["http://x", None, None], "queue": [None, "q", None]}
    Query(server).run(0, {**rows, "action": ["urn:x", None, None]})
    found = [(row["to"], row["queue"], row["action"]) for row in server.sinks["q1"].rows]
    assert found == [("http://x", None, "urn:x"), (None, "q", "urn:a"), (None, "out", "urn:a")]


def test_the_key_is_told_as_text_whatever_its_type(server: FakeServer) -> None:
    Query(server, sequenceKey="carrier").run(0, {**bodies("a", "b"), "carrier": [17, None]})
    assert [row["key"] for row in server.sinks["q1"].rows] == ["17", None]


# --- what a DataFrame may have -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "options", "says", "remedy"),
    [
        ([("body", IntegerType())], {}, "column body has the type INT, but must be STRING", "to_xml"),
        ([("action", StringType())], {}, "no column body", "select()"),
        ([("body", StringType())], {"action": ""}, "no column action", '.option("action", ...)'),
        ([("body", StringType())], {"queue": ""}, "no column queue or to", '.option("queue", ...)'),
        (
            [("body", StringType()), ("carrier", StringType())],
            {},
            "does not use column carrier",
            "remove it with select()",
        ),
        ([("value", StringType())], {}, "does not use column value", "rename it to body"),
        ([("key", StringType()), ("value", StringType())], {}, "does not use column key", '"sequenceKey", "key"'),
        ([("body", StringType())], {"topic": "out"}, "no option topic", "option queue"),
        (
            [("body", StringType()), ("to", BinaryType())],
            {},
            "to has the type BINARY, but must be STRING",
            "cast",
        ),
        ([("body", StringType())], {"sequenceKey": "carrier"}, "no column carrier", "its columns are body"),
        (
            [("body", StringType()), ("k", ArrayType(LongType()))],
            {"sequenceKey": "k"},
            "column k has the type ARRAY<BIGINT>",
            "cast it to a string",
        ),
        ([("body", StringType()), ("body", StringType())], {}, "two columns body", "with select()"),
        ([("body", StringType()), ("BODY", StringType())], {}, "two columns body", "with select()"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_when_the_write_is_planned(
    fields: list[Any], options: dict[str, str], says: str, remedy: str
) -> None:
    given = {"broker": "http://127.0.0.1:1", "queue": "out", "action": "urn:a", **options}
    with pytest.raises(ConfigurationError) as caught:
        planned(
            {name: text for name, text in given.items() if text},
            StructType([StructField(*field) for field in fields]),
            False,
            stream=True,
        )
    assert says in caught.value.message
    assert remedy.lower() in caught.value.remedy.lower()


def test_binary_bodies_and_headers_are_taken_and_every_type_of_key_that_has_a_text() -> None:
    fields = {"body": BinaryType(), "headers": BinaryType(), "k": LongType()}
    _, plan = planned(
        {"broker": "http://127.0.0.1:1", "to": "http://x", "action": "urn:a", "sequenceKey": "k"},
        StructType([StructField(name, kind) for name, kind in fields.items()]),
        False,
        stream=False,
    )
    assert plan.columns == {"key": "k", "body": "body", "headers": "headers"}
    batch = pa.record_batch({"body": [b"<a/>"], "headers": [b"<h/>"], "k": [2**40]})
    (part,) = RowEncoder(plan).parts(iter([batch]))
    assert isinstance(part, Part)
    assert decode_rows(part.encoded()) == [
        dict.fromkeys(FIELDS)
        | {"key": "1099511627776", "to": "http://x", "action": "urn:a", "headers": b"<h/>", "body": b"<a/>"}
    ]


def test_names_of_columns_are_not_sensitive_to_case_as_spark_s_are_not(server: FakeServer) -> None:
    rows = {"Body": ["<a/>", "<b/>"], "ACTION": ["urn:x", None], "Queue": ["q", None], "Carrier": [7, 8]}
    Query(server, sequenceKey="carrier").run(0, rows)
    found = [(row["key"], row["queue"], row["action"], row["body"]) for row in server.sinks["q1"].rows]
    assert found == [("7", "q", "urn:x", b"<a/>"), ("8", "out", "urn:a", b"<b/>")]


def test_overwriting_is_refused(server: FakeServer) -> None:
    source = WsrmDataSource(Query(server).options)
    with pytest.raises(ConfigurationError, match=r'mode\("append"\)'):
        source.writer(schema("body"), True)
    with pytest.raises(ConfigurationError, match=r'outputMode\("append"\)'):
        source.streamWriter(schema("body"), True)


# --- rows that cannot be sent --------------------------------------------------------------------------------------


def test_an_unwritable_table_of_refused_rows_is_reported_with_the_safe_data(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteRefused, match="file/refused, but it is not writable") as caught:
        Query(server, refused=str(tmp_path / "file" / "refused")).run(0, {"body": ["<a/>", None]})
    assert "Nothing of the batch was sent" in caught.value.remedy
    assert (server.sinks["q1"].staged, server.sinks["q1"].published) == ({}, [])


def test_a_row_the_server_refuses_fails_the_task_and_is_named(server: FakeServer) -> None:
    rows = {"body": ["<a/>", "<b/>", "<c/>", "<d/>", "no"], "carrier": [1, 2, 3, 4, 55]}
    with pytest.raises(WriteRefused) as caught:
        Query(server, sequenceKey="carrier").task(0, 3, rows)
    assert (
        "row 4 of partition 3 of batch 0 cannot be sent, column body: the body is no XML element (carrier=55)"
        in str(caught.value)
    )
    assert not server.sinks["q1"].staged


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"body": ["<a/>", None]}, "body is null"),
        ({"body": ["<a/>", "<b/>"], "action": ["urn:a", None]}, "action is null"),
        ({"body": ["<a/>", "<b/>"], "to": ["http://x", None]}, "it has neither queue nor to"),
        (
            {"body": ["<a/>", "<b/>"], "to": ["http://x"] * 2, "queue": [None, "q"]},
            "it has a queue and an address, and must have one of them",
        ),
    ],
)
def test_a_row_without_a_required_value_fails_the_task_and_discards_its_staged_rows(
    server: FakeServer, rows: dict[str, list[Any]], reason: str
) -> None:
    options = {"queue": ""} if "to" in rows else {}
    options |= {"action": ""} if "action" in rows else {}
    with pytest.raises(WriteRefused, match=f"row 1 of partition 0 of batch 0 cannot be sent, column .*: {reason}"):
        Query(server, **options).task(0, 0, rows)


def test_a_row_larger_than_a_server_takes_is_one_that_cannot_be_sent(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_room, "ROW_BYTES", 100)
    with pytest.raises(WriteRefused, match=r"row 1 .*: it has 2\d\d bytes, but at most 100 can be sent"):
        Query(server).task(0, 0, bodies("a", "b" * 200))


def test_text_that_is_not_utf_8_is_a_row_that_cannot_be_sent(server: FakeServer) -> None:
    options, plan = planned(Query(server).options, schema("body", "to"), False, stream=True)
    raw = pa.array([b"http://x", b"\xff", None], pa.binary())
    to = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0], raw.null_count)
    batch = pa.record_batch({"body": pa.array(["<a/>", "<b/>", "<c/>"]), "to": to})
    with pytest.raises(WriteRefused, match=r"row 1 .* column to: to is not UTF-8"):
        TaskWriter(options, plan, Batch("q1", "q1", 0), 0).write(iter([batch]))


def table(path: Path) -> list[dict[str, Any]]:
    found = dataset_of(path, exclude_invalid_files=False, ignore_prefixes=["_"])
    return sorted(
        found.to_table().to_pylist(),
        key=lambda row: (row["refused_batch"], row["refused_partition"], row["refused_row"]),
    )


def test_refused_rows_go_to_the_table_with_all_their_columns_and_the_others_are_sent(
    server: FakeServer, tmp_path: Path
) -> None:
    query = Query(server, refused=str(tmp_path), sequenceKey="carrier")
    first = {"body": ["<a/>", "no", None, "<d/>"], "carrier": [1, 2, 3, 4]}
    query.run(0, first, {"body": ["nor this"], "carrier": [5]})
    assert server.sinks["q1"].bodies == ["<a/>", "<d/>"]
    found = table(tmp_path)
    assert [(row["refused_partition"], row["refused_row"], row["carrier"], row["body"]) for row in found] == [
        (0, 1, 2, "no"), (0, 2, 3, None), (1, 0, 5, "nor this"),
    ]  # fmt: skip
    assert [row["refused_reason"] for row in found] == [
        "the body is no XML element",
        "body is null",
        "the body is no XML element",
    ]
    assert {(row["refused_query"], row["refused_batch"]) for row in found} == {("q1", 0)}


def test_columns_that_are_not_sent_are_in_the_table_of_refused_rows(server: FakeServer, tmp_path: Path) -> None:
    query = Query(server, refused=str(tmp_path), refusedColumns="id, place")
    query.run(0, {"body": ["<a/>", "no"], "id": [7, 8], "place": ["x", "y"]})
    assert [(row["body"], row["id"], row["place"]) for row in table(tmp_path)] == [("no", 8, "y")]
    assert server.sinks["q1"].bodies == ["<a/>"]
    with pytest.raises(ConfigurationError, match="no column place, which option refusedColumns names"):
        query.run(1, {"body": ["<a/>"], "id": [7]})


def test_a_repeated_batch_replaces_its_own_refused_rows_however_it_is_cut(server: FakeServer, tmp_path: Path) -> None:
    query = Query(server, refused=str(tmp_path))
    query.run(0, {"body": ["no"]})
    server.on_sink = lambda request: "before" if "/batches/" in request else None
    staged = [query.task(1, 0, {"body": ["<a/>", "no"]}), query.task(1, 1, {"body": ["nor"]})]
    with pytest.raises(ServerAway):
        query.writer("body").commit(list(staged), 1)
    query.writer("body").abort(list(staged), 1)
    server.on_sink = lambda request: None
    for _ in range(2):  # once more, as after a death between the publication and Spark's note of it
        query.run(1, {"body": ["<a/>", "no", "nor"]})
    assert [(row["refused_batch"], row["body"]) for row in table(tmp_path)] == [(0, "no"), (1, "no"), (1, "nor")]
    assert server.sinks["q1"].bodies == ["<a/>"]
    assert [path for path in (tmp_path / "_staged").rglob("*") if path.is_file()] == []


# --- sinks with names, and batch writes ----------------------------------------------------------------------------


def test_a_new_checkpoint_is_refused_by_a_sink_with_a_name_until_the_user_says_so(server: FakeServer) -> None:
    Query(server, "q1", sinkId="alerts").run(0, bodies("a"))
    with pytest.raises(SinkBound):
        Query(server, "q2", sinkId="alerts").task(0, 0, bodies("b"))
    Query(server, "q2", sinkId="alerts", rebind="true").run(0, bodies("b"))
    assert server.sinks["alerts"].bodies == ["<a/>", "<b/>"]


def test_a_batch_that_was_left_out_is_refused(server: FakeServer) -> None:
    query = Query(server)
    query.run(0, bodies("a"))
    with pytest.raises(BatchRefused):
        query.task(2, 0, bodies("b"))


class Context:
    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


def batch_write(server: FakeServer, rows: dict[str, list[Any]], context: Any = None, **options: str) -> WsrmWriter:
    """What Spark does in a batch write; the writer that did it."""
    query = Query(server, **options)
    writer = WsrmDataSource(query.options).writer(schema(*rows), False)
    checked, plan = planned(query.options, schema(*rows), False, stream=False)
    batch = writer._batch(context or Context())
    staged = TaskWriter(checked, plan, batch, 0).write(iter(pa.table(rows).to_batches()))
    writer.commit([staged])
    return writer


def test_a_batch_write_of_its_own_sends_every_time_and_leaves_no_sink(server: FakeServer) -> None:
    batch_write(server, bodies("a"))
    batch_write(server, bodies("a"))
    assert server.sinks.sinks == {}
    assert [sink.bodies for sink in server.sinks.forgotten.values()] == [["<a/>"], ["<a/>"]]


def test_a_batch_write_with_a_key_sends_once(server: FakeServer) -> None:
    for _ in range(2):
        batch_write(server, bodies("a"), idempotencyKey="2026-11-22 / alerts")
    (sink,) = server.sinks.sinks.values()
    assert sink.bodies == ["<a/>"]


def test_batches_that_the_user_counts_are_sent_once_each_and_may_leave_numbers_out(server: FakeServer) -> None:
    for batch in ("20261120", "20261122", "20261122", "20261120"):
        batch_write(server, bodies(batch), sinkId="nightly", batchId=batch)
    with pytest.raises(BatchRefused, match="overtaken"):
        batch_write(server, bodies("late"), sinkId="nightly", batchId="20261121")
    assert server.sinks["nightly"].bodies == ["<20261120/>", "<20261122/>"]


def test_the_batches_of_foreach_batch_are_those_of_its_query(server: FakeServer) -> None:
    query = Context(**{"sql.streaming.queryId": "q1"})
    batch_write(server, bodies("a"), query, sinkId="alerts", batchId="0")
    with pytest.raises(SinkBound):
        batch_write(server, bodies("b"), Context(**{"sql.streaming.queryId": "q2"}), sinkId="alerts", batchId="0")
    batch_write(server, bodies("b"), query, sinkId="alerts", batchId="1", queryId="q1")
    assert server.sinks["alerts"].bodies == ["<a/>", "<b/>"]


# --- failures, all of them -----------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("attempts", list(failures()), ids="-".join)
@pytest.mark.parametrize("parts", [False, True], ids=["one part", "many parts"])
def test_whatever_fails_in_a_batch_its_rows_are_sent_once_and_in_order(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, attempts: tuple[str, ...], parts: bool
) -> None:
    if parts:
        monkeypatch.setattr(rows_room, "PART_BYTES", 1)
    query = Query(server, awaySeconds="60")
    monkeypatch.setattr("holdfast.pipeline.writer.sink.Patience", partial(Patience, sleep=lambda seconds: None))
    for batch in range(3):
        for place in (*(attempts if batch != 1 else reversed(attempts)), "none"):
            try:
                attempt(server, query, batch, place)
                break
            except Died:
                continue
    expected = [f"<r{batch}-{task}-{row}/>" for batch in range(3) for task in range(2) for row in range(3)]
    assert server.sinks["q1"].bodies == expected
    assert not server.sinks["q1"].staged


def test_a_server_that_is_away_is_waited_for_and_then_told_of(server: FakeServer) -> None:
    query = Query(server, awaySeconds="0.2")
    server.stop()
    with pytest.raises(ServerAway, match=r"tried for 0.2 s"):
        query.task(0, 0, bodies("a"))


def test_abort_never_raises_and_never_takes_back_what_is_published(server: FakeServer) -> None:
    query = Query(server)
    staged = query.task(0, 0, bodies("a"))
    query.writer("body").commit([staged], 0)
    query.writer("body").abort([staged, None], 0)
    assert server.sinks["q1"].bodies == ["<a/>"]
    server.stop()
    query.writer("body").abort([staged, None], 0)
