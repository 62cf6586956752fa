"""Those outside the simulated endpoints: readers of queues, writers of sinks, and strangers who forge messages.

This room owns what an actor asks for, and the checks of what it is answered. It knows no simulator, which says when an
actor acts. Open :mod:`holdfast.simulation.actors.reader` first.
"""
