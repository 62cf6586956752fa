"""Number of file descriptors that a listener needs for its maximum of connections. Arithmetic only."""

from __future__ import annotations


def descriptors_of(connections: int) -> int:
    """Return the descriptors that a listener with this many connections may use, refused connections included."""
    return connections + overflow(connections) + backlog(connections)


def connections_in(descriptors: int) -> int:
    """Return the largest number of connections that fits into this many descriptors (:func:`descriptors_of`)."""
    return max(0, (descriptors - 16) * 4 // 5)


def overflow(connections: int) -> int:
    """Return the number of connections beyond the limit that may exist briefly, to be refused with an answer."""
    return connections // 8 + 8


def backlog(connections: int) -> int:
    """Return the maximum number of connections accepted at once, before the server counts them."""
    return min(1024, connections // 8 + 8)
