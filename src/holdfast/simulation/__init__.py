"""The seeded simulator and the exhaustive explorer of the protocol core, in virtual time.

This room owns simulated endpoints, networks and disks, the invariants that must hold there, and the course of a run. It
runs the shipped core and knows no socket, no real store and no XML. Open :mod:`holdfast.simulation.simulator` first.

- ``nodes/``: the simulated endpoints, their clocks and disks, and the network between them.
- ``promises/``: the invariants, and what must be well when the faults are over.
- ``actors/``: readers, writers and strangers outside the endpoints.
- ``explorer/``: every order of events in small worlds.
"""
