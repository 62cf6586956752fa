"""The data plane: readers fetch records and commit cursors, writers stage rows and publish batches.

This room owns how records travel over HTTP. It knows neither Spark nor Arrow. Open ``readers`` first, then ``sinks``.
"""
