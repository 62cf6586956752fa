"""Landed tables: a queue's messages as a Delta or Parquet table, each batch once.

This package owns both kinds of table, publication, compaction, conversion, and the widening of types. It knows no
mediation and no command. Open ``tables`` first.
"""

from holdfast.pipeline.landing.tables import LandedBatch, land, read_landed, reland

__all__ = ["LandedBatch", "land", "read_landed", "reland"]
