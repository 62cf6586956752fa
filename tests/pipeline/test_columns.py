from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from fake_server import block, record
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.core.records import Record
from holdfast.pipeline import columns
from holdfast.pipeline.columns import BatchBuilder, arrow_schema, spark_schema
from holdfast.pipeline.errors import PipelineError
from holdfast.store.records import encode_record


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize("headers", [True, False])
def test_our_arrow_schema_is_sparks_own_to_the_letter(body: bool, headers: bool):
    ours = arrow_schema(body=body, headers=headers)
    assert ours.equals(to_arrow_schema(spark_schema(body=body, headers=headers), timezone="UTC"))
    assert ("body" in ours.names, "headers" in ours.names) == (body, headers)


def test_a_record_becomes_a_row_with_every_column_in_its_place():
    full = record(
        7,
        "<é/>",
        message_id="urn:m:7",
        to="http://b",
        reply_to="http://a",
        relates_to="urn:m:1",
        soap="1.1",
        headers=b"<h/>",
        released_at=1_700_000_020.5,
    )
    builder = BatchBuilder("orders", 3, body=True, headers=True)
    (batch,) = builder.batches([block(40, [encode_record(full), encode_record(record(8, ""))])])
    assert batch.schema.equals(arrow_schema(body=True, headers=True))
    batch.validate(full=True)
    first, second = batch.to_pylist()
    assert first == {
        "queue": "orders",
        "partition": 3,
        "offset": 40,
        "sequence": "urn:uuid:one",
        "message_number": 7,
        "message_id": "urn:m:7",
        "action": "urn:orders/Submit",
        "to": "http://b",
        "reply_to": "http://a",
        "relates_to": "urn:m:1",
        "soap_version": "1.1",
        "received_at": datetime(2023, 11, 14, 22, 13, 27, 250_000, tzinfo=UTC),
        "delivered_at": datetime(2023, 11, 14, 22, 13, 40, 500_000, tzinfo=UTC),
        "headers": "<h/>",
        "body": "<é/>",
    }
    assert second["delivered_at"] == second["received_at"]  # never held behind a gap
    assert (second["message_id"], second["headers"], second["body"]) == (None, "", "")


def test_a_batch_ends_at_so_many_rows_or_so_many_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "BATCH_ROWS", 4)
    monkeypatch.setattr(columns, "BATCH_BYTES", 10_000)
    blocks = [
        block(i, [encode_record(record(i, "x" * size))]) for i, size in enumerate([1, 1, 1, 1, 20_000, 1, 9_990, 1])
    ]
    builder = BatchBuilder("orders", 0, body=True, headers=False)
    assert [batch["offset"].to_pylist() for batch in builder.batches(blocks)] == [[0, 1, 2, 3], [4], [5, 6], [7]]
    assert list(builder.batches([])) == []


@pytest.mark.parametrize("data", [b"no record", encode_record(record(1)).replace(b"<o:order", b"\xffo:order")])
def test_what_cannot_be_read_is_told_with_its_position(data: bytes):
    builder = BatchBuilder("orders", 3, body=True, headers=False)
    with pytest.raises(PipelineError, match="queue 'orders' partition 3 offset 40") as caught:
        list(builder.batches([block(40, [data])]))
    assert "startingOffsets" in caught.value.remedy


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (replace(record(41), body=b"\xff"), "body: ArrowInvalid: "),
        (record(41, received_at=float("nan")), "received_at: OverflowError: seconds beyond what a timestamp can hold"),
        (record(41, received_at=1e300), "received_at: OverflowError: seconds beyond what a timestamp can hold"),
        (record(41, message_id="\ud800"), "message_id: UnicodeEncodeError: "),
        (replace(record(41), message_number=2**63), "message_number: "),
    ],
)
def test_of_many_records_the_one_that_cannot_be_a_row_is_told_with_column_and_cause(
    wrong: Record, why: str, monkeypatch: pytest.MonkeyPatch
):
    kept = {b"40": record(40), b"41": wrong, b"42": record(42)}  # as no store gives them
    monkeypatch.setattr(columns, "decode_record", kept.__getitem__)
    builder = BatchBuilder("orders", 3, body=True, headers=True)
    with pytest.raises(PipelineError) as caught:
        list(builder.batches([block(40, list(kept))]))
    assert caught.value.message.startswith(f"queue 'orders' partition 3 offset 41 cannot be read: {why}")


def test_a_column_that_is_not_asked_for_is_not_even_looked_at():
    data = encode_record(record(1)).replace(b"<o:order", b"\xffo:order")
    (batch,) = BatchBuilder("orders", 3, body=False, headers=False).batches([block(40, [data])])
    assert isinstance(batch, pa.RecordBatch)
    assert batch.num_rows == 1
