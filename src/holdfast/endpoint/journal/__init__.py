"""The event journal: what happened to each message, in files beside the store.

This room owns the events, their columns, and the files with their retention. It decides nothing, and nothing waits for
it: an endpoint goes on if it cannot be written. Open ``events`` first, then ``writer``.
"""
