"""What Holdfast is tested with, shipped: the simulator, a bad network, a pair of endpoints for your own tests."""

from __future__ import annotations

from holdfast.testing.network import Network, NetworkFaults, lossy
from holdfast.testing.pair import pair

__all__ = ["Network", "NetworkFaults", "lossy", "pair"]
