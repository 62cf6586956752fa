"""Helpers for your own tests: a pair of endpoints, a message, a bad network, a proxy over real sockets, free ports.

This package owns no protocol rules. It may know every other package, but no production code may know it. Open
:mod:`holdfast.testing.pair` first.
"""

from __future__ import annotations

from holdfast.simulation.nodes.network import Network, NetworkFaults, lossy
from holdfast.testing.message import message
from holdfast.testing.pair import Pair, pair

__all__ = ["Network", "NetworkFaults", "Pair", "lossy", "message", "pair"]
