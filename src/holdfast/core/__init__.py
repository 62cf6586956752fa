"""The protocol, sans-IO: it takes messages and ``now``, and returns effects.

This room owns every rule of WS-ReliableMessaging, of queues and of delivery. It knows no clock, randomness, thread,
socket or XML. Open ``protocol`` first, then ``states``; ``receiving`` and ``sending`` are its two halves.
"""
