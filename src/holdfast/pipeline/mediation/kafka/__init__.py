"""Kafka as an input and an output of pipelines.

This room owns topics, offsets and records that may come twice. It knows no message of a server. Open ``records`` first.
"""
