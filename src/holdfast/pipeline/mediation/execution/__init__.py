"""A pipeline while it runs: its frames, its outputs, its batches and what has settled.

This room owns the order of a batch's steps, so that each takes effect once. It knows no command. Open ``run`` first.
"""
