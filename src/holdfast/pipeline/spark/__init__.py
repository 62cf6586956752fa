"""What every part of the pipeline needs of Spark: Java, file systems, checkpoints, types and Python workers.

This room owns the differences between Spark's modes and versions. It knows no message, no body and no table. Open
``files`` first.
"""
