"""Common code for Spark: Java, file systems, checkpoints, types and Python workers.

This package owns the differences between Spark's modes and versions. It knows no messages, bodies or tables. Open
``files`` first.
"""
