"""How many partitions each node should own, as every node computes it from the same rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from types import MappingProxyType


def shares(
    owned: Mapping[str, int], partitions: int, pinned: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """Return the number of partitions that each node should own. Two numbers differ by one at most, except those of
    nodes that an operator has moved more partitions to.

    Where the partitions cannot be divided evenly, those who own most now keep one more, so that fewer move.

    Args:
        owned: Node -> how many it owns now, for all nodes that may own some.
        partitions: How many there are.
        pinned: Node -> how many an operator has moved to it, which stay there.
    """
    found: dict[str, int] = {}
    while others := owned.keys() - found.keys():
        least, over = divmod(partitions - sum(found.values()), len(others))
        order = sorted(others, key=lambda name: (-owned[name], name))
        even = {name: least + (rank < over) for rank, name in enumerate(order)}
        # The other nodes share the rest. That is less for each, so further ones may be above it.
        above = {name: pinned[name] for name in others if pinned.get(name, 0) > even[name]}
        found |= above or even
    return found


def shares_of(
    owned: Mapping[str, int],
    partitions: int,
    failing: Set[str],
    cut_off: Set[str],
    pinned: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Return the same, but nodes that could not serve a partition take no more than they own, and nodes that others
    cannot reach give all away. If no other nodes are left, neither counts.

    Args:
        owned, partitions, pinned: As in :func:`shares`.
        failing: Nodes that could not serve a partition lately.
        cut_off: Nodes that others cannot reach.
    """
    able = owned.keys() - failing - cut_off
    if not able:
        return shares(owned, partitions, pinned)
    even = shares({name: count for name, count in owned.items() if name not in cut_off}, partitions, pinned)
    kept = {name: min(owned[name], even[name]) for name in even.keys() - able}
    rest = shares({name: owned[name] for name in able}, partitions - sum(kept.values()), pinned)
    return dict.fromkeys(owned, 0) | kept | rest


def cut_off_among(unreachable: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return the nodes that most of the other nodes cannot reach.

    Args:
        unreachable: Live node -> the nodes that it cannot reach.
    """
    return frozenset(name for name in unreachable if cut_off_by(name, unreachable))


def cut_off_by(node: str, unreachable: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return the nodes that cannot reach a node, in order, if they are most of the others; otherwise none.

    Args:
        node: The node.
        unreachable: As in :func:`cut_off_among`.
    """
    found = tuple(sorted(name for name, others in unreachable.items() if node in others))
    # Of the live nodes, all but the node itself.
    return found if 2 * len(found) > len(unreachable) - 1 else ()


def surplus(owned: int, share: int) -> int:
    """Return how many partitions a node should give away now: at most a quarter of what it owns, so that no node ends
    or starts many workers at once."""
    return min(max(0, owned - share), max(1, -(-owned // 4)))
