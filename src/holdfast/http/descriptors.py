"""How many file descriptors a listener takes for the connections that it may have. Arithmetic only."""

from __future__ import annotations


def descriptors_of(connections: int) -> int:
    """Descriptors that a listener with so many connections may take: some more are accepted, to be told to go away."""
    return connections + overflow(connections) + backlog(connections)


def connections_in(descriptors: int) -> int:
    """The most connections whose :func:`descriptors_of` are no more."""
    return max(0, (descriptors - 16) * 4 // 5)


def overflow(connections: int) -> int:
    """Connections beyond the limit that are there for a moment, to be refused with an answer."""
    return connections // 8 + 8


def backlog(connections: int) -> int:
    """Connections that are accepted at once at most, before anybody can count them."""
    return min(1024, connections // 8 + 8)
