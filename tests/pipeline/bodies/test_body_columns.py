"""Columns of bodies, batch by batch: each value is read, or flagged with its problem.

Covers pipeline/bodies/columns.py.
"""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from wild import ODD, POISON, WILD

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies import columns as body_columns
from holdfast.pipeline.bodies.columns import ENVELOPE, BodyColumns
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.bodies.templates import AlikeReader


def batch(*bodies: str) -> pa.RecordBatch:
    rows = [
        {
            "queue": "q",
            "partition": 0,
            "offset": i,
            "sequence": "s",
            "message_number": i,
            "message_id": None,
            "action": "a",
            "received_at": None,
            "delivered_at": None,
            "body": body,
        }
        for i, body in enumerate(bodies)
    ]
    return pa.RecordBatch.from_pylist(rows, to_arrow_schema(ENVELOPE, timezone="UTC"))


def test_columns_are_parsed_batch_by_batch_with_nulls_allowed_everywhere():
    strict = StructType([StructField("id", IntegerType(), nullable=False)])
    columns = BodyColumns(strict, prefix="order_")
    (made,) = columns([batch("<o><id>1</id></o>", "<o/>")])
    assert made.schema.names == columns.schema.fieldNames()
    assert columns.schema["order_id"].nullable
    assert made["order_id"].to_pylist() == [1, None]
    assert made["corrupt_record"].to_pylist() == [None, "id is missing"]


@pytest.mark.parametrize("element", ["order", "{urn:o}order"])
def test_a_body_with_another_element_than_the_expected_one_is_flagged_and_not_read(element: str):
    columns = BodyColumns(StructType([StructField("id", IntegerType())]), element=element)
    right, other = '<o:order xmlns:o="urn:o"><id>{}</id></o:order>', "<invoice><id>{}</id></invoice>"
    bodies = [(right if n % 3 else other).format(n) for n in range(40)]  # alike, and so read together
    (made,) = columns([batch(*bodies, "<order", "<!-- one by one --><invoice><id>7</id></invoice>")])
    flagged = "is <invoice>, not <" + element + ">"
    assert made["id"].to_pylist() == [n if n % 3 else None for n in range(40)] + [None, None]
    told = made["corrupt_record"].to_pylist()
    assert told[:40] == [None if n % 3 else flagged for n in range(40)]
    assert told[40].startswith("not well-formed")
    assert told[41] == flagged


def test_an_element_without_a_schema_is_refused():
    with pytest.raises(ConfigurationError, match="no schema describes their fields"):
        BodyColumns(StructType(), element="order")


texts = st.one_of(
    st.text(max_size=30).map(escape),
    st.sampled_from(["1", "-1.5", "1e400", "NaN", "2013-01-31", "9999-12-31T24:00:00", "0001-01-01T00:00:00+01:00"]),
    st.decimals(allow_nan=False, allow_infinity=False).map("{:f}".format),
    st.builds("2013-01-31T05:06:07.{}Z".format, st.integers(0, 10**9)),
)
elements = st.recursive(
    st.builds(
        "<{0}>{1}</{0}>".format,
        st.sampled_from([*WILD.fieldNames(), "id", "x"]),
        texts,
    ),
    lambda inner: st.builds("<lines>{}</lines>".format, st.lists(inner, max_size=3).map("".join)),
)
documents = st.one_of(
    st.lists(elements, max_size=6).map("".join).map("<o>{}</o>".format),
    st.builds("<o {}='{}'/>".format, st.sampled_from(["price", "at", "note"]), texts),
    st.text(max_size=20),
    st.sampled_from(sorted(set(POISON) | set(ODD), key=len)[:-1]),
)


@given(bodies=st.lists(documents, max_size=6))
def test_every_body_is_one_row_as_if_it_were_alone_and_each_value_is_read_or_flagged(bodies: list[str]):
    columns = BodyColumns(WILD)
    (made,) = columns([batch(*bodies)])
    made.validate(full=True)
    assert made.schema.types == to_arrow_schema(columns.schema, timezone="UTC").types
    rows = made.drop_columns(["offset", "message_number"]).to_pylist()
    alone = [next(columns([batch(body)])).drop_columns(["offset", "message_number"]).to_pylist() for body in bodies]
    assert repr(rows) == repr([row for (row,) in alone])  # a NaN is no equal of itself
    for row in rows:
        assert not (row["corrupt_record"] or "").startswith("cannot be read")
        assert "Arrow rejects this" not in (row["corrupt_record"] or "")


