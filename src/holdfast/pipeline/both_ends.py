"""The journals of both ends combined: when the sender received each message, and when it arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def both_ends(sent: DataFrame, arrived: DataFrame) -> DataFrame:
    """Return when each message was received at one end, and when it was in its queue at the other.

    Both ends know a message by its Sequence and number. The sender's journal reports the place in its outbox, or in its
    queue, of the Sequence's number 1. A message sent in two Sequences appears with the one that delivered it.

    Args:
        sent: The journal of a Source, or of a forwarding server, as :func:`~holdfast.pipeline.journal.read_journal`
            returns it.
        arrived: The journal of the destination server.

    Returns:
        A row for each message that was delivered there and has its start in the other journal: ``key`` (the outbox),
            ``sequence``, ``number``, ``submitted_at``, ``delivered_at``, and the ``seconds`` between, as accurate as
            the clocks of the two machines.
    """
    from pyspark.sql import functions as F

    began = (
        sent.where("key IS NOT NULL AND sequence IS NOT NULL AND event IN ('created', 'stands')")
        .selectExpr("worker", "key", "sequence", "queue", "partition", "offset - coalesce(number, 1) + 1 AS start")
        .dropDuplicates(["sequence"])
    )
    came = sent.where("event IN ('submitted', 'delivered')").selectExpr(
        "worker AS w", "queue AS q", "partition AS p", "offset", "coalesce(since, at) AS submitted_at"
    )
    there = (
        arrived.where("event = 'delivered' AND sequence IS NOT NULL")
        .selectExpr("sequence", "number", "at AS delivered_at")
        .dropDuplicates(["sequence", "number"])
    )
    placed = there.join(began, "sequence").selectExpr("*", "start + number - 1 AS place")
    found = placed.join(came, F.expr("offset = place AND q = queue AND p = partition AND w <=> worker"))
    seconds = (F.col("delivered_at").cast("double") - F.col("submitted_at").cast("double")).alias("seconds")
    return found.select("key", "sequence", "number", "submitted_at", "delivered_at", seconds)
