"""Records that a sink sent again after a crash, on a real Spark, without Kafka: each is read once, whatever was cut.

Covers pipeline/mediation/kafka/records.py and pipeline/mediation/kafka/repeated_records.py.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.plan import SinkPlan
from holdfast.pipeline.mediation.kafka.cluster import CONNECTOR, check_connector
from holdfast.pipeline.mediation.kafka.records import as_records, as_rows
from holdfast.pipeline.mediation.kafka.repeated_records import each_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def records(spark: SparkSession, *told: tuple[int, int, bytes | None, dict[str, bytes] | None]) -> DataFrame:
    """Partition, offset, value, headers."""
    made = [
        (b"k", value, "t", partition, offset, None, 0, headers and list(headers.items()))
        for partition, offset, value, headers in told
    ]
    return spark.createDataFrame(made, RECORDS)


def sent(writer: str, batch: int, row: int) -> dict[str, bytes]:
    return {
        "holdfast_writer": writer.encode(),
        "holdfast_batch": b"%d" % batch,
        "holdfast_row": b"%d" % row,
    }


def read_in(spark: SparkSession, batches: list[list[Any]]) -> list[tuple[int, int]]:
    """Where the rows stood that were taken, of all batches."""
    before, found = None, []
    for batch in batches:
        fresh, seen = each_once(as_rows(records(spark, *batch)), before)
        found += [(row["partition"], row["offset"]) for row in fresh.collect()]
        # As the next batch finds it: read back from a file.
        before = spark.createDataFrame(seen.collect(), seen.schema)
    return sorted(found)


@pytest.mark.nightly
def test_a_record_that_was_sent_again_is_read_once_wherever_a_batch_ends(spark: SparkSession) -> None:
    # Batch 1 was cut after two rows and sent again; batch 2 follows; a delayed record of batch 1 comes after that.
    lives = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 0), (1, 1), (1, 2), (2, 0), (1, 2), (2, 1)]
    told = [(0, offset, b"x", sent("w", *one)) for offset, one in enumerate(lives)]
    other = [(0, 100, b"x", sent("v", 0, 0)), (0, 101, b"x", None), (0, 102, b"x", None)]
    other += [(1, 0, b"x", sent("w", 1, 0)), (0, 103, b"x", {"holdfast_writer": b"w", "holdfast_batch": b"no"})]
    once = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 6), (0, 7), (0, 9)]
    once += [(0, 100), (0, 101), (0, 102), (0, 103), (1, 0)]
    assert read_in(spark, [told[:5], [*told[5:8], *other], told[8:]]) == sorted(once)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_each_record_of_a_sink_that_is_cut_at_random_is_read_once(spark: SparkSession, seed: int) -> None:
    draw = random.Random(seed)
    log: list[Any] = []
    expected = set()
    for batch in range(6):
        rows = list(range(draw.randint(1, 5)))
        expected |= {(batch, row) for row in rows}
        for _ in range(draw.randint(0, 2)):
            log += [(batch, row) for row in draw.sample(rows, draw.randint(0, len(rows)))]
        log += [(batch, row) for row in draw.sample(rows, len(rows))]
    told = [(0, offset, b"x", sent("w", *one)) for offset, one in enumerate(log)]
    cuts = sorted(draw.sample(range(len(told) + 1), 3))
    batches = [told[start:end] for start, end in zip([0, *cuts], [*cuts, len(told)], strict=True)]
    taken = [log[offset] for _, offset in read_in(spark, batches)]
    assert sorted(taken) == sorted(expected)


def test_a_value_that_is_no_text_stays_as_bytes_and_headers_become_columns(spark: SparkSession) -> None:
    headers = {"message_id": b"a", "action": b"\xff", "message_number": b"7", "sequence": b"urn:s"}
    rows = as_rows(
        records(spark, (0, 0, b"\xff", headers), (0, 1, b"<a/>", {"message_number": b"x"}), (0, 2, None, None))
    )
    first, second, third = rows.orderBy("offset").collect()
    assert (first["queue"], first["key"], first["body"], bytes(first["raw_body"])) == ("t", "k", None, b"\xff")
    assert (first["message_id"], first["action"], first["message_number"]) == ("a", None, 7)
    assert (second["body"], second["raw_body"], second["message_number"]) == ("<a/>", None, None)
    assert (third["body"], third["raw_body"], third["message_id"]) == (None, None, None)


def test_headers_of_a_sink_are_a_map_and_cannot_say_the_identity(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'b' AS body, 'm' AS message_id, map('tenant', 't', 'holdfast_row', '0') AS own")
    (made,) = as_records(rows, SinkPlan("out", kafka="k:1", topic="t", headers="own")).collect()
    assert [(key, bytes(value)) for key, value in made["holdfast_headers"]] == [("message_id", b"m"), ("tenant", b"t")]
    with pytest.raises(ConfigurationError, match="the headers of the sink out are string"):
        as_records(rows, SinkPlan("out", kafka="k:1", topic="t", headers="body"))


def test_a_missing_connector_is_told_with_what_to_write(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError) as missing:
        check_connector(spark)
    assert f"Add --packages {CONNECTOR}:{spark.version} to the command" in missing.value.remedy