@given(body=documents)
def test_the_short_way_for_plain_fields_gives_what_the_long_one_gives(body: str):
    reader = BodyReader(WILD)
    short = reader.read(body.encode())
    long = reader.read(f"{body}<!--nil-->".encode())  # where an element may be nil every field goes the long way
    assert repr(short) == repr(long) or (short[1] or "").startswith(("not well-formed", "the body is empty"))


class Refused(BodyReader):
    """A reader that lets values through which Arrow does not take, or breaks down."""

    def read(self, body: bytes) -> tuple[dict[str, Any], str | None]:
        values, problem = super().read(body)
        value: Any = {b"<o>0</o>": 2**31, b"<o>1</o>": "x", b"<o>2</o>": None}.get(body, 3)
        return {**values, "id": value}, problem


def test_what_arrow_does_not_take_is_a_problem_of_its_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body_columns, "BodyReader", Refused)
    columns = BodyColumns(StructType([StructField("id", IntegerType()), StructField("x", StringType(), False)]))
    (made,) = columns([batch("<o>0</o>", "<o>1</o>", "<o>2</o>", "<o x='1'/>")])
    assert made["id"].to_pylist() == [None, None, None, 3]
    told = made["corrupt_record"].to_pylist()
    assert told[0].startswith("x is missing; id: Arrow rejects this int32: ")
    assert told[1].startswith("x is missing; id: Arrow rejects this int32: ")
    assert told[2:] == ["x is missing", None]


def test_a_mistake_of_ours_costs_one_row(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a mistake")

    reader = BodyReader(StructType([StructField("id", IntegerType())]))
    monkeypatch.setattr(reader.root, "read", broken)
    assert reader.read(b"<o/>") == ({"id": None}, "cannot be read: ZeroDivisionError: a mistake")


def test_a_mistake_of_ours_in_reading_bodies_together_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(AlikeReader, "read", broken)
    (made,) = BodyColumns(StructType([StructField("id", IntegerType())]))([batch("<o><id>1</id></o>", "<o")])
    assert made["id"].to_pylist() == [1, None]
    assert made["corrupt_record"].to_pylist()[1].startswith("not well-formed")
    assert "could not be read together" in caplog.text


def test_bodies_read_together_and_one_by_one_are_in_their_order():
    bodies = [f"<o><id>{i if i % 3 else f' {i}'}</id></o>" for i in range(20)] + ["<o", "<o><id/></o>"]
    (made,) = BodyColumns(StructType([StructField("id", IntegerType())]))([batch(*bodies)])
    assert made["id"].to_pylist() == [*range(20), None, None]
    assert made["body"].to_pylist() == bodies
    told = made["corrupt_record"].to_pylist()
    assert told[:20] == [None] * 20
    assert [text[:10] for text in told[20:]] == ["not well-f", "id: '' is "]


@pytest.mark.parametrize(("size", "parts"), [(1, [1] * 9), (40, [2, 2, 2, 2, 1]), (1000, [9])])
def test_so_many_bodies_are_read_together_as_memory_is_meant_for(
    monkeypatch: pytest.MonkeyPatch, size: int, parts: list[int]
):
    monkeypatch.setattr(body_columns, "PART_BYTES", size)
    made = list(BodyColumns(StructType([StructField("id", IntegerType())]))([batch(*["<o><id>1</id></o>"] * 9)]))
    assert [part.num_rows for part in made] == parts
    assert [part["id"].to_pylist() for part in made] == [[1] * rows for rows in parts]


def test_without_a_schema_bodies_are_not_looked_at():
    (made,) = BodyColumns(StructType())([batch("no xml")])
    assert made["corrupt_record"].to_pylist() == [None]
    assert made["body"].to_pylist() == ["no xml"]


@pytest.mark.parametrize("name", ["action", "Body", "batch", "corrupt_record"])
def test_a_parsed_column_may_not_take_the_name_of_another(name: str):
    fields = StructType([StructField(name, StringType())])
    with pytest.raises(ConfigurationError, match=f"would have the name '{name}'") as caught:
        BodyColumns(fields)
    assert "prefix" in caught.value.remedy
    assert f"x_{name}" in BodyColumns(fields, "x_").schema.fieldNames()


@pytest.mark.parametrize("prefix", ["", "x_"])
def test_fields_that_differ_only_in_case_need_other_names_not_a_prefix(prefix: str):
    fields = StructType([StructField("id", StringType()), StructField("ID", StringType())])
    with pytest.raises(ConfigurationError, match="the fields 'id' and 'ID'") as caught:
        BodyColumns(fields, prefix)
    assert "prefix" not in caught.value.remedy
    assert '{"name": "ID"}' in caught.value.remedy
    renamed = StructType([StructField("id", StringType()), StructField("other", StringType(), metadata={"name": "ID"})])
    assert "other" in BodyColumns(renamed).schema.fieldNames()
