"""Reading with Spark: batches and streams of queues, of dead letters and of the journal.

This package owns options, offset ranges, tasks and columns of records. It knows neither bodies, the writer nor
landed tables. Open ``stream`` first; executors run ``tasks``.
"""
