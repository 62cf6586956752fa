"""The destination: the public class of services that receive reliably.

This room owns the registration of handlers, readers, and what a destination says over plain HTTP. It knows no source.
Open ``destination`` first.
"""
