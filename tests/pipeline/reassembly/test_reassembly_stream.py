"""A capture put together as it comes: what a finite one comes to, whatever is cut, killed or late.

Covers pipeline/reassembly/stream.py and pipeline/spark/ddl.py.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from captured import Captured, Key, outcomes, wild_capture
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from holdfast.core.messages import Envelope, Sequence
from holdfast.core.versions import RM, RM_OF_NAME, SOAP, Addressing
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.compaction import compact
from holdfast.pipeline.landing.conversion import convert
from holdfast.pipeline.landing.parquet import ParquetTable
from holdfast.pipeline.landing.tables import table_of
from holdfast.pipeline.reassembly import rows as reassembly_rows
from holdfast.pipeline.reassembly import stream as reassembly_stream
from holdfast.pipeline.reassembly.rows import CAPTURE, DECODED
from holdfast.pipeline.reassembly.sequence import Reassembly
from holdfast.pipeline.reassembly.stream import (
    PACKED,
    SequenceReassembly,
    is_idle,
    pack_batches,
    read_streamed,
    reassemble_stream,
    unpack_batches,
)
from holdfast.pipeline.reassembly.tables import KEY, Reassembled, as_capture, reassemble
from holdfast.pipeline.spark.ddl import arrow_schema, record_batch
from holdfast.wire.encoding.envelopes import encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

TIMEOUT = 60.0


class Stream:
    """The three steps of a stream without Spark: what was given so far."""

    def __init__(self) -> None:
        self.tester = TwsTester(SequenceReassembly(TIMEOUT), timeMode="processingTime")
        self.now = 1_000
        self.rows: list[dict[str, Any]] = []

    def take(self, capture: Iterable[Captured]) -> list[dict[str, Any]]:
        """One micro-batch."""
        self.now += 1_000
        self.tester.setProcessingTime(self.now)
        batch = record_batch([one.row for one in capture], arrow_schema(CAPTURE))
        packed: dict[str, list[Row]] = defaultdict(list)
        for row in pa.Table.from_batches(pack_batches(iter([batch]))).to_pylist():
            packed[row["key"]].append(Row(**row))
        return self._given([row for key, rows in packed.items() for row in self.tester.test(key, rows)])

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Time passes, and nothing comes."""
        self.now += round(seconds * 1_000)
        return self._given(self.tester.setProcessingTime(self.now))

    def _given(self, rows: list[Row]) -> list[dict[str, Any]]:
        values = [tuple(row[name] for name in ("key", "kind", "packed")) for row in rows]
        batch = record_batch(values, arrow_schema(PACKED))
        found = pa.Table.from_batches(unpack_batches(iter([batch])), arrow_schema(DECODED)).to_pylist()
        self.rows += found
        return found

    def messages(self) -> dict[Key, list[tuple[int, bytes]]]:
        found: dict[Key, list[tuple[int, bytes]]] = defaultdict(list)
        for row in self.rows:
            if row["kind"] == "message" and not row["marker"]:
                found[row["sequence"], row["rm"]].append((row["message_number"], row["body"].encode()))
        return dict(found)

    def known(self) -> dict[Key, Reassembly]:
        states = {(row["sequence"], row["rm"]): row["packed"] for row in self.rows if row["kind"] == "state"}
        return {
            (sequence, rm): Reassembly.from_state(sequence, RM_OF_NAME[rm], msgspec.msgpack.decode(packed))
            for (sequence, rm), packed in states.items()
        }


@given(seed=st.integers(0, 2**32), cuts=st.sets(st.integers(0, 90), max_size=6))
def test_a_stream_gives_what_the_plain_model_says_however_it_is_cut(seed: int, cuts: set[int]) -> None:
    capture = wild_capture(seed, size=70)
    stream = Stream()
    edges = [0, *sorted(cuts), len(capture) + 100]
    for start, stop in pairwise(edges):
        stream.take(capture[start:stop])
    before = {key: [number for number, _ in found] for key, found in stream.messages().items()}
    stream.wait(TIMEOUT + 1)
    expected = outcomes(capture)
    assert stream.messages() == {key: one.messages for key, one in expected.items() if one.messages}
    for key, numbers in before.items():  # nothing beyond a gap was given before the time was up
        first_gap = next(number for number in range(1, 100) if number not in expected[key].first)
        assert all(number < first_gap for number in numbers)
    known = stream.known()
    assert known.keys() == expected.keys()
    for key, one in expected.items():
        standing = known[key].standing()
        assert known[key].is_settled
        assert [*standing.ranges] == _ranges(sorted(one.first))
        assert [*standing.missing] == _ranges(one.missing)
        assert (standing.state, standing.ended, standing.seen) == (one.state, one.ended, one.seen)
        repeats = [row for row in stream.rows if row["kind"] == "duplicate" and (row["sequence"], row["rm"]) == key]
        assert len(repeats) == one.seen - len(one.first)
        first = {number: (given.body, given.marker) for number, given in one.first.items()}
        differing = [
            row["message_number"]
            for row in repeats
            if first[row["message_number"]] != (row["body"].encode(), row["marker"])
        ]
        assert sorted(differing) == sorted(one.conflicts)
    unplaced = [row for row in stream.rows if row["kind"] not in ("message", "duplicate", "state")]
    assert sorted((row["kind"], row["source"], row["position"]) for row in unplaced) == sorted(
        (one.why, one.source, one.position) for one in capture if one.why
    )


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def message(number: int, at: int, body: str = "<x/>") -> Captured:
    envelope = Envelope(SOAP.V1_1, Addressing.V2005_08, RM.V1_1, action="urn:a", to="http://x/")
    envelope.sequence, envelope.body = Sequence("urn:s", number), body.encode()
    return Captured(encode(envelope), "f", at, at, ("urn:s", "1.1"), number, envelope.body)


