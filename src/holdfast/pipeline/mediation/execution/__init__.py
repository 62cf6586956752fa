"""A running pipeline: its frames, its outputs, its batches and their settled results.

This package owns the order of a batch's steps, so that each takes effect once. It knows no command. Open ``run`` first.
"""
