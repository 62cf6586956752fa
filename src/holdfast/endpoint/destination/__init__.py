"""The destination: the public class of services that receive reliably.

This room owns handlers and their threads, readers, dead letters, and what a destination says over plain HTTP. It
knows no source. Open ``destination`` first, then ``dispatcher``.
"""
