"""The explorer: every order of events in a world so small that all of them can be tried.

This room uses the simulated world and its invariants, and draws nothing at random. Open
:mod:`holdfast.simulation.explorer.exploration` first.
"""
