"""The commands that run on Spark, such as ``holdfast land``.

This package owns arguments, progress lines and exit codes. It knows no row: the other packages process the data. Open
``command`` first: all jobs share it.
"""
