"""Actors outside the simulated endpoints: readers of queues, writers of sinks, and strangers that forge messages.

Each actor makes its own requests and checks the answers. The simulator, which this package does not import, decides
when an actor acts. Open :mod:`holdfast.simulation.actors.reader` first.
"""
