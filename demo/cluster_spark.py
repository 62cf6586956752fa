"""The Spark program of the demo of a cluster: it lands each order of the brokers' queue in a table.

    python demo/cluster_spark.py BROKERS OUT

When the file OUT/end exists, it lands what the queue still has, and ends.
"""

import sys
from pathlib import Path

from holdfast.pipeline import session

READER = "to-table"


def main(brokers: str, out: str) -> None:
    spark = session("orders")
    options = {"broker": brokers, "queue": "orders", "reader": READER, "awaySeconds": "120"}
    stream = spark.readStream.format("wsrm").options(**options).load().select("partition", "offset", "body")
    landing = stream.writeStream.format("parquet").option("path", f"{out}/table")
    query = landing.option("checkpointLocation", f"{out}/at").trigger(processingTime="1 second").start()
    end = Path(out, "end")
    while not end.exists():
        query.awaitTermination(1)  # raises the error that ended the query
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
