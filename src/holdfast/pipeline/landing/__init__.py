"""Landed tables: a queue's messages as Parquet or Delta, each batch once.

This room owns directories, publication, compaction and types that become wider. It knows no mediation and no command.
Open ``tables`` first.
"""

from holdfast.pipeline.landing.tables import LandedBatch, land, read_landed, reland

__all__ = ["LandedBatch", "land", "read_landed", "reland"]
