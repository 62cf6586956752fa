"""Ranges of numbers on Spark, of which there may be millions: which point lies in which.

Sorting decides, so that nothing is multiplied: no join on an inequality, no range taken apart into its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST, END, POINT = "_first", "_end", "_point"


def covering(points: DataFrame, at: str, ranges: DataFrame, by: Sequence[str], carried: Sequence[str]) -> DataFrame:
    """Each point with what the range carries that it lies in; null where it lies in none.

    Args:
        points: Have ``by``, and ``at``.
        at: Column of the points' numbers.
        ranges: Have ``by``, ``first`` and ``end`` (the first number behind it), and ``carried``; of those that have the
            same ``by`` no two overlap.
        by: Columns within which numbers are comparable; null is like null.
        carried: Columns of the ranges that become columns of the points.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    told = F.struct("end", *carried)
    left = ranges.select(*by, F.col("first").alias(FIRST), told.alias(END), F.lit(None).alias(POINT))
    right = points.select(*by, F.col(at).alias(FIRST), F.lit(None).alias(END), F.struct(*points.columns).alias(POINT))
    both = left.withColumn(POINT, F.lit(None).cast(right.schema[POINT].dataType)).unionByName(
        right.withColumn(END, F.lit(None).cast(left.schema[END].dataType))
    )
    # A range that begins at a point has it: it comes first.
    window = Window.partitionBy(*by).orderBy(FIRST, F.col(POINT).isNotNull())
    known = F.last(END, ignorenulls=True).over(window.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    found = both.withColumn("_found", known).where(F.col(POINT).isNotNull())
    inside = F.col("_found.end") > F.col(FIRST)
    return found.select(f"{POINT}.*", *(F.when(inside, F.col(f"_found.{name}")).alias(name) for name in carried))


def joined(ranges: DataFrame, by: Sequence[str]) -> DataFrame:
    """The same numbers in as few ranges as can be: ``by``, ``first``, ``end``."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy(*by).orderBy("first", "end")
    before = F.max("end").over(window.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.when(before.isNull() | (F.col("first") > before), 1).otherwise(0)
    numbered = ranges.where("end > first").withColumn("_new", begins)
    numbered = numbered.withColumn(
        "_island", F.sum("_new").over(window.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    )
    islands = numbered.groupBy(*by, "_island").agg(F.min("first").alias("first"), F.max("end").alias("end"))
    return islands.drop("_island")
