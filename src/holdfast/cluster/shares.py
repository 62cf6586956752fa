"""How many partitions each node should own, as every node computes it from the same rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set


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


def shares_of(owned: Mapping[str, int], partitions: int, failing: Set[str], cut_off: Set[str]) -> dict[str, int]:
    """Return the same, but nodes that could not serve a partition take no more than they own, and nodes that others
    cannot reach give all away. If no other nodes are left, neither counts.

    Args:
        owned, partitions: As in :func:`shares`.
        failing: Nodes that could not serve a partition lately.
        cut_off: Nodes that others cannot reach.
    """
    able = owned.keys() - failing - cut_off
    if not able:
        return shares(owned, partitions)
    even = shares({name: count for name, count in owned.items() if name not in cut_off}, partitions)
    kept = {name: min(owned[name], even[name]) for name in even.keys() - able}
    rest = shares({name: owned[name] for name in able}, partitions - sum(kept.values()))
    return dict.fromkeys(owned, 0) | kept | rest


def cut_off_among(unreachable: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return the nodes that most of the other nodes cannot reach.

    Args:
        unreachable: Live node -> the nodes that it cannot reach.
    """
    reports = {name: sum(name in one for one in unreachable.values()) for name in unreachable}
    return frozenset(name for name, count in reports.items() if 2 * count > len(unreachable) - 1)


def surplus(owned: int, share: int) -> int:
    """Return how many partitions a node should give away now: at most a quarter of what it owns, so that no node ends
    or starts many workers at once."""
    return min(max(0, owned - share), max(1, -(-owned // 4)))
