"""The source and the sink under Spark Connect: nothing of ours is registered, and nothing needs a JVM of this process.

python connect_child.py BROKER DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def main(broker: str, directory: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    source = {"broker": broker, "queue": "in"}
    read = spark.read.format("wsrm").options(**source).load().count()
    rows = spark.range(0, 6, 1, 2).selectExpr("if(id = 4, 'no', concat('<n>', id, '</n>')) AS body", "id")
    write = rows.write.format("wsrm").mode("append").options(broker=broker, queue="out", action="urn:a")
    for _ in range(2):
        write.options(sequenceKey="id", idempotencyKey="k", refused=f"{directory}/refused").save()
    stream = spark.readStream.format("wsrm").options(**source, reader="spark", maxRowsPerBatch="2").load()
    sent = stream.select("body", "action").writeStream.format("wsrm").options(broker=broker, queue="out")
    query = sent.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()

    def send(batch: DataFrame, batch_id: int) -> None:
        write = batch.select("body", "action").write.format("wsrm").mode("append").options(broker=broker, queue="out")
        write.options(sinkId="each", queryId="connect", batchId=str(batch_id)).save()

    stream = spark.readStream.format("wsrm").options(**source, reader="each", maxRowsPerBatch="2").load()
    each = stream.writeStream.foreachBatch(send).option("checkpointLocation", f"{directory}/each")
    each.trigger(availableNow=True).start().awaitTermination()
    refused = [row.id for row in spark.read.parquet(f"{directory}/refused").collect()]
    said = {"read": read, "query": query.id, "refused": refused}
    (Path(directory) / "said.json").write_text(json.dumps(said), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
