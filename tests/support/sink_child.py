"""A program with a query that reads a queue and sends its rows on: killed, and started again, by who tests that.
With refused=DIRECTORY among the settings some rows cannot be sent, and go to a table there.

python sink_child.py MASTER BROKER CHECKPOINT [SETTING=VALUE ...]
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from holdfast.pipeline import session


def main(master: str, broker: str, checkpoint: str, *settings: str) -> None:
    given = dict(setting.split("=", 1) for setting in settings)
    refused = given.pop("refused", "")
    spark = session("sink child", master, **{"spark.driver.memory": "512m", **given})
    reader = spark.readStream.format("wsrm").options(broker=broker, queue="inbox", reader="r", maxRowsPerBatch="10")
    rows = reader.option("tasks", "2").load().selectExpr("body", "sequence AS carrier", "action")
    if refused:  # every fifth message of a Sequence becomes a row that cannot be sent
        rows = rows.withColumn("body", F.expr("if(body LIKE '%3</%' OR body LIKE '%8</%', substr(body, 2), body)"))
    rows = rows.repartition(2, "carrier")  # by its key, which keeps its order
    writer = rows.writeStream.format("wsrm").options(broker=broker, queue="out", sequenceKey="carrier")
    writer = writer.option("refused", refused) if refused else writer
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
