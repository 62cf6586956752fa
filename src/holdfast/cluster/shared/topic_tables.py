"""TopicTables: the shared tables of a cluster on Kafka, in a compacted topic.

Each process has the tables in memory, in an SQLite that gets its changes from the topic only: a record is a row, and
its key is the row's. A call runs its statements, takes the changes back, writes them to the topic, and reads on until
it finds them. If another process wrote one of these rows before, the statements run again, on what is true now. So of
several processes that add the same row at once, exactly one adds it.

The calls wait for Kafka, in the thread of the caller: for a moment, and never longer than ``PATIENCE``. A later call
continues to read where an earlier one stopped. After a failure, calls fail at once for a while.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from holdfast.cluster.group.pictures import topic_of
from holdfast.cluster.group.shared_topic import Change, SharedTopic
from holdfast.cluster.shared.tables import Part, Row, TablesAway
from holdfast.exceptions import StoreFailed, message_of
from holdfast.store.kafka.address import read_topic_address
from holdfast.store.kafka.login import KafkaAway

PATIENCE: Final = 2.0
"""Seconds that a call waits for Kafka."""
MOST_AT_ONCE: Final = 1000
"""Rows that are written before their outcomes are awaited."""
SHORTEST_PAUSE: Final = 0.1
"""Seconds after a failure in which calls fail at once; at least twice the time that the failed call took."""
_LOOK: Final = 0.05
_TOKEN_BYTES: Final = 8


class TopicTables:
    """The tables of this process. Several threads may use them.

    Args:
        open_topic: Returns the topic. Called when it is first needed.
    """

    def __init__(self, open_topic: Callable[[], SharedTopic]) -> None:
        self._open_topic = open_topic
        self._topic: SharedTopic | None = None
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.create_function("noted", -1, self._note)
        self._noted: dict[str, None] = {}
        """Keys of the rows that statements changed."""
        self._tables: dict[str, _Table] = {}
        self._made: set[str] = set()
        self._early: dict[str, bytes] = {}
        """Rows of tables that this process has not made yet."""
        self._is_complete = False
        self._away_until = 0.0
        self.is_kept = True

    def rest(self) -> None:
        """Do nothing: the connection to Kafka stays, because a new one would read everything again."""

    def run(self, schema: str, *statements: str, **values: Any) -> list[Row]:
        """See :class:`~holdfast.cluster.shared.tables.SharedTables`.

        If the last statement returns no row, everything that was durable before the call has been read. Otherwise, what
        others changed in the last moment may be missing. ``:clock`` stands for the time of Kafka in seconds since
        1970-01-01 UTC: a moment ago, or earlier if nothing was written since.
        """
        with self._lock:
            begun = time.monotonic()
            if begun < self._away_until:
                raise TablesAway("Kafka did not answer a moment ago")
            try:
                return self._run(schema, statements, values, begun + PATIENCE)
            except (KafkaAway, StoreFailed) as error:
                self._is_complete = False
                now = time.monotonic()
                self._away_until = now + max(SHORTEST_PAUSE, 2 * (now - begun))
                raise TablesAway(message_of(error) or "no answer", error.remedy) from None

    def _run(self, schema: str, statements: tuple[str, ...], values: Mapping[str, Any], until: float) -> list[Row]:
        if self._topic is None:
            self._topic = self._open_topic()
        self._make(schema)
        topic = self._topic
        is_fresh = not self._is_complete
        if is_fresh:
            self._read_to_end(topic, until)
            self._is_complete = True
        else:
            self._apply(topic.changes(0))
        while True:
            rows, changes = self._try(statements, {**values, "space": "", "clock": topic.clock})
            if changes:
                if self._write(topic, changes, until):
                    return rows
                is_fresh = True
            elif rows or is_fresh:
                return rows
            else:
                self._read_to_end(topic, until)
                is_fresh = True

    # --- the topic --------------------------------------------------------------------------------------------------

    def _read_to_end(self, topic: SharedTopic, until: float) -> None:
        """Read what is durable now."""
        _, end = topic.bounds(max(until - time.monotonic(), _LOOK))
        while topic.position < end:
            self._read(topic, until)

    def _read(self, topic: SharedTopic, until: float) -> Iterable[Change]:
        if time.monotonic() > until:
            raise topic.no_answer(f"not everything was read within {PATIENCE:.0f} s")
        changes = list(topic.changes(_LOOK))
        self._apply(changes)
        return changes

    def _write(self, topic: SharedTopic, changes: dict[str, Row | None], until: float) -> bool:
        """Write changes; return whether no other process wrote one of these rows before."""
        is_first = True
        keys = list(changes)
        for start in range(0, len(keys), MOST_AT_ONCE):
            part = {key: _encoded(changes[key]) for key in keys[start : start + MOST_AT_ONCE]}
            outcomes: list[bool] = []
            for key, value in part.items():
                topic.say(key, value, outcomes.append)
            while len(outcomes) < len(part):
                if time.monotonic() > until:
                    raise topic.no_answer(f"no answer for {PATIENCE:.0f} s")
                topic.hear_outcomes(_LOOK)
            if not all(outcomes):
                raise topic.no_answer("a change was not written")
            while part:
                for key, value in self._read(topic, until):
                    if key in part and part[key] == value:
                        del part[key]
                    elif key in part:
                        is_first = False
        return is_first

    def _apply(self, changes: Iterable[Change]) -> None:
        self._db.execute("BEGIN")
        for key, value in changes:
            name = key.partition(" ")[0]
            if name in self._tables:
                self._tables[name].apply(self._db, key, value)
            elif value is None:
                self._early.pop(key, None)
            else:
                self._early[key] = value
        self._db.execute("COMMIT")
        # The triggers noted these rows, too: only a statement's own changes are written.
        self._noted.clear()

    # --- the tables -------------------------------------------------------------------------------------------------

    def _make(self, schema: str) -> None:
        if schema in self._made:
            return
        self._db.executescript(schema)
        self._made.add(schema)
        names = [name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if name not in self._tables:
                self._tables[name] = _Table(self._db, name)
        early = {key: value for key, value in self._early.items() if key.partition(" ")[0] in self._tables}
        self._early = {key: value for key, value in self._early.items() if key not in early}
        self._apply(early.items())

    def _try(self, statements: tuple[str, ...], values: Mapping[str, Any]) -> tuple[list[Row], dict[str, Row | None]]:
        """Run statements; return the rows of the last one, and the changes, which are taken back."""
        rows: list[Row] = []
        self._noted.clear()
        self._db.execute("BEGIN")
        try:
            for statement in statements:
                rows = self._db.execute(statement, values).fetchall()
            return rows, {key: self._tables[key.partition(" ")[0]].find(self._db, key) for key in self._noted}
        finally:
            # The rows change only by what is read from the topic, also for the writer.
            self._db.execute("ROLLBACK")
            self._noted.clear()

    def _note(self, table: str, *key: Any) -> None:
        self._noted[_key(table, key)] = None


class _Table:
    """The statements for single rows of a table."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        columns = list(db.execute(f"PRAGMA table_info({name})"))
        self._columns = len(columns)
        key = [one[1] for one in columns if one[5]]
        assert [one[1] for one in columns[: len(key)]] == key, f"the key of {name} does not come first"
        where = " AND ".join(f"{one} = ?" for one in key)
        self._keys = len(key)
        self._find = f"SELECT * FROM {name} WHERE {where}"
        self._delete = f"DELETE FROM {name} WHERE {where}"
        self._put = f"INSERT OR REPLACE INTO {name} VALUES ({', '.join('?' * self._columns)})"
        for event, rows in (("INSERT", ["NEW"]), ("UPDATE", ["OLD", "NEW"]), ("DELETE", ["OLD"])):
            notes = "".join(f"SELECT noted('{name}', {', '.join(f'{row}.{one}' for one in key)});" for row in rows)
            db.execute(f"CREATE TEMP TRIGGER {name}_{event} AFTER {event} ON {name} BEGIN {notes} END")

    def find(self, db: sqlite3.Connection, key: str) -> Row | None:
        """Return what a row has after its key; None if there is no such row."""
        row: Row | None = db.execute(self._find, _decoded_key(key)).fetchone()
        return None if row is None else row[self._keys :]

    def apply(self, db: sqlite3.Connection, key: str, value: bytes | None) -> None:
        """Write a row, or delete it. What is no row has no effect."""
        try:
            columns = _decoded_key(key)
            rest = [] if value is None else msgspec.msgpack.decode(value[_TOKEN_BYTES:], type=list[Any])
            if value is None:
                db.execute(self._delete, columns)
            else:
                db.execute(self._put, [*columns, *rest])
        except (ValueError, msgspec.DecodeError, RecursionError, sqlite3.Error, OverflowError):
            return  # another program wrote it


def _key(table: str, key: Iterable[Any]) -> str:
    return f"{table} {msgspec.msgpack.encode(list(key)).hex()}"


def _decoded_key(key: str) -> list[Any]:
    return msgspec.msgpack.decode(bytes.fromhex(key.partition(" ")[2]), type=list[Any])


def _encoded(row: Row | None) -> bytes | None:
    """Return the value of a row's record, different each time, so that its writer recognizes it."""
    return None if row is None else secrets.token_bytes(_TOKEN_BYTES) + msgspec.msgpack.encode(list(row))


@cache
def topic_tables(location: str, part: Part) -> TopicTables:
    """See :func:`holdfast.cluster.shared.tables.shared_tables`."""
    address = read_topic_address(location)
    return TopicTables(lambda: SharedTopic(address, topic_of(address, part)))
