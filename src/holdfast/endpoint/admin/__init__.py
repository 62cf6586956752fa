"""The admin interface of a server: its listener's routes, their shapes, metrics, and who may ask.

This room owns what operators and readers are told over HTTP. It decides nothing about messages: ``core.steering`` does.
Open ``application`` first. ``resources`` has one file for each kind of thing, ``data_plane`` has what Spark reads and
writes, ``merged`` answers for all workers.
"""
