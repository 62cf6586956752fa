"""Reads from the nodes of a cluster that have the partitions.

Any node answers every request, and passes it on. A read from the node with the records saves that hop. Knows nothing
of how nodes share partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from holdfast.client.blocks import Block
from holdfast.client.data_plane import DataPlane
from holdfast.client.errors import ServerAway
from holdfast.client.nodes import Nodes
from holdfast.client.offsets import Known, Range


class OwnerPlanes:
    """Reads each partition from the node that has it. Not for two threads.

    Args:
        any_node: The data plane of any node, also for requests without records.
        nodes: Who had the partitions a moment ago; None: the server is no node of a cluster.
    """

    def __init__(self, any_node: DataPlane, nodes: Nodes | None) -> None:
        self.any_node = any_node
        self._nodes = nodes
        self._is_stale = False
        self._planes: dict[str, DataPlane] = {}

    def close(self) -> None:
        """Close the connections to the nodes with partitions."""
        for plane in self._planes.values():
            plane.close()

    def records(
        self, queue: str, epoch: str, part: Range, known: Iterable[Known] = (), without: Iterable[str] = ()
    ) -> Iterator[Block]:
        """Yield the records of a range, as :meth:`DataPlane.records`. After a ServerAway, the next call finds the
        present owner."""
        with self._at_owner(queue, part.partition) as plane:
            yield from plane.records(queue, epoch, part, known, without)

    @contextmanager
    def _at_owner(self, queue: str, partition: int) -> Iterator[DataPlane]:
        if self._nodes is None:
            yield self.any_node
            return
        try:
            if self._is_stale:
                self._nodes = self.any_node.nodes() or self._nodes
                self._is_stale = False
            url = self._nodes.of_partition(partition)
            if url is not None and url not in self._planes:
                self._planes[url] = self.any_node.at(url)
            yield self.any_node if url is None else self._planes[url]
        except ServerAway as error:
            self._is_stale = True
            what = f"queue {queue!r} partition {partition} cannot be read now: {error.message}"
            raise type(error)(what, remedy=error.remedy) from error
