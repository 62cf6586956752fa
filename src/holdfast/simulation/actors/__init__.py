"""Those outside the simulated endpoints: readers of queues, writers of sinks, and strangers who forge messages.

Each actor is told when to act, and checks what it is answered. This room knows no simulator. Open
:mod:`holdfast.simulation.actors.reader` first.
"""
