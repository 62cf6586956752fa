"""Notes: what the nodes of a cluster report about themselves, which of them operators drain, and what they moved.

A note names the start of the node that it is about, so it does not count for a later process of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from holdfast.cluster.group.members import GroupMember, ReportedClaim
from holdfast.cluster.lease_policy import LONGEST_LEASE, MOST_PARTITIONS
from holdfast.cluster.rows import Report
from holdfast.cluster.shares import cut_off_among, cut_off_by

_NODE: Final = "node/"
_DRAIN: Final = "drain/"
_MOVE: Final = "move/"
_DECLINE: Final = "decline/"
_MOVES: Final = "moves"
"""In the report of a node that follows moves. Nodes of earlier versions ignore the pins of others, or count them after
another time."""

_RESIGNS: Final = "resigns"
"""In the report of a node that resigns its logs, and follows the resignations of others."""


def report_note(node: str, since: float, report: Report) -> tuple[str, bytes]:
    """Return the note with the report of a node that started then."""
    return _NODE + node, json.dumps({"since": since, _MOVES: 1, _RESIGNS: 1, **json.loads(report.to_json())}).encode()


def forget_note(node: str) -> tuple[str, None]:
    """Return the note that a node has left."""
    return _NODE + node, None


def drain_note(node: str, since: float) -> tuple[str, bytes]:
    """Return the note that a node that started then gives its partitions away."""
    return _DRAIN + node, json.dumps({"since": since}).encode()


def resume_note(node: str) -> tuple[str, None]:
    """Return the note that ends a drain."""
    return _DRAIN + node, None


def move_note(partition: int, node: str, since: float) -> tuple[str, bytes]:
    """Return the note that a partition belongs to a node that started then."""
    return f"{_MOVE}{partition}", json.dumps({"since": since, "node": node}).encode()


def release_note(partition: int) -> tuple[str, None]:
    """Return the note that ends a move."""
    return f"{_MOVE}{partition}", None


def decline_note(partition: int, node: str, since: float) -> tuple[str, bytes]:
    """Return the note that a partition no longer belongs to a node that started then. A move to another node stays."""
    return f"{_DECLINE}{partition}/{node}", json.dumps({"since": since, "node": node}).encode()


class Notes:
    """All notes that were read.

    Args:
        notes: The first of them, in the order in which they were written.
    """

    def __init__(self, notes: Mapping[str, bytes] | None = None) -> None:
        self._values: dict[str, Mapping[str, Any]] = {}
        self._claims: dict[int, ReportedClaim] = {}
        self.read((notes or {}).items())

    def read(self, notes: Iterable[tuple[str, bytes | None]]) -> None:
        """Read notes, in the order in which they were written. What is no note has no effect."""
        for key, text in notes:
            value = _decoded(text) if text is not None else None
            if value is not None and key.startswith(_DECLINE):
                moved = _MOVE + key.removeprefix(_DECLINE).partition("/")[0]
                if self._values.get(moved) == value:
                    del self._values[moved]
            elif value is None or not key.startswith((_NODE, _DRAIN, _MOVE)):
                self._values.pop(key, None)
            else:
                self._values[key] = value
                if key.startswith(_NODE):
                    self._read_claims(key.removeprefix(_NODE), value)

    def _read_claims(self, node: str, value: Mapping[str, Any]) -> None:
        """Remember the claims of a report: the next process of that name replaces it, although they still count."""
        report = _report(value)
        if not 0 < report.hold <= report.lease <= LONGEST_LEASE:
            return
        for partition, epoch in report.claims.items():
            known = self._claims.get(partition)
            if 0 <= partition < MOST_PARTITIONS and (known is None or epoch > known.epoch):
                self._claims[partition] = ReportedClaim(epoch, node, value["since"], report.lease, report.hold)

    @property
    def claims(self) -> Mapping[int, ReportedClaim]:
        """Return the last claim of each log that a node has reported."""
        return self._claims

    def longest_lease(self, members: Iterable[GroupMember], own: tuple[str, float]) -> float:
        """Return the longest lease that a node of the cluster may have, in seconds; 0.0: no other one has reported it.

        Args:
            members: The members of the group. One without a report may have the longest lease that a file can set.
            own: The name and the start of this node.
        """
        if any((one.node, one.since) != own and not self.has_report(one) for one in members):
            return LONGEST_LEASE
        reported = [value.get("lease") for key, value in self._values.items() if key.startswith(_NODE)]
        found = [one for one in reported if isinstance(one, int | float) and one <= LONGEST_LEASE]
        return max([*found, *(one.lease for one in self._claims.values())], default=0.0)

    def report_of(self, member: GroupMember) -> Report:
        """Return what a node reports; an empty report if it said nothing."""
        value = self._values.get(_NODE + member.node)
        return Report() if value is None or value["since"] != member.since else _report(value)

    def are_of(self, node: str, since: float) -> bool:
        """Whether the last report under a node's name is that of the process that started then."""
        value = self._values.get(_NODE + node)
        return value is not None and value["since"] == since

    def lack_report(self, node: str, since: float, changes: Iterable[tuple[str, bytes | None]]) -> bool:
        """Whether these notes, just read, took away the report of the node that started then.

        Of two nodes with one name, only the earlier one is told, so that they do not replace each other's for ever.
        """
        if all(key != _NODE + node for key, _ in changes):
            return False
        value = self._values.get(_NODE + node)
        return value is None or value["since"] > since

    def is_drained(self, node: str, since: float) -> bool:
        """Whether an operator wants a node that started then to give its partitions away."""
        value = self._values.get(_DRAIN + node)
        return value is not None and value["since"] == since

    def moved_to(self, partition: int) -> tuple[str, float] | None:
        """Return the node to which a partition was moved, and when that node had started; None if it was not moved."""
        value = self._values.get(f"{_MOVE}{partition}")
        return (str(value.get("node")), value["since"]) if value is not None else None

    def without_moves(self, members: Iterable[GroupMember]) -> list[str]:
        """Return the nodes that report, but not that they follow moves."""
        return [one.node for one in members if self.has_report(one) and _MOVES not in self._values[_NODE + one.node]]

    def resigning(self, members: Iterable[GroupMember]) -> frozenset[tuple[str, float]]:
        """Return the nodes, and when they started, that report that they resign their logs."""
        own = [one for one in members if self.has_report(one)]
        return frozenset((one.node, one.since) for one in own if _RESIGNS in self._values[_NODE + one.node])

    def has_report(self, member: GroupMember) -> bool:
        """Whether a node has reported since its start."""
        return self.are_of(member.node, member.since)

    def has_room_beside(self, node: str, members: Iterable[GroupMember]) -> bool:
        """Whether another node than this one takes partitions, and reports that it has room and no failures."""
        found = list(members)
        return any(
            one.node != node
            and self.has_report(one)
            and not self.report_of(one).short
            and not self.report_of(one).failed
            and not self.is_drained(one.node, one.since)
            and not self.is_cut_off(one.node, found)
            for one in found
        )

    def is_cut_off(self, node: str, members: Iterable[GroupMember]) -> bool:
        """Whether most other nodes cannot reach a node; not if that is so for every node."""
        unreachable = self._unreachable(members)
        found = cut_off_among(unreachable)
        return node in found and found != unreachable.keys()

    def cut_off_by(self, node: str, members: Iterable[GroupMember]) -> tuple[str, ...]:
        """Return the nodes that cannot reach a node, if they are most of the others; otherwise none."""
        return cut_off_by(node, self._unreachable(members))

    def _unreachable(self, members: Iterable[GroupMember]) -> Mapping[str, Collection[str]]:
        return {one.node: self.report_of(one).unreachable.keys() for one in members}


def _report(value: Mapping[str, Any]) -> Report:
    try:
        return Report.from_json(value)
    except msgspec.ValidationError:
        return Report()


def _decoded(text: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("since"), float) else None
