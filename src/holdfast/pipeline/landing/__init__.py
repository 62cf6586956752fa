"""Landed tables: a queue's messages as a Delta or Parquet table, each batch once.

This package contains both kinds of table, publication, compaction, conversion, and the widening of types. It does not
depend on mediation or commands. Open ``tables`` first.
"""

from holdfast.pipeline.landing.tables import LandedBatch, land, read_landed, reland

__all__ = ["LandedBatch", "land", "read_landed", "reland"]
