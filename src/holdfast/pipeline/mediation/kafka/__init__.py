"""Kafka as an input and an output of pipelines.

This package handles topics, offsets and records that may arrive twice. Open ``records`` first.
"""
