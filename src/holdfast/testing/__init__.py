"""What Holdfast is tested with, shipped: the simulator, a bad network, a pair of endpoints for your own tests."""

from __future__ import annotations

from holdfast.testing.message import message
from holdfast.testing.network import Network, NetworkFaults, lossy
from holdfast.testing.pair import Pair, pair

__all__ = ["Network", "NetworkFaults", "Pair", "lossy", "message", "pair"]
