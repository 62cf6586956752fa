"""Messages of several types in one queue: each in the table of its body's element.

Covers pipeline/bodies/message_types.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from fake_server import FakeServer, record

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.message_types import TableNames, element_of, table_names
from holdfast.pipeline.jobs.land import land_command
from holdfast.pipeline.landing.tables import DeltaTable, LandedBatch, land, read_landed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = {"order": "id INT", "{urn:shop}return": "id INT, reason STRING"}
BODIES = [
    "<order id='0'/>",
    "<s:return xmlns:s='urn:shop' id='1'><s:reason>torn</s:reason></s:return>",
    "<return id='2'/>",
    "<hello/>",
    "<order id='4'><broken>",
    "<o:order xmlns:o='urn:o' id='x'/>",
    "no XML",
]


@pytest.mark.parametrize(
    ("body", "element"),
    [
        (b"<a/>", "a"),
        (b"<?xml version='1.0'?><!-- <b> --><?p <c>?>\n<n:a xmlns:n='urn:x'><", "{urn:x}a"),
        (b"<a xmlns='urn:x'>" + b"<b>" * 10_000, "{urn:x}a"),
        (b"<!-- " + b"x" * 10_000 + b" --><a/>", "a"),
        (b"<a b='" + b"x" * 10_000 + b"'/>", "a"),
        (b"<!DOCTYPE a [<!ENTITY e 'e'>]><a/>", ""),
        (b"<n:a/>", "n:a"),
        (b"", ""),
        (b" text", ""),
    ],
)
def test_the_element_is_known_by_the_first_tag_alone(body: bytes, element: str) -> None:
    assert element_of(body) == element


def test_a_body_goes_to_the_table_of_its_whole_name_or_of_its_local_one() -> None:
    tables = TableNames(table_names(TYPES))
    found = [tables.table_of(body.encode()) for body in BODIES]
    assert found == ["order", "return", "other", "other", "order", "order", "other"]


@pytest.mark.parametrize(
    ("elements", "told"),
    [
        (["a b"], "'a b' is not the name of an element"),
        (["_a"], "'_a' is not the name of an element"),
        (["../a"], "'../a' is not the name of an element"),
        (["Other"], "the table of Other would have the same name as the table of all other messages"),
        (["a", "{urn:x}A"], "the table of {urn:x}A would have the same name as the table of a"),
    ],
)
def test_a_type_that_can_have_no_table_is_refused(elements: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        table_names(elements)
    assert told in str(wrong.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--type", "order"], "'order' is not ELEMENT=FIELDS"),
        (["--type", "order="], "'order=' is not ELEMENT=FIELDS"),
        (["--type", "other=id INT"], "the table of all other messages"),
        (["--type", "a=id INT", "--type", "a=b INT"], "a is given twice"),
        (["--type", "{urn:x?a=b}order=id INT", "--schema", "id INT"], "--type contains the fields of its element"),
    ],
)
def test_types_that_are_given_wrongly_are_wrong_usage(arguments: list[str], told: str) -> None:
    base = ["--broker", "http://127.0.0.1:1", "--out", "o", "--checkpoint", "c"]
    result = CliRunner().invoke(land_command, [*base, *arguments])
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())


class Shop:
    """A queue of several types, landed by one query after another."""

    def __init__(self, spark: SparkSession, server: FakeServer, directory: Path, patiently: Callable[..., Any]) -> None:
        self._spark, self._server, self._patiently = spark, server, patiently
        self.out, self.checkpoint = directory / "landed", directory / "checkpoint"
        server.create("shop")
        server.append("shop", 0, [record(number, body) for number, body in enumerate(BODIES)])

    def run(self, types: Any = TYPES, **arguments: Any) -> list[LandedBatch]:
        batches: list[LandedBatch] = []

        def once() -> None:
            batches.clear()
            given: dict[str, Any] = {"trigger": {"availableNow": True}, "on_batch": batches.append, **arguments}
            out, checkpoint = str(self.out), str(self.checkpoint)
            query = land(self._spark, self._server.url, "shop", out, checkpoint=checkpoint, types=types, **given)
            assert query.awaitTermination(280)

        self._patiently(once)
        return batches

    def numbers(self, table: str) -> list[int]:
        rows = read_landed(self._spark, str(self.out / table)).orderBy("message_number").collect()
        return [row.message_number for row in rows]

    def rows(self, table: str) -> list[Any]:
        return read_landed(self._spark, str(self.out / table)).orderBy("message_number").collect()


@pytest.fixture
def shop(spark: SparkSession, server: FakeServer, tmp_path: Path, patiently: Callable[..., Any]) -> Shop:
    return Shop(spark, server, tmp_path, patiently)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_each_type_has_a_table_with_its_own_columns(shop: Shop) -> None:
    (batch,) = shop.run()
    assert (batch.rows, batch.flagged, dict(batch.tables)) == (7, 2, {"order": 3, "return": 1, "other": 3})
    assert [(row.message_number, row.id) for row in shop.rows("order")] == [(0, 0), (4, None), (5, None)]
    assert [bool(row.corrupt_record) for row in shop.rows("order")] == [False, True, True]
    (row,) = shop.rows("return")
    assert (row.id, row.reason, row.message_number) == (1, "torn", 1)
    assert shop.numbers("other") == [2, 3, 6]


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_repeated_batch_is_in_each_table_once_and_keeps_its_division(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaTable.write

    def dies(self: DeltaTable, *arguments: Any, **more: Any) -> None:
        if self._out.endswith("/return"):
            raise PipelineError("killed")
        real(self, *arguments, **more)

    monkeypatch.setattr(DeltaTable, "write", dies)
    with pytest.raises(Exception, match="killed"):
        shop.run()
    monkeypatch.setattr(DeltaTable, "write", real)
    assert shop.numbers("order") == [0, 4, 5]
    with pytest.raises(
        Exception,
        match=r"batch 0 was started with the types order, .*, but the current types are "
        r"hello, order",
    ):
        shop.run({"order": "id INT", "hello": "id INT"})
    (batch,) = shop.run()
    assert dict(batch.tables) == {"order": 3, "return": 1, "other": 3}
    assert (shop.numbers("order"), shop.numbers("return"), shop.numbers("other")) == ([0, 4, 5], [1], [2, 3, 6])


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_type_may_be_added_later_and_a_batch_may_lack_rows_of_a_type(
    shop: Shop, server: FakeServer, kind: str, tmp_path: Path
) -> None:
    if kind == "delta":
        pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'holdfast[spark]'")
    shop.run(table=kind)
    server.append("shop", 0, [record(7, "<hello id='7'/>"), record(8, "<order id='8'/>")])
    (batch,) = shop.run({**TYPES, "hello": "id INT"}, table=kind)
    assert dict(batch.tables) == {"order": 1, "return": 0, "hello": 1, "other": 0}
    assert (shop.numbers("hello"), shop.numbers("order"), shop.numbers("return")) == ([7], [0, 4, 5, 8], [1])
    assert shop.numbers("other") == [2, 3, 6]
    shop.run({**TYPES, "hello": "id INT"}, table=kind)

    (shop.out / "other").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"is at batch 1, but .*other"):
        shop.run(table=kind)


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_table_holds_no_tables_of_types_and_these_no_single_table(shop: Shop, tmp_path: Path) -> None:
    shop.run(None)
    with pytest.raises(ConfigurationError, match=r"is a table, and with types it is to hold a table of each"):
        shop.run()
    with pytest.raises(ConfigurationError, match=r"together with a schema"):
        shop.run(schema="id INT")
    shop.out = tmp_path / "other directory"
    with pytest.raises(ConfigurationError, match=r"is at batch 0, but .*other has no batch"):
        shop.run()
