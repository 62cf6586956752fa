"""A pipeline as its file defines it: the plan, its graph, and every check that needs no Spark job.

This package owns the tables of the file and the checks for mistakes in them. It knows nothing of the execution. Open
``plan`` first.
"""
