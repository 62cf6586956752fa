"""Reading with Spark: batches and streams of queues, of dead letters and of the journal.

This room owns options, offset ranges, tasks and columns of records. It knows no bodies, no writer and no landed table.
Open ``stream`` first; ``tasks`` is what executors run.
"""
