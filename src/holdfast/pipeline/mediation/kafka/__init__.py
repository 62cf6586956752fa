"""Kafka as an input and an output of pipelines.

This package owns topics, offsets and records that may arrive twice. It knows no message of a server. Open ``records``
first.
"""
