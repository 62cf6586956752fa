"""Forwarding: what a broker decides beyond sending: replies that go back, and messages that are not sent on.

This room owns expiry, refusals, doubt and the dead letters that follow. It creates no Sequence and transmits nothing.
Open ``undeliverable`` first.
"""
