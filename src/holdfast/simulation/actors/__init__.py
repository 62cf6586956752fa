"""Actors outside the simulated endpoints: readers of queues, writers of sinks, and strangers that forge messages.

This package owns the actors' requests and the checks of the answers. It knows no simulator: the simulator decides when
an actor acts. Open :mod:`holdfast.simulation.actors.reader` first.
"""
