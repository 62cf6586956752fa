"""Simulated endpoints: their clocks, their disks, the history of each disk, and the network between them.

This package decides what a simulated crash destroys. It contains no invariants and does not order events. Open
:mod:`holdfast.simulation.nodes.node` first.
"""
