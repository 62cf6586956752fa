"""The commands that run on Spark, such as ``holdfast land``.

This room owns arguments, progress lines and exit codes. It knows no row: what a job does with data is in the other
rooms. Open ``command`` first: it is what all jobs share.
"""
