"""The clients of a server: its data plane, its journal and its admin interface, each over blocking HTTP.

This room owns requests, retries, offsets and the errors a server's answer can cause. It knows nothing of Spark, of
pipelines or of the broker. Open ``data_plane`` first; ``admin`` is the client of the admin interface.
"""
