"""How many partitions each node should own, as every node computes it from the same rows."""

from __future__ import annotations

from collections.abc import Mapping


def shares(owned: Mapping[str, int], partitions: int) -> dict[str, int]:
    """Return the number of partitions that each node should own. Two numbers differ by one at most.

    Where the partitions cannot be divided evenly, those who own most now keep one more, so that fewer move.

    Args:
        owned: Node -> how many it owns now, for all nodes that may own some.
        partitions: How many there are.
    """
    if not owned:
        return {}
    least, over = divmod(partitions, len(owned))
    order = sorted(owned, key=lambda name: (-owned[name], name))
    return {name: least + (rank < over) for rank, name in enumerate(order)}


def surplus(owned: int, share: int) -> int:
    """Return how many partitions a node should give away now: at most a quarter of what it owns, so that no node ends
    or starts many workers at once."""
    return min(max(0, owned - share), max(1, -(-owned // 4)))
