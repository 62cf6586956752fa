"""SharedTables: what users of the shared tables may ask, whatever the engine is."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from holdfast.outages import Away

Row = tuple[Any, ...]
Part = Literal["identifiers", "security"]
"""What the tables are for. On Kafka, each part has a topic of its own, because a process reads all of it."""


class TablesAway(Away):
    """The engine does not answer, or refuses; it is not known whether it made a change."""


class SharedTables(Protocol):
    """Several threads may use it. A call waits for its engine in the thread of the caller, at most two seconds.

    Attributes:
        is_kept: Whether :meth:`rest` keeps the connection: calls come often.
    """

    is_kept: bool

    def run(self, schema: str, *statements: str, **values: Any) -> list[Row]:
        """Run statements as one change, durable when this returns; return the rows of the last one.

        Args:
            schema: Creates the tables that the statements need, if they do not exist. The columns of a table's key come
                first.
            statements: The statements. ``:name`` stands for a value. PostgreSQL runs them, or SQLite on Kafka.
            values: Their values. ``:space`` is there in any case.

        Raises:
            TablesAway: It failed. The change may have been made nevertheless.
        """
        ...

    def rest(self) -> None:
        """Say that no other call follows soon."""
        ...
