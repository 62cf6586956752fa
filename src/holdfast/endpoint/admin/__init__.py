"""The admin interface of a server: its listener's routes, their shapes, the metrics and the access checks.

This package owns everything that operators and readers receive over HTTP. It decides nothing about messages:
``core.steering`` does. Open ``application`` first. ``resources`` has one file for each kind of resource, ``data_plane``
holds the endpoints that Spark reads and writes, ``merged`` answers for all workers, ``stopped`` answers from a store
that no server runs.
"""
