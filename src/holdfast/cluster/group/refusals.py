"""Why a node cannot be in the group with the nodes that it finds there."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.cluster.group.members import GroupMember
from holdfast.exceptions import ConfigurationError


def name_taken(node: str) -> ConfigurationError:
    """Return the error for a second node of a name."""
    return ConfigurationError(
        f"Another node of the cluster is named {node!r}",
        remedy="Give each node another name: HOLDFAST_NODE, or node in [cluster].",
    )


def refusal(
    members: Iterable[GroupMember], node: str, since: float, mark: str, *, is_old: bool
) -> ConfigurationError | None:
    """Return why a node cannot work with the others; None if it can, or if the other one is refused: of two nodes, that
    is the one that started last.

    Args:
        members: The members of the group.
        node, since, mark: The node, when it started, and part of a digest of its secret.
        is_old: Whether an earlier process of its name, which was killed, cannot be in the group any longer.
    """
    for one in members:
        if one.since >= since:  # a later node, or this one, also as an earlier member
            continue
        if one.mark != mark:
            return ConfigurationError(
                f"Node {one.node!r} of the cluster has another secret than this node",
                remedy="Give all nodes the same secret_file or secret_env.",
            )
        if one.node == node and is_old:
            return name_taken(node)
    return None
