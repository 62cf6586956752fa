"""Commands that show and change what a store or a running server has: queues, Sequences, dead letters and so on.

This room owns how things are listed, found by the beginning of their names, and confirmed before they are destroyed. It
decides nothing about messages. Open ``queues`` first; ``listing`` and ``operations`` are what the commands share.
"""
