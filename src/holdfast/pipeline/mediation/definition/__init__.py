"""A pipeline as its file defines it: the plan, its graph, and every check that needs no Spark job.

This package contains the tables of the file and the checks for mistakes in them, but not the execution. Open ``plan``
first.
"""
