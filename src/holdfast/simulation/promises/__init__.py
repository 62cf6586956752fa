"""Conditions on every simulated world: invariants, checked after each event, and liveness, checked at the end.

The invariants read ledgers and nodes and change neither. They do not depend on the simulator. Open
:mod:`holdfast.simulation.promises.invariants` first.
"""
