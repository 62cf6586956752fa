"""The clients of a server: its data plane, its journal and its admin interface, each over blocking HTTP.

This room owns requests, retries, offsets and the errors a server's answer can cause. It knows nothing of Spark, of
pipelines or of the broker. Open ``data_plane`` first. ``admin_client`` asks an admin interface: ``admin`` connects it
to a server, ``stopped_store`` to a store that no server runs.
"""