def kinds(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["kind"], row["message_number"]) for row in rows if row["kind"] != "state"]


def test_what_waits_beyond_a_gap_leaves_when_it_closes_with_its_repeats_behind_it() -> None:
    stream = Stream()
    assert kinds(stream.take([message(1, 0), message(3, 1), message(3, 2)])) == [("message", 1)]
    assert kinds(stream.take([message(4, 3), message(1, 4), message(6, 5)])) == [("duplicate", 1)]
    given = [("message", 2), ("message", 3), ("message", 4), ("duplicate", 3)]
    assert kinds(stream.take([message(2, 6)])) == given
    assert kinds(stream.take([message(5, 7)])) == [("message", 5), ("message", 6)]


def test_each_sign_of_life_puts_the_end_off_and_what_comes_after_it_is_late() -> None:
    stream = Stream()
    stream.take([message(2, 0)])
    assert kinds(stream.wait(TIMEOUT - 5)) == []
    stream.take([message(3, 1)])
    assert kinds(stream.wait(TIMEOUT - 5)) == []
    assert kinds(stream.wait(10)) == [("message", 2), ("message", 3)]
    assert kinds(stream.take([message(1, 2), message(2, 3), message(9, 4)])) == [
        ("duplicate", 2),
        ("late", 1),
        ("late", 9),
    ]
    assert kinds(stream.wait(10 * TIMEOUT)) == []
    (known,) = stream.known().values()
    assert (known.standing().late, known.standing().missing) == (2, ((1, 1),))


def test_what_waits_is_only_added_to_until_the_gap_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each batch would write all that waits again."""
    stream = Stream()
    processor = stream.tester.processor
    writes: list[int] = []
    append = processor._held.appendList
    monkeypatch.setattr(processor._held, "appendList", lambda packs: (writes.append(len(packs)), append(packs)))
    monkeypatch.setattr(processor._held, "get", lambda: pytest.fail("nothing has closed the gap"))
    for number in range(2, 12):
        stream.take([message(number, number)])
    assert writes == [1] * 10


def test_packs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly_stream, "BATCH_BYTES", 1_000)
    stream = Stream()
    given = stream.take([message(number, number, f"<x>{'y' * 100}</x>") for number in range(1, 31)])
    assert kinds(given) == [("message", number) for number in range(1, 31)]
    batch = record_batch([message(number, number).row for number in range(1, 31)], arrow_schema(CAPTURE))
    assert pa.Table.from_batches(pack_batches(iter([batch] * 20))).num_rows > 60
    assert reassembly_rows.BATCH_BYTES > 1_000


def put(directory: Path, name: int, capture: Iterable[Captured]) -> None:
    """A file of a capture, older files first."""
    directory.mkdir(exist_ok=True)
    batch = record_batch([one.row for one in capture], arrow_schema(CAPTURE))
    file = directory / f"{name:03}.parquet"
    pq.write_table(pa.Table.from_batches([batch]), file)
    os.utime(file, (1_700_000_000 + name, 1_700_000_000 + name))


def start(spark: SparkSession, directory: Path, **how: Any) -> StreamingQuery:
    rows = spark.readStream.schema(CAPTURE).option("maxFilesPerTrigger", 1).parquet(str(directory / "captured"))
    how = {"checkpoint": str(directory / "checkpoint"), "timeout": 3_600, **how}
    return reassemble_stream(rows, str(directory / "out"), **how)


def run_until(query: StreamingQuery, is_done: Callable[[StreamingQuery], bool]) -> None:
    """Let it run until that holds, however long a busy machine takes, and stop it; one that fails raises why."""
    try:
        while not is_done(query):
            assert not query.awaitTermination(0.2), "it has ended"
    finally:
        query.stop()


ORDER = ("sequence", "rm")


def ordered(done: Reassembled) -> list[DataFrame]:
    return [done.messages.orderBy(*KEY), done.sequences.orderBy(*ORDER), done.unplaced.orderBy(*PLACES)]


PLACES = ("why", "source", "position", "problem", "raw")


@pytest.mark.nightly
@pytest.mark.spark
def test_on_spark_a_restarted_stream_equals_a_batch_and_releases_messages_in_order(
    spark: SparkSession,
    tmp_path: Path,
    patiently: Callable[[Callable[[], None]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It begins with a Parquet table, as an older version did, and continues after its conversion."""
    capture, out = wild_capture(11, size=200), str(tmp_path / "out")
    for name in range(4):
        put(tmp_path / "captured", name, capture[name * 60 : (name + 1) * 60 if name < 3 else None])
        with monkeypatch.context() as patch:
            if name == 1:
                patch.setattr(reassembly_stream, "table_of", ParquetTable)
            if name == 3:
                assert table_of(spark, out).kind == "parquet"
                rows = convert(spark, out)
                assert rows.before == rows.rows > 0
            if name % 2:
                patiently(lambda: run_until(start(spark, tmp_path), is_idle))
    assert table_of(spark, out).kind == "delta"
    found = [rows.collect() for rows in ordered(read_streamed(spark, str(tmp_path / "out")))]
    assert compact(spark, str(tmp_path / "out"), keep=0).made > 0
    done = read_streamed(spark, str(tmp_path / "out"))
    assert [rows.collect() for rows in ordered(done)] == found
    expected = outcomes(capture)
    found: dict[Key, list[tuple[int, bytes]]] = defaultdict(list)
    for row in done.messages.orderBy(*KEY).collect():
        found[row["sequence"], row["rm"]].append((row["message_number"], row["body"].encode()))
    in_order = {(row["sequence"], row["rm"]): row["in_order_to"] for row in done.sequences.collect()}
    assert in_order.keys() == expected.keys()
    for key, one in expected.items():
        assert found[key] == [(number, body) for number, body in one.messages if number <= in_order[key]]
    assert any(found.values())


