"""A capture put together by Spark: what a plain model says, whatever is lost, doubled or turned round.

Covers pipeline/reassembly/tables.py.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from captured import Captured, Outcome, outcomes, wild_capture
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.reassembly.rows import CAPTURE
from holdfast.pipeline.reassembly.tables import (
    PARTS,
    SEQUENCES,
    Reassembled,
    _judge,
    as_capture,
    capture_of,
    islands,
    read_reassembled,
    reassemble,
)
from holdfast.pipeline.spark.ddl import arrow_schema, record_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VECTORS = Path(__file__).parents[2] / "data" / "vectors"


def numbers(ranges: list[Any]) -> list[int]:
    return [number for pair in ranges for number in range(pair["lower"], pair["upper"] + 1)]


def check(done: Reassembled, expected: dict[tuple[str, str], Outcome], capture: list[Captured]) -> None:
    """Compare what was put together with the plain model."""
    found: dict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
    for row in done.messages.orderBy("sequence", "rm", "message_number").collect():
        found[row["sequence"], row["rm"]].append((row["message_number"], row["body"].encode()))
    assert found == {key: outcome.messages for key, outcome in expected.items() if outcome.messages}
    rows = {(row["sequence"], row["rm"]): row for row in done.sequences.collect()}
    assert rows.keys() == expected.keys()
    for key, outcome in expected.items():
        row = rows[key]
        told = [row["state"], row["ended"], row["last_message_number"], numbers(row["missing"]), row["seen"]]
        assert told == [outcome.state, outcome.ended, outcome.last or None, outcome.missing, outcome.seen]
        assert numbers(row["ranges"]) == sorted(outcome.first)
        assert numbers(row["not_captured"]) == outcome.not_captured
        assert sorted(row["conflicts"]) == sorted(outcome.conflicts)
        assert row["duplicates"] == outcome.seen - len(outcome.first) - len(outcome.conflicts)
    unplaced = sorted((row["why"], row["source"], row["position"]) for row in done.unplaced.collect())
    rest = [(one.why, one.source, one.position) for one in capture if one.why]
    disputed = [
        ("conflict", one.source, one.position)
        for one in capture
        if one.key and one.number and one != (first := expected[one.key].first[one.number])
        and (one.body, one.marker) != (first.body, first.marker)
    ]  # fmt: skip
    assert unplaced == sorted(rest + disputed)


@pytest.mark.nightly
@pytest.mark.spark
def test_a_wild_capture_becomes_what_the_plain_model_says_in_whatever_order_it_lies(
    spark: SparkSession, tmp_path: Path
) -> None:
    capture = [one for seed in range(4) for one in _moved(wild_capture(seed, size=250), seed)]
    rows = [one.row for one in random.Random(1).sample(capture, len(capture))]
    frame = spark.createDataFrame(
        pa.Table.from_batches([record_batch(rows, arrow_schema(CAPTURE))]).to_pandas(), CAPTURE
    )
    done = reassemble(frame.repartition(3), str(tmp_path / "out"))
    check(done, outcomes(capture), capture)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["messages", "sequences", "unplaced"]
    check(read_reassembled(spark, str(tmp_path / "out")), outcomes(capture), capture)


def _moved(capture: list[Captured], seed: int) -> list[Captured]:
    """The same at places of its own, so that several captures do not meet there."""
    moved = [dict(vars(one)) for one in capture]
    for one in moved:
        one["captured_at"] += seed * 1_000
    return [Captured(**one) for one in moved]


@pytest.mark.nightly
@pytest.mark.spark
def test_recorded_exchanges_are_put_together_by_their_files(spark: SparkSession, tmp_path: Path) -> None:
    files = [
        str(VECTORS / "wcf" / name) for name in sorted(p.name for p in (VECTORS / "wcf").iterdir() if "lost" in p.name)
    ]
    done = reassemble(capture_of(spark, *files), str(tmp_path / "out"))
    rows = done.sequences.where("numbers > 0").collect()
    assert {row["state"] for row in rows} == {"complete", "tail unknown"}  # replies, of which nobody says the last
    assert any(row["duplicates"] for row in rows)
    assert not any(row["missing"] or row["not_captured"] for row in rows)
    rows = done.messages.orderBy("sequence", "rm", "message_number").collect()
    assert rows and all("lost" in row["source"] for row in rows)
    unreadable = done.unplaced.where("why = 'unreadable'").collect()
    assert {Path(row["source"]).name for row in unreadable} == {"index.txt"}


@pytest.mark.spark
@pytest.mark.nightly
def test_files_of_an_older_version_are_read_and_replaced_by_delta_tables(spark: SparkSession, tmp_path: Path) -> None:
    capture = wild_capture(3, size=60)
    rows = pa.Table.from_batches([record_batch([one.row for one in capture], arrow_schema(CAPTURE))])
    frame, older = spark.createDataFrame(rows.to_pandas(), CAPTURE), tmp_path / "older"
    done = reassemble(frame, str(tmp_path / "out"))
    for name in ("messages", "sequences", "unplaced"):
        getattr(done, name).write.parquet(str(older / name))
    check(read_reassembled(spark, str(older)), outcomes(capture), capture)
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    for _ in range(2):
        check(reassemble(frame, str(older)), outcomes(capture), capture)
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == before
    assert {path.name for path in (older / "messages").iterdir()} == {"_delta_log", "rows"}


@pytest.mark.spark
def test_nothing_is_nothing_and_another_kind_of_directory_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="contains no reassembled messages"):
        read_reassembled(spark, str(tmp_path / "none"))
    empty = as_capture(spark.createDataFrame([], "body BINARY"), "body")
    done = reassemble(empty, str(tmp_path / "empty"))
    assert [one.count() for one in (done.messages, done.sequences, done.unplaced)] == [0, 0, 0]
    (tmp_path / "streamed" / "batch=0").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="belongs to another stream"):
        reassemble(empty, str(tmp_path / "streamed"))
    with pytest.raises(ConfigurationError, match="no column 'content', only body"):
        as_capture(spark.createDataFrame([], "body BINARY"))


keyed = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["1.0", "1.1"]), st.integers(1, 12), st.binary(max_size=1))
)


@given(rows=keyed, cuts=st.sets(st.integers(0, 60)))
def test_sorted_numbers_become_ranges_and_disputed_numbers_are_found(
    rows: list[tuple[str, str, int, bytes]], cuts: set[int]
) -> None:
    rows.sort(key=lambda row: row[:3])
    schema = pa.schema(
        [("sequence", pa.string()), ("rm", pa.string()), ("number", pa.int64()), ("digest", pa.binary())]
    )
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    batches = [record_batch(rows[a:b], schema) for a, b in pairwise(edges)]
    had: dict[tuple[str, str], AcknowledgementRanges] = defaultdict(AcknowledgementRanges)
    disputed = set()
    for batch in islands(iter(batches)):
        assert batch.schema == arrow_schema(PARTS)
        for row in batch.to_pylist():
            if row["part"] == "had":
                had[row["sequence"], row["rm"]].add_range(row["lower"], row["upper"])
            else:
                disputed.add((row["sequence"], row["rm"], row["lower"]))
    expected: dict[tuple[str, str], AcknowledgementRanges] = defaultdict(AcknowledgementRanges)
    bodies = defaultdict(set)
    for sequence, rm, number, digest in rows:
        expected[sequence, rm].add(number)
        bodies[sequence, rm, number].add(digest)
    assert had == expected
    assert disputed == {key for key, found in bodies.items() if len(found) > 1}


def test_parts_of_a_sequence_may_come_in_several_batches() -> None:
    rows = [("s", "1.1", "had", 1, 3, None), ("s", "1.1", "had", 5, 5, None), ("t", "1.0", "conflict", 2, 2, None)]
    rows.append(("t", "1.0", "had", 1, 2, None))
    batches = [record_batch([row], arrow_schema(PARTS)) for row in rows]
    table = pa.Table.from_batches(_judge(iter(batches))).to_pylist()
    assert pa.Table.from_pylist(table, arrow_schema(SEQUENCES)).num_rows == 2
    assert [(row["sequence"], row["missing"], row["conflicts"]) for row in table] == [
        ("s", [{"lower": 4, "upper": 4}], []),
        ("t", [], [2]),
    ]
