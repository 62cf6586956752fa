"""A running pipeline: its frames, its outputs, its batches and their settled results.

This package defines the order of a batch's steps, so that each takes effect once. Open ``run`` first.
"""
