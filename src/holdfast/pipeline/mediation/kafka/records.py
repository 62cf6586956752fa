"""Kafka records as rows, and rows as Kafka records, through Spark's own connector.

Each record of a sink has an identity: the sink and its checkpoint, the batch, and the row in it. The identity is stored
with the results of the batch before any record is sent, so a repeated batch has the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.kafka_options import sink_options
from holdfast.pipeline.mediation.definition.plan import SinkPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WRITER, BATCH, ROW = "holdfast_writer", "holdfast_batch", "holdfast_row"
"""Headers with a record's identity."""
_CARRIED = ("message_id", "action", "relates_to", "reply_to", "sequence", "message_number")
"""Headers about the message that a record came from: columns of a source, and of these rows."""
_TOLD = ("action", "message_id", "relates_to", "reply_to")
"""The subset of these that are keys of a sink."""
_PLACE = ("queue", "partition", "offset")
_KEY, _VALUE, _HEADERS, _ORDER = "holdfast_key", "holdfast_value", "holdfast_headers", "holdfast_order"
_HEADER = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


def header(name: str) -> Column:
    """Return the text of a record's last header with this name; null without one, or if it is not UTF-8."""
    from pyspark.sql import functions as F

    found = F.filter("headers", lambda one: one["key"] == name)
    return F.try_validate_utf8(F.try_element_at(found, F.lit(-1))["value"].cast("string"))


def as_rows(records: DataFrame) -> DataFrame:
    """Return records of Spark's Kafka source, with the column names of a queue's messages.

    ``body`` and ``key`` are null if the bytes are not UTF-8; ``raw_body`` and ``raw_key`` then contain the bytes.
    """
    from pyspark.sql import functions as F

    def text(name: str) -> Column:
        return F.try_validate_utf8(F.col(name).cast("string"))

    def raw(name: str) -> Column:
        return F.when(text(name).isNull(), F.col(name))

    return records.select(
        F.col("topic").alias("queue"),
        "partition",
        "offset",
        text("key").alias("key"),
        *[header(name).alias(name) for name in _CARRIED[:-1]],
        header(_CARRIED[-1]).try_cast("bigint").alias(_CARRIED[-1]),
        F.col("timestamp").alias("delivered_at"),
        text("value").alias("body"),
        "headers",
        raw("key").alias("raw_key"),
        raw("value").alias("raw_body"),
    )


def as_records(rows: DataFrame, sink: SinkPlan) -> DataFrame:
    """Return rows as a Kafka sink sends them: key, value, headers, and the ordering columns.

    Raises:
        ConfigurationError: The headers are neither a MAP nor in Kafka's form.
    """
    from pyspark.sql import functions as F

    told = {name: getattr(sink, name) for name in _TOLD}
    if told["action"] == "action" and "action" not in rows.columns:
        told["action"] = ""  # the default of the key
    carried = {
        name: F.expr(told[name]) if told.get(name) else F.col(name)
        for name in _CARRIED
        if told.get(name) or name in rows.columns
    }
    made = [_one_header(name, value.cast("string")) for name, value in carried.items()]
    known = F.filter(F.array(*made).cast(_HEADER), lambda one: one["value"].isNotNull())
    order = sink.order or (_PLACE if set(_PLACE) <= set(rows.columns) else ())
    fields = {
        _KEY: F.expr(sink.key).cast("string") if sink.key else F.lit(None).cast("string"),
        _VALUE: F.expr(sink.body).cast("binary"),
        _HEADERS: F.concat(known, _headers_of(rows, sink)) if sink.headers else known,
        **{f"{_ORDER}_{number}": F.expr(one) for number, one in enumerate(order)},
        f"{_ORDER}_row": F.monotonically_increasing_id(),
    }
    return rows.select(*[column.alias(name) for name, column in fields.items()])


def identified(records: DataFrame) -> DataFrame:
    """Add a number to each record that is unique in the batch. Store the result, because a repeated call gives other
    numbers."""
    from pyspark.sql import functions as F

    return records.withColumn(ROW, F.monotonically_increasing_id())


def _one_header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def _headers_of(rows: DataFrame, sink: SinkPlan) -> Column:
    """Return the headers that a sink's SQL defines, without those of the identity."""
    from pyspark.sql import functions as F

    told: Column = F.expr(sink.headers)
    kind = rows.select(told).schema.fields[0].dataType
    if isinstance(kind, T.MapType):
        told = F.transform(
            F.map_entries(told),
            lambda one: F.struct(
                one["key"].cast("string").alias("key"), one["value"].cast("string").cast("binary").alias("value")
            ),
        )
    elif kind.simpleString() != "array<struct<key:string,value:binary>>":
        raise ConfigurationError(
            f"the headers of the sink {sink.name} are {kind.simpleString()}",
            remedy="Use a MAP of names and texts, such as map('tenant', tenant)",
        )
    taken = (WRITER, BATCH, ROW, *_CARRIED)
    return F.filter(F.coalesce(told, F.array().cast(_HEADER)), lambda one: ~one["key"].isin(*taken))


def send_records(records: DataFrame, sink: SinkPlan, writer: str, batch: int) -> None:
    """Send a batch to Kafka: every record at each call; records of one key stay in order."""
    from pyspark.sql import functions as F

    order = [name for name in records.columns if name.startswith(_ORDER)]
    identity = {WRITER: F.lit(writer), BATCH: F.lit(str(batch)), ROW: F.col(ROW).cast("string")}
    ordered = records
    if sink.key:
        ordered = records.repartition(records[_KEY]).sortWithinPartitions(*order, ROW)
    own: Any = F.array(*[_one_header(name, value) for name, value in identity.items()]).cast(_HEADER)
    ordered.select(
        # Without a key, a repeated record could go to another partition.
        F.coalesce(F.col(_KEY), F.concat_ws("/", *identity.values())).alias("key"),
        F.col(_VALUE).alias("value"),
        F.concat(F.col(_HEADERS), own).alias("headers"),
    ).write.format("kafka").options(**sink_options(sink)).save()
