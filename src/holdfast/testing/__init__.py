"""What your own tests need: a pair of endpoints, a message, a bad network, a proxy over real sockets, free ports.

This room owns no rule. It may know every other room, and nothing in production may know it. Open
:mod:`holdfast.testing.pair` first.
"""

from __future__ import annotations

from holdfast.simulation.nodes.network import Network, NetworkFaults, lossy
from holdfast.testing.message import message
from holdfast.testing.pair import Pair, pair

__all__ = ["Network", "NetworkFaults", "Pair", "lossy", "message", "pair"]
