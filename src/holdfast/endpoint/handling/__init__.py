"""Handling: handlers of messages, for destinations and for sources with callbacks.

This room owns the handlers, their threads, and dead letters as operators see them. It knows neither a destination nor a
source. Open ``dispatcher`` first.
"""
