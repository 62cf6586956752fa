"""Simulated endpoints: their clocks, their disks, the history of each disk, and the network between them.

This package owns the effects of a simulated crash. It knows no invariant and does not order events. Open
:mod:`holdfast.simulation.nodes.node` first.
"""
