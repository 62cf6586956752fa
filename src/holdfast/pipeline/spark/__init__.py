"""Common code for Spark: Java, file systems, checkpoints, types and Python workers.

This package hides the differences between Spark's modes and versions. It uses no messages, bodies or tables. Open
``files`` first.
"""
