"""Forwarding: a broker's decisions beyond sending, about replies to forwarded requests and messages it cannot forward.

This room owns expiry, refusals, doubt and the dead letters that follow. It creates no Sequence and transmits nothing.
Open ``undeliverable`` first.
"""
