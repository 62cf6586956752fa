"""The commands that run on Spark, such as ``holdfast land``.

This package handles arguments, progress lines and exit codes; the other packages process the data. Open ``command``
first: all jobs share it.
"""
