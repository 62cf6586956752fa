"""The demo's summary by Spark: the delay of each airline. ``python -m demo.summary LANDED``.

It prints one JSON object for each airline, the one with the longest delay first. It reads only the landed table.
"""

from __future__ import annotations

import json
import sys


def summarise(landed: str) -> list[dict[str, object]]:
    """Return for each airline: departures, cancellations, the mean delay in minutes, and the share delayed by an hour
    or more.

    Args:
        landed: Directory that ``holdfast land`` wrote.
    """
    from pyspark.sql import functions as F

    from holdfast.pipeline import session
    from holdfast.pipeline.landing.tables import read_landed

    spark = session("holdfast demo: delays")
    try:
        delay = F.col("dep_delay")
        by_airline = (
            read_landed(spark, landed)
            .groupBy("carrier")
            .agg(
                F.count("*").alias("departures"),
                F.sum(delay.isNull().cast("int")).alias("cancelled"),
                F.round(F.avg(delay), 1).alias("mean_delay"),
                F.round(100 * F.avg((delay >= 60).cast("int")), 1).alias("hour_late"),
            )
            .orderBy(F.desc_nulls_last("mean_delay"), "carrier")
        )
        return [row.asDict() for row in by_airline.collect()]
    finally:
        spark.stop()


if __name__ == "__main__":
    for airline in summarise(sys.argv[1]):
        print(json.dumps(airline))
