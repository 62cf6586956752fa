"""A year of departures, as SOAP messages in a broker's queue, into tables; late ones go back out as reliable messages.

    holdfast broker --config departures.toml                   # in this directory
    python departures.py http://127.0.0.1:8081 out tables      # tables: airlines, airports, planes, weather as CSV
    python departures.py http://127.0.0.1:8081 out tables --available-now

Three queries, each exactly once, and each with its own checkpoint. You can kill the program at any time and start it
again. In a clone, python -m demo.whole makes the tables, sends the departures, runs this program, and kills each part.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline import session

LATE = 120  # minutes
DEPARTURE = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)


def departures(spark: SparkSession, broker: str, reader: str) -> DataFrame:
    """Read the queue as a stream of departures, with a column for each field."""
    stream = spark.readStream.format("wsrm").option("broker", broker).option("queue", "departures")
    messages = stream.option("reader", reader).option("maxRowsPerBatch", 50_000).load()
    place = ("partition", "offset", "sequence", "message_number", "received_at")
    return messages.select(*place, F.from_xml("body", DEPARTURE).alias("departure")).select(*place, "departure.*")


def table(spark: SparkSession, tables: str, name: str, *key: str) -> DataFrame:
    """Read a table of the same data set, one row for each key; the names of its other columns begin with its name."""
    rows = spark.read.csv(f"{tables}/{name}.csv", header=True, nullValue="NA").dropDuplicates(key)
    return rows.select(
        *(column if column in key else F.col(column).alias(f"{name}_{column}") for column in rows.columns)
    )


def enriched(flights: DataFrame, tables: str) -> DataFrame:
    """Join each departure with its airline, its destination, its plane, and the weather of its hour."""
    spark = flights.sparkSession
    airports = table(spark, tables, "airports", "faa").withColumnRenamed("faa", "dest")
    weather = table(spark, tables, "weather", "origin", "time_hour")
    return (
        flights.join(table(spark, tables, "airlines", "carrier"), "carrier", "left")
        .join(airports, "dest", "left")
        .join(table(spark, tables, "planes", "tailnum"), "tailnum", "left")
        .join(weather, ["origin", "time_hour"], "left")
    )


def delays(flights: DataFrame) -> DataFrame:
    """Count the departures by hour and airport, with their delays."""
    late = F.col("dep_delay")
    hours = flights.groupBy(F.window(F.to_timestamp("time_hour"), "1 hour").alias("hour"), "origin")
    return hours.agg(F.count(late).alias("departed"), F.avg(late).alias("mean"), F.max(late).alias("most"))


def alerts(flights: DataFrame) -> DataFrame:
    """Make a message for each late departure."""
    said = F.struct("carrier", "flight", "origin", "dest", "time_hour", "sched_dep_time", "dep_delay")
    body = F.to_xml(said, {"rowTag": "alert"}).alias("body")
    return flights.where(F.col("dep_delay") > LATE).select(body, F.lit("urn:flights:Late").alias("action"), "carrier")


def main(broker: str, out: str, tables: str, *how: str) -> None:
    spark = session("departures")
    trigger = {"availableNow": True} if "--available-now" in how else {"processingTime": "5 seconds"}

    def query(name: str, rows: DataFrame):
        return rows.writeStream.queryName(name).option("checkpointLocation", f"{out}/at/{name}").trigger(**trigger)

    whole = enriched(departures(spark, broker, "to-table"), tables)
    landed = query("landed", whole).format("parquet").start(f"{out}/landed")

    by_hour = query("delays", delays(departures(spark, broker, "to-delays"))).outputMode("complete")
    hourly = by_hour.foreachBatch(lambda rows, _: rows.write.mode("overwrite").parquet(f"{out}/delays")).start()

    sink = query("alerts", alerts(departures(spark, broker, "to-alerts"))).format("wsrm").option("broker", broker)
    sink = sink.option("queue", "alerts").option("sinkId", "late-departures").option("sequenceKey", "carrier")
    alerted = sink.start()

    spark.streams.awaitAnyTermination()  # raises the error that ended a query
    for each in (landed, hourly, alerted):
        each.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
