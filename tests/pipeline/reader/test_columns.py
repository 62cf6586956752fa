from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from fake_server import block, record
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.client.errors import PipelineError
from holdfast.core.records import Record
from holdfast.pipeline.reader import columns
from holdfast.pipeline.reader.columns import COLUMNS, BatchBuilder, arrow_struct, chosen, spark_struct
from holdfast.store.records import encode_record

ALL = frozenset(name for name, *_ in COLUMNS)
some_columns = st.sets(st.sampled_from(sorted(ALL)), min_size=1)


@given(some_columns)
def test_our_arrow_schema_is_sparks_own_to_the_letter(names: set[str]):
    table = chosen(COLUMNS, names)
    assert arrow_struct(table).equals(to_arrow_schema(spark_struct(table), timezone="UTC"))
    assert [name for name, *_ in table] == [name for name, *_ in COLUMNS if name in names]


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
    builder = BatchBuilder("orders", 3, ALL)
    (batch,) = builder.batches([block(40, [encode_record(full), encode_record(record(8, ""))])])
    assert batch.schema.equals(arrow_struct(COLUMNS))
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
    builder = BatchBuilder("orders", 0, ALL)
    assert [batch["offset"].to_pylist() for batch in builder.batches(blocks)] == [[0, 1, 2, 3], [4], [5, 6], [7]]
    assert list(builder.batches([])) == []


@pytest.mark.parametrize("data", [b"no record", encode_record(record(1)).replace(b"<o:order", b"\xffo:order")])
def test_an_unreadable_record_is_reported_with_its_position(data: bytes):
    builder = BatchBuilder("orders", 3, ALL - {"headers"})
    with pytest.raises(PipelineError, match="queue 'orders' partition 3 offset 40") as caught:
        list(builder.batches([block(40, [data])]))
    assert "startingOffsets" in caught.value.remedy


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (replace(record(41), body=b"\xff"), "body: ArrowInvalid: "),
        (record(41, received_at=float("nan")), "received_at: OverflowError: seconds beyond the range of a timestamp"),
        (record(41, received_at=1e300), "received_at: OverflowError: seconds beyond the range of a timestamp"),
        (record(41, message_id="\ud800"), "message_id: UnicodeEncodeError: "),
        (replace(record(41), message_number=2**63), "message_number: "),
    ],
)
def test_of_many_records_the_one_that_cannot_be_a_row_is_told_with_column_and_cause(
    wrong: Record, why: str, monkeypatch: pytest.MonkeyPatch
):
    kept = {b"40": record(40), b"41": wrong, b"42": record(42)}  # as no store gives them
    monkeypatch.setattr(columns, "decode_record", kept.__getitem__)
    builder = BatchBuilder("orders", 3, ALL)
    with pytest.raises(PipelineError) as caught:
        list(builder.batches([block(40, list(kept))]))
    assert caught.value.message.startswith(f"queue 'orders' partition 3 offset 41 cannot be read: {why}")


def test_a_column_that_is_not_asked_for_is_not_even_looked_at():
    data = encode_record(record(1)).replace(b"<o:order", b"\xffo:order")
    (batch,) = BatchBuilder("orders", 3, ALL - {"body"}).batches([block(40, [data])])
    assert isinstance(batch, pa.RecordBatch)
    assert batch.num_rows == 1


@given(st.sets(st.sampled_from(columns.POSITION), min_size=1), st.integers(0, 2**40))
def test_rows_made_of_positions_alone_are_those_of_the_records(names: set[str], first: int):
    builder = BatchBuilder("orders", 3, names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BATCH_ROWS", 4)
        made = list(builder.positions(first, first + 10))
    assert [batch.num_rows for batch in made] == [4, 4, 2]
    (read,) = builder.batches([block(first, [encode_record(record(i)) for i in range(10)])])
    assert pa.Table.from_batches(made).combine_chunks() == pa.Table.from_batches([read])
