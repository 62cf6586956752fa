"""Read a running server's queue with Spark, each message exactly once, and keep the late flights.

    holdfast receive --port 8080 --admin 8081         # messages stay in its queue "inbox"
    python late_flights.py http://127.0.0.1:8081 late

After a restart it reads only new messages, because its position is in the checkpoint. The server keeps the records that
this reader has not committed yet.
"""

import sys

from pyspark.sql.functions import from_xml

from holdfast.pipeline import session

SCHEMA = "carrier STRING, flight INT, delay INT"


def main(broker: str, out: str) -> None:
    spark = session("late flights")
    flights = spark.readStream.format("wsrm").option("broker", broker).option("reader", "late-flights").load()
    late = (
        flights.select("sequence", "message_number", from_xml("body", SCHEMA).alias("flight"))
        .where("flight.delay > 60")
        .select("sequence", "message_number", "flight.*")
    )
    query = (
        late.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", f"{out}.checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.read.parquet(out).groupBy("carrier").count().orderBy("carrier").show()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
