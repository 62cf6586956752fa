"""The event journal: what happened to each message, in files next to the store.

This package owns the events, their columns, and the files with their retention. It decides nothing, and nothing waits
for it: an endpoint continues if the journal cannot be written. Open ``events`` first, then ``writer``.
"""
