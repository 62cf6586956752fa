"""A pipeline as its file defines it: the plan, its graph, and every check that needs no Spark job.

This room owns the tables of the file and their mistakes. It knows nothing of how a pipeline runs. Open ``plan`` first.
"""
