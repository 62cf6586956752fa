"""A program with a query that reads a queue and sends its rows on: killed, and started again, by who tests that.

python sink_child.py MASTER BROKER CHECKPOINT [SETTING=VALUE ...]
"""

from __future__ import annotations

import sys

from holdfast.pipeline import session


def main(master: str, broker: str, checkpoint: str, *settings: str) -> None:
    given = dict(setting.split("=", 1) for setting in settings)
    spark = session("sink child", master, **{"spark.driver.memory": "512m", **given})
    reader = spark.readStream.format("wsrm").options(broker=broker, queue="inbox", reader="r", maxRowsPerBatch="10")
    rows = reader.option("tasks", "2").load().selectExpr("body", "sequence AS carrier", "action")
    rows = rows.repartition(2, "carrier")  # by its key, which keeps its order
    writer = rows.writeStream.format("wsrm").options(broker=broker, queue="out", sequenceKey="carrier")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
