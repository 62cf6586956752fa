"""The seeded simulator and the exhaustive explorer of the protocol core, in virtual time.

This package owns the simulated endpoints, networks and disks, the invariants checked there, and the driver of a run.
It runs the shipped core. It knows no socket, no real store and no XML. Open :mod:`holdfast.simulation.simulator` first.

- ``nodes/``: the simulated endpoints, their clocks and disks, and the network between them.
- ``promises/``: the invariants, and the conditions that must hold once the faults are over.
- ``actors/``: readers, writers and strangers outside the endpoints.
- ``explorer/``: every order of events in small worlds.
"""
