"""Simulated endpoints: their clocks, their disks, what these disks ever held, and the network between them.

This room owns what a simulated crash takes away. It knows no invariant and decides no order of events. Open
:mod:`holdfast.simulation.nodes.node` first.
"""
