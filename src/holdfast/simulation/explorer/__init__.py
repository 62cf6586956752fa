"""The explorer: tries every order of events in a world small enough for that.

This package owns the choices at each step and the set of visited states. It knows the simulated world and its
invariants, and no randomness. Open :mod:`holdfast.simulation.explorer.exploration` first.
"""
