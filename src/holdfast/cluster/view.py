"""View: what a node knows of its cluster now. The agent sends one to the supervisor at each change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from holdfast.outages import Trouble

DATABASE: Final = "the database of the cluster"
KAFKA: Final = "Kafka"
CUT_OFF_REMEDY: Final = "Check url in [cluster], and the network between the nodes."


@dataclass(frozen=True, slots=True)
class View:
    """What a node knows of its cluster now.

    Args:
        node: The name of this node.
        mine: Partition -> number of the claim, for the partitions that this node may serve. Another number is another
            claim; the numbers of two nodes have no order. Stop the worker of a partition that is no longer here, and
            report it to the agent: until then, no node gets the partition.
        owners: Partition -> node, for all partitions that have a live owner.
        nodes: Live node -> URL of its cluster listener.
        is_draining: Whether this node gives its partitions away and takes no others.
        created: Where this node has just created the cluster; "": it was there.
        cut_off_by: The nodes that cannot reach this one, if they are most of the others.
        failed: Partition that this node could not serve -> why, until it serves one again.
        engine: What keeps the leases, for people.
        differing: Node -> the tables of its configuration that differ from those of this node.
        preparing: Partition -> number of the claim that may follow. Its worker may start, but not take its store.
        trouble: Why it has no contact with the engine now, or is no member; None: it is one, as far as it knows.
    """

    node: str
    mine: Mapping[int, int]
    owners: Mapping[int, str]
    nodes: Mapping[str, str]
    is_draining: bool = False
    created: str = ""
    cut_off_by: tuple[str, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    engine: str = DATABASE
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    preparing: Mapping[int, int] = field(default_factory=dict)
    trouble: Trouble | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the view as JSON values. Keys of objects are text there."""
        values: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> View:
        """Return the view that :meth:`to_json` wrote."""
        return msgspec.convert(values, cls, str_keys=True)
