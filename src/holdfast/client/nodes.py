"""Which node of a cluster has which partition, as a client learns it from any node. Knows no connection."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from holdfast.http.urls import is_loopback


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a cluster.

    Args:
        partitions: Number of partitions of a queue in each worker.
        workers: The URL of the node that has each worker; None: any node must be asked for it.
        sink: The worker with the sink that the request named.

    Raises:
        ValueError: A number is not one.
    """

    partitions: int
    workers: tuple[str | None, ...]
    sink: int | None = None

    def __post_init__(self) -> None:
        if type(self.partitions) is not int or self.partitions < 1:
            raise ValueError(f"partitions={self.partitions!r}")
        if self.sink is not None and type(self.sink) is not int:
            raise ValueError(f"sink={self.sink!r}")

    def of_partition(self, number: int) -> str | None:
        """Return the URL of the node with a partition; None if it is not known."""
        return self._of(number // self.partitions)

    def of_sink(self) -> str | None:
        """Return the URL of the node with the sink; None if it is not known."""
        return self._of(self.sink) if self.sink is not None else None

    def _of(self, worker: int) -> str | None:
        return self.workers[worker] if 0 <= worker < len(self.workers) else None


def reachable(url: str | None, broker: str) -> str | None:
    """Return the URL of a node if this client can be expected to reach it and may send it a token; else None.

    Args:
        url: What the node calls itself.
        broker: The URL at which another node answered.

    Raises:
        ValueError: It is not a URL.
    """
    if not url:
        return None
    node, known = urlsplit(url), urlsplit(broker)
    if not node.hostname or node.port == 0 or "," in url:  # which would be several addresses
        raise ValueError(url)
    is_near = is_loopback(known.hostname or "") or not is_loopback(node.hostname)
    return url if node.scheme == known.scheme and is_near else None
