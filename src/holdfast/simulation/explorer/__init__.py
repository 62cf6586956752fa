"""The explorer: every order of events in a world so small that all of them can be tried.

This room owns the choices at each step and the states that were seen. It knows the simulated world and its invariants,
and no randomness. Open :mod:`holdfast.simulation.explorer.exploration` first.
"""
