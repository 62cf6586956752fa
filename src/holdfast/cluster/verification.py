"""Checks the rules that the rows of a cluster on PostgreSQL must obey, also while nodes are running.

Each check reads one snapshot. Two checks in succession show whether a number fell that never may.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from holdfast.cluster.contents import check_contents
from holdfast.cluster.inspection import open_cluster
from holdfast.cluster.operating.verification import Verification, fallen, moved
from holdfast.cluster.rows import space_of
from holdfast.cluster.tables import HAS_STORES
from holdfast.exceptions import counted
from holdfast.store.sql.schema import SPACE_SHIFT

_CLUSTER = "SELECT partitions, incarnations FROM holdfast_cluster WHERE space = %(space)s"
_NODES = "SELECT name, incarnation FROM holdfast_node WHERE space = %(space)s"
_OWNERSHIP = """
SELECT partition, owner, incarnation, epoch FROM holdfast_ownership WHERE space = %(space)s ORDER BY partition
"""
_SPACES = """
SELECT name, id, epoch, serial FROM holdfast_spaces
WHERE name = %(name)s OR substr(name, 1, length(%(prefix)s::bytea)) = %(prefix)s::bytea
"""
_RECORDS = """
SELECT convert_from(p.queue, 'UTF8'), p.number, p.first_offset, p.swept, count(r.position), min(r.position),
    max(r.position), count(r.position) FILTER (WHERE r.position >= p.first_offset)
FROM holdfast_partitions p LEFT JOIN holdfast_records r ON r.part = p.part
WHERE p.space = %(id)s GROUP BY p.part
"""

_ATTACHMENTS = """
SELECT encode(n.name, 'hex'), count(c.piece), max(c.piece)
FROM (
    SELECT DISTINCT r.name FROM holdfast_references r JOIN holdfast_records s USING (part, position)
    WHERE r.part >= %(id)s::bigint << %(shift)s AND r.part < (%(id)s::bigint + 1) << %(shift)s
) n LEFT JOIN holdfast_contents c ON c.space = %(id)s AND c.name = n.name
GROUP BY n.name HAVING count(c.piece) <> coalesce(max(c.piece) + 1, -1)
"""
"""The attachments that a stored record names and that lack a piece."""


def verify_cluster(location: str, before: Verification | None = None, *, reads_all: bool = False) -> Verification:
    """Check the rows of a cluster, and of the stores of its partitions. Nothing is changed.

    Args:
        location: The URL of the database; its space names the cluster.
        before: An earlier check of the same cluster.
        reads_all: Whether to read every record too.

    Raises:
        ConfigurationError, StoreError: As :func:`~holdfast.cluster.inspection.open_cluster`.
    """
    with open_cluster(location) as (connection, values, place), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        check = _Check(connection, values)
        check.membership()
        check.stores()
    check.problems += fallen(before, check.numbers)
    bodies, starts = 0, dict[str, int]()
    for partition in range(check.count if reads_all else 0):
        contents = check_contents(location, partition)
        check.problems += contents.problems
        bodies += contents.bodies
        starts |= contents.starts
    check.problems += moved(before, starts)
    problems = tuple(check.problems)
    return Verification(place, problems, check.partitions, check.records, check.numbers, bodies, starts=starts)


class _Check:
    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], values: dict[str, Any]) -> None:
        self._connection = connection
        self._values = values
        self.count = 0
        self.problems: list[str] = []
        self.numbers: dict[str, int] = {}
        self.partitions = self.records = 0

    def _rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.encode(), self._values | values).fetchall()

    def membership(self) -> None:
        """Every partition has one row, and every incarnation one node."""
        ((self.count, incarnations),) = self._rows(_CLUSTER)  # one row: see open_cluster
        self.numbers["number of joins"] = incarnations
        ownership = self._rows(_OWNERSHIP)
        numbers = [partition for partition, _, _, _ in ownership]
        if numbers != list(range(self.count)):
            self.problems.append(f"The cluster has {self.count} cluster partitions, but rows for {numbers}.")
        nodes = self._rows(_NODES)
        used = [incarnation for _, incarnation in nodes]
        if len(set(used)) != len(used):
            self.problems.append("Two nodes have the same incarnation.")
        for name, incarnation in nodes:
            if incarnation > incarnations:
                self.problems.append(f"Node {name} has incarnation {incarnation}, but only {incarnations} were given.")
        for partition, owner, incarnation, epoch in ownership:
            self.numbers[f"epoch of cluster partition {partition}"] = epoch
            if owner and (epoch < 1 or not 1 <= incarnation <= incarnations):
                what = f"with epoch {epoch} and incarnation {incarnation}"
                self.problems.append(f"Cluster partition {partition} belongs to {owner} {what}.")

    def stores(self) -> None:
        """The records of each partition of a queue are complete, from the first to the last."""
        if self._rows(HAS_STORES) != [(True,)]:
            return
        space = self._values["space"]
        expected = {space_of(space, partition).encode(): partition for partition in range(self.count)}
        spaces = self._rows(_SPACES, name=space.encode(), prefix=f"{space}/worker-".encode())
        for name, count in Counter(bytes(name).decode() for name, _, _, _ in spaces).items():
            if count > 1:
                self.problems.append(f"The store {name!r} is there {count} times: it was restored into another one.")
        for name, number, epoch, serial in spaces:
            if bytes(name) not in expected:
                self.problems.append(
                    f"The store {bytes(name).decode()!r} belongs to no cluster partition, so no node serves it."
                )
                continue
            partition = expected[bytes(name)]
            self.partitions += 1
            self.numbers[f"number of openings of the store of cluster partition {partition}"] = epoch
            self.numbers[f"number of batches of cluster partition {partition}"] = serial
            for row in self._rows(_RECORDS, id=number):
                self._records(partition, *row)
            for content, count, last in self._rows(_ATTACHMENTS, id=number, shift=SPACE_SHIFT):
                there = f"{count} of {last + 1} pieces are there" if count else "they are missing"
                self.problems.append(f"Cluster partition {partition}: a record names attachments {content}: {there}.")

    def _records(
        self,
        partition: int,
        queue: str,
        number: int,
        first: int,
        swept: int,
        count: int,
        lowest: int | None,
        last: int | None,
        kept: int,
    ) -> None:
        where = f"Cluster partition {partition}, queue {queue!r}, partition {number}"
        self.records += kept
        self.numbers[f"first offset of {where[0].lower()}{where[1:]}"] = first
        if last is not None and last >= first and kept != last + 1 - first:
            missing = counted(last + 1 - first - kept, "record is", "records are")
            self.problems.append(f"{where}: {missing} missing between {first} and {last}.")
        if swept > first:
            self.problems.append(f"{where}: records up to {swept} are deleted, but those from {first} are kept.")
        if lowest is not None and lowest < swept:
            self.problems.append(f"{where}: record {lowest} exists, although those below {swept} are deleted.")
