"""Conditions on every simulated world: invariants, checked after each event, and liveness, checked at the end.

This package owns the invariants, which read ledgers and nodes and change neither. It knows no simulator. Open
:mod:`holdfast.simulation.promises.invariants` first.
"""
