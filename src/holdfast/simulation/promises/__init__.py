"""What must hold in every simulated world, after every event (invariants) and at the end (liveness).

This room owns the invariants; it reads ledgers and nodes, and changes neither. It knows no simulator. Open
:mod:`holdfast.simulation.promises.invariants` first.
"""
