"""A pipeline while it runs: its frames, its outputs, its batches and what has settled.

This room knows no command. Open ``run`` first.
"""