@pytest.mark.nightly
@pytest.mark.spark
def test_a_batch_in_the_table_but_not_in_sparks_log_is_repeated_without_effect(
    spark: SparkSession, tmp_path: Path, patiently: Callable[[Callable[[], None]], None]
) -> None:
    """Its state is committed again, which Spark demands of every batch."""
    put(tmp_path / "captured", 0, wild_capture(13, size=60))
    patiently(lambda: run_until(start(spark, tmp_path), is_idle))
    messages = read_streamed(spark, str(tmp_path / "out")).messages.orderBy(*KEY).collect()
    newest, _ = table_of(spark, str(tmp_path / "out")).newest() or (-1, "")
    for log, first in (("commits", newest), ("offsets", newest + 1)):
        for path in list((tmp_path / "checkpoint" / log).iterdir()):
            if path.name.isdigit() and int(path.name) >= first:
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
                path.unlink()
    patiently(lambda: run_until(start(spark, tmp_path), is_idle))
    assert read_streamed(spark, str(tmp_path / "out")).messages.orderBy(*KEY).collect() == messages


@pytest.mark.nightly
@pytest.mark.spark
def test_on_spark_a_stream_comes_to_what_a_batch_does_once_the_time_is_up(
    spark: SparkSession, tmp_path: Path, patiently: Callable[[Callable[[], None]], None]
) -> None:
    put(tmp_path / "captured", 0, wild_capture(12, size=200))
    whole = reassemble(as_capture(spark.read.parquet(str(tmp_path / "captured"))), str(tmp_path / "batch"))
    messages = whole.messages.orderBy(*KEY).collect()
    # The first idle batch is the first in which the time may be up for all that the one before took.
    patiently(
        lambda: run_until(
            start(spark, tmp_path, timeout=0.001),
            lambda query: is_idle(query) and (query.lastProgress or {})["batchId"] >= 2,
        )
    )
    done = read_streamed(spark, str(tmp_path / "out"))
    assert done.messages.orderBy(*KEY).collect() == messages
    assert done.sequences.orderBy(*ORDER).collect() == whole.sequences.orderBy(*ORDER).collect()
    unplaced = [one.unplaced.select(*PLACES).orderBy(*PLACES).collect() for one in (done, whole)]
    assert unplaced[0] == unplaced[1]


@pytest.mark.spark
def test_a_checkpoint_that_is_not_the_tables_own_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "out" / "batch=0").mkdir(parents=True)  # of an older version, without its note: not complete
    put(tmp_path / "captured", 0, [])
    with pytest.raises(ConfigurationError, match=r"the checkpoint .* is new"):
        start(spark, tmp_path)
    with pytest.raises(ConfigurationError, match="contains no reassembled messages"):
        read_streamed(spark, str(tmp_path / "out"))
    (tmp_path / "out" / "messages").mkdir()
    with pytest.raises(ConfigurationError, match="another run without a stream"):
        start(spark, tmp_path)
    shutil.rmtree(tmp_path / "out")
    for log in ("offsets", "commits"):
        (tmp_path / "checkpoint" / log).mkdir(parents=True)
        (tmp_path / "checkpoint" / log / "0").touch()
    with pytest.raises(ConfigurationError, match=r"is at batch 0, but .*out is empty"):
        start(spark, tmp_path)
