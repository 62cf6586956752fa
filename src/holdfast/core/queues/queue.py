"""Queue: where messages wait for whoever reads them, and what may be deleted of it. Sans-IO.

The one home of every queue, inbound, outbound or of dead letters: its partitions, where each begins, where it ends and
how far that is durable; its epoch; its cursors. It is the only writer of what a batch says about records, cursors,
queues and trims. Others call verbs and never touch an open batch.

Below a **cursor** all is done with. There are three kinds, and one contract: the handlers' (:data:`HANDLER`), those of
readers outside, by name, and those of outbound Sequences (:data:`OUTBOUND`), each in one partition. A record is deleted
when the retention lets go of it and every cursor has passed it; a reader's protects only up to a limit, the others
without one. A queue may be told to keep only what its handlers and Sequences have not passed, as long as no reader ever
was there: an outbox is such a queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect, Incident, ReadWanted, TakeRecords
from holdfast.core.queues.partitions import Grown, Partition
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.queues.retention_enforcement import Keeping
from holdfast.core.ranges import AcknowledgementRanges, ranges_of
from holdfast.core.records import Batch, Record, Snapshot, State
from holdfast.core.staged_blocks import Run
from holdfast.exceptions import ConfigurationError

HANDLER = "handler"
"""The handlers' cursor."""
OUTBOUND = "outbound/"
"""Prefix of an outbox key in the name of its cursor. Only internal names contain a slash."""
DEAD_LETTERS = "dead-letters"
"""The queue of messages that handlers failed on."""
OUTBOX = "outbox"
"""Description of a queue that holds only outgoing messages."""
ASIDE = "aside/"
"""Prefix of the name under which an unreadable saved state is kept."""

TRIM_EVERY = 256
"""Number of handled records that are deleted together."""

_READER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

ReadRecords = Callable[[str, int, int, int], list[tuple[int, Record]]]
"""``read(queue, partition, start, end)``: records of the store in that range, ascending; the store may return fewer."""


def check_reader(name: str) -> None:
    """See that a reader's cursor may be called so.

    Raises:
        ConfigurationError: it may not.
    """
    if name == HANDLER:
        raise ConfigurationError(
            f"the name {HANDLER!r} is reserved for the destination's handlers", remedy="Give the reader another name."
        )
    if _READER.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name[:120]!r} is not a valid name of a reader",
            remedy="Use up to 100 letters, digits, dots, hyphens and underscores, beginning with a letter or a digit.",
        )


class TooManyReaders(ConfigurationError):
    """A queue has as many cursors as it may have."""


@dataclass(slots=True)
class Cursor:
    """Who is done with what.

    Args:
        name: Its name.
        offsets: Partition -> offset: all below is done with, and that is saved. An outbound Sequence's has one, the
            others have every partition.
        moved_at: When it last moved, seconds since 1970-01-01 UTC; None if that is not known.
        about: What is saved with an outbound Sequence's.
    """

    name: str
    offsets: dict[int, int]
    moved_at: float | None = None
    about: State = field(default_factory=dict)
    is_outbound: bool = field(init=False)
    """Whether outbound Sequences follow the partition."""

    def __post_init__(self) -> None:
        self.is_outbound = self.name.startswith(OUTBOUND)

    @property
    def is_readers(self) -> bool:
        """Whether it is one of a reader outside."""
        return self.name != HANDLER and not self.is_outbound

    @property
    def kind(self) -> str:
        """In a word."""
        return "outbound" if self.is_outbound else "reader" if self.is_readers else "handler"


def fingerprint_of(record: Record) -> str:
    """What tells a record from any other that could have been in its place: 16 hexadecimal digits."""
    what = (record.sequence, record.message_number, record.received_at.hex(), record.message_id, record.action)
    return blake2b(repr(what).encode() + record.body, digest_size=8).hexdigest()


def divided(description: State) -> tuple[int, int]:
    """Return how many shared partitions a queue has by its description, and how many for sessions."""
    count, sessions = description.get("partitions"), description.get("sessions", 0)
    if type(count) is not int or type(sessions) is not int or not 0 <= sessions < count:
        return (count, 0) if type(count) is int and count > 0 else (0, 0)
    return count - sessions, sessions


class Queue:
    """One queue.

    Args:
        name: Its name in the store.
        count: Of its partitions.
        retention: How long it keeps records; None: for ever.
        drops_passed: Whether what the handlers and Sequences have passed may be deleted at once, as long as no reader
            ever was there.
        kind: What its description calls it.
        dead_letters: The queue of what its handlers could not handle.
    """

    def __init__(
        self,
        name: str,
        count: int = 1,
        retention: RetentionPolicy | None = None,
        *,
        drops_passed: bool = False,
        kind: str = "inbox",
        dead_letters: Queue | None = None,
    ) -> None:
        self.name = name
        self.retention = retention
        self.drops_passed = drops_passed
        self.kind = kind
        self.dead_letters = dead_letters
        self.is_handled = False
        """Whether the queue has handlers: it keeps their unfinished records, whatever the retention."""
        self.epoch = ""
        """Identity of a queue with readers, so that readers do not use offsets of another store."""
        self.was_read = False
        """Whether the queue ever had a reader's cursor."""
        self.stored_partitions: int | None = None
        """Number of partitions according to the store; None for a new queue."""
        self.cursors: dict[str, Cursor] = {}
        self._everywhere: dict[str, Cursor] = {}
        """The cursors with every partition: those of readers and of the handlers."""
        self.sessions = 0
        """Number of partitions, the last ones, that belong to one session each: ``core.receiving.sessions``."""
        self.partitions = [Partition() for _ in range(count)]
        self._is_grown = False
        self._is_followed = False
        """Whether outbound Sequences follow the queue."""
        self._keeping: Keeping | None = None
        self._drops_now = False
        """Whether the cursors decide when records are deleted, rather than the retention."""
        self._lets_go = False
        """Whether the retention decides."""
        self._befores: dict[str, str] = {}
        """Of each partition the fingerprint of the last record below its first; none, or "": unknown."""
        self._handled: dict[int, State] = {}
        self._misplaced: set[int] = set()

    def join(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        """Say where its changes and effects go, and what reads the store."""
        self._commit = commit
        self._effects = effects
        self._read = read
        if self.dead_letters is not None:
            self.dead_letters.join(commit, effects, read)

    def divide(self, shared: int, sessions: int) -> None:
        """Have so many shared partitions and, behind them, so many for sessions. Before it recovers."""
        self.sessions = sessions
        self.partitions = [Partition() for _ in range(shared + sessions)]

    @property
    def shared(self) -> int:
        """The number of partitions that Sequences share; those for sessions follow."""
        return len(self.partitions) - self.sessions

    # --- records --------------------------------------------------------------------------------------------------

    @property
    def firsts(self) -> list[int]:
        """Return the first offset of each partition."""
        return [one.first for one in self.partitions]

    @property
    def ends(self) -> list[int]:
        """Of each partition the offset that the next durable record will have."""
        return [one.durable_end for one in self.partitions]

    @property
    def bytes_held(self) -> int | None:
        """Bytes of its records, about; None where the retention does not count them."""
        sizes = [one.sizes.held for one in self.partitions if one.sizes is not None]
        return sum(sizes) if len(sizes) == len(self.partitions) else None

    def append(self, partition: int, record: Record) -> int:
        """A record into the open batch; its offset."""
        one = self.partitions[partition]
        offset = one.end
        one.end = offset + 1
        self._commit.batch.appends.append((self.name, partition, offset, record))
        return offset

    def append_run(self, run: Run) -> None:
        """Staged rows into the open batch; where they begin is put into the run."""
        one = self.partitions[run.partition]
        run.offset = one.end
        one.end += len(run.places)
        self._commit.batch.runs.append(run)

    def hold(self, sequence: str, number: int, record: Record) -> None:
        """Hold, with the open batch, a record that does not enter the queue yet."""
        self._commit.batch.holds.append((sequence, number, record))

    def release(self, partition: int, sequence: str, number: int, now: float) -> int:
        """A held record into the queue, with the open batch; its offset."""
        one = self.partitions[partition]
        offset = one.end
        one.end = offset + 1
        self._commit.batch.releases.append((sequence, number, self.name, partition, offset, now))
        return offset

    def drop_held(self, sequence: str, numbers: Iterable[int]) -> None:
        """Held records are thrown away, with the open batch."""
        self._commit.batch.drops.extend((sequence, number) for number in numbers)

    def stored(self, partition: int, offset: int, now: float, record: Record | None = None) -> None:
        """The record there is durable, and all before it."""
        one = self.partitions[partition]
        one.durable_end = offset + 1
        for grown in one.followers.values():
            grown(offset, record)
        if self._lets_go:
            assert self._keeping is not None
            self._keeping.stored(one, now)

    def want(self, partition: int, start: int, end: int, take: TakeRecords) -> None:
        """Have records read that the store has there: see :class:`~holdfast.core.events.ReadWanted`."""
        self._effects.append(ReadWanted(self.name, partition, start, end, take))

    def look(self, partition: int, offset: int) -> Record | None:
        """The record there, None if it is gone."""
        found = self._read(self.name, partition, offset, offset + 1)
        return found[0][1] if found else None

    def fingerprint(self, partition: int, position: int) -> str | None:
        """Of the last record below ``position``: who has read up to there can tell this queue from one that was put
        back to an earlier state and grew on. "" where nothing is known: at 0, and below what is still there. None: it
        is :func:`fingerprint_of` that record, which must be read."""
        one = self.partitions[partition]
        if position == one.first:
            return self._befores.get(str(partition), "")
        if not one.first < position <= one.durable_end:
            return ""
        return None

    # --- cursors --------------------------------------------------------------------------------------------------

    def handled(self, partition: int, *, at_most_once: bool = False) -> State:
        """What the handlers are done with there. What is deleted counts as done with. So does, if nobody may be handed
        twice, all that is there where their place was lost.
        Below ``floor`` all is answered besides."""
        one = self.partitions[partition]
        saved = self._handled.get(partition, {"done": []})
        done = AcknowledgementRanges.from_state(saved["done"])
        upper = one.end if at_most_once and partition in self._misplaced else one.first
        if upper:
            done.add_range(1, upper)
        return {"done": done.to_state(), "floor": max(one.first, saved.get("floor", 0))}

    def is_handled_saved(self, partition: int) -> bool:
        """Whether what the handlers are done with there is what the store has, so that it need not be saved again."""
        saved = self._handled.get(partition)
        return saved is not None and saved["done"] == self.handled(partition)["done"]

    def move_cursor(self, name: str, partition: int, offset: int, now: float, state: State | None = None) -> int:
        """Move a cursor forward, never back; one that is not there is made, unless it is a Sequence's. Durable with
        the open batch, and so must be whatever its owner knows to be done with below it.

        Args:
            name: The cursor.
            partition: Where.
            offset: All below is done with. One beyond the end stands for the end.
            now: Seconds.
            state: What to save, for one that knows more than an offset.

        Returns:
            Where it stands.

        Raises:
            ConfigurationError: a reader may not be called so, or there are too many.
        """
        cursor = self.cursors.get(name) or self._new_cursor(name, now)
        one = self.partitions[partition]
        stands = cursor.offsets[partition]
        if offset > stands:
            stands = cursor.offsets[partition] = min(offset, one.durable_end)
        cursor.moved_at = now
        if one.first < one.purged:
            self.trim(partition)
        elif self._lets_go:
            assert self._keeping is not None
            self._keeping.moved(one, now)
        elif self._drops_now and (stands - one.first >= TRIM_EVERY or cursor.is_outbound):
            self.trim(partition)
        if state is not None:
            self._commit.batch.cursors[self.name, partition, name] = state
        elif one.first < stands or not cursor.is_outbound:
            self._save_cursor(cursor, partition)
        # else the trim says where it stands, which spares a write for each message of a queue that is only sent.
        return stands

    def put_cursor(self, name: str, partition: int, offset: int, now: float, state: State | None = None) -> int:
        """Put a cursor elsewhere, also back; durable with the open batch. Its owner must know of it.

        Args:
            name: The cursor, which is there.
            partition: Where.
            offset: All below is done with. What is deleted stands for the first record, what is not there for the end.
            now: Seconds.
            state: What to save, for one that knows more than an offset.

        Returns:
            Where it stands.
        """
        cursor, one = self.cursors[name], self.partitions[partition]
        stands = cursor.offsets[partition] = min(max(offset, one.first), one.durable_end)
        cursor.moved_at = now
        if state is None:
            self._save_cursor(cursor, partition)
        else:
            self._commit.batch.cursors[self.name, partition, name] = state
        self._look_again(now)
        if self._drops_now:
            self.trim(partition)
        return stands

    def _save_cursor(self, cursor: Cursor, partition: int) -> None:
        state: State = {**cursor.about, "offset": cursor.offsets[partition]}
        if cursor.moved_at is not None:
            state["at"] = cursor.moved_at
        self._commit.batch.cursors[self.name, partition, cursor.name] = state

    def advance(self, name: str, offsets: dict[int, int], now: float) -> dict[int, int]:
        """Move a reader's cursor, made if it is not there, in the partitions that are named; where it stands in all.

        Raises:
            ConfigurationError: a reader may not be called so, or there are too many.
        """
        check_reader(name)
        for partition in range(len(self.partitions)):
            self.move_cursor(name, partition, offsets.get(partition, 0), now)
        return dict(self.cursors[name].offsets)

    def _new_cursor(self, name: str, now: float) -> Cursor:
        cursor = Cursor(name, dict(enumerate(self.firsts)), now)
        if cursor.is_readers:
            check_reader(name)
            limit = self.retention.max_readers if self.retention is not None else None
            if limit is not None and sum(one.is_readers for one in self.cursors.values()) >= limit:
                raise TooManyReaders(
                    f"the queue {self.name!r} has {limit} readers, which is its limit",
                    remedy="Delete the cursors of readers that no longer exist: holdfast queues lists them.",
                )
            if not self.was_read:
                self.was_read = True
                self.describe_again()
        self.cursors[name] = self._everywhere[name] = cursor
        if cursor.is_readers:
            self._look_again(now)
        return cursor

    def follow(self, name: str, partition: int, start: int | None, grown: Grown) -> None:
        """Let outbound Sequences follow the queue. A missing cursor is created, and saved by :meth:`say_about`; a queue
        that keeps only what its outbound Sequences have not passed needs none.

        Args:
            name: The cursor.
            partition: Its partition.
            start: Its first offset; None: that of the first record.
            grown: Called for each record that becomes durable there.
        """
        assert name.startswith(OUTBOUND), name
        one = self.partitions[partition]
        if name not in self.cursors:
            begin = one.first if start is None else min(max(start, one.first), one.durable_end)
            self.cursors[name] = Cursor(name, {partition: begin})
            one.outbound.add(name)
            self._is_followed = True
            self._who_reads()
        one.followers[name] = grown

    def unfollow(self, name: str, partition: int, now: float) -> None:
        """Delete the cursor of outbound Sequences: the queue no longer keeps records for them."""
        self.partitions[partition].followers.pop(name, None)
        self.partitions[partition].outbound.discard(name)
        del self.cursors[name]
        self._commit.batch.cursors[self.name, partition, name] = None
        self._is_followed = any(cursor.is_outbound for cursor in self.cursors.values())
        self._look_again(now)

    def say_about(self, name: str, partition: int, about: State) -> None:
        """Save the position of an outbound Sequences' cursor, and its other state."""
        cursor = self.cursors[name]
        cursor.about = about
        self._save_cursor(cursor, partition)

    def drop_cursor(self, name: str, now: float) -> bool:
        """Forget a reader's cursor; whether it was there. Nothing is deleted but what the retention let go of."""
        cursor = self.cursors.get(name)
        if cursor is None or not cursor.is_readers:
            return False
        del self.cursors[name], self._everywhere[name]
        for partition in cursor.offsets:
            self._commit.batch.cursors[self.name, partition, name] = None
        self._look_again(now)
        return True

    # --- what may be deleted --------------------------------------------------------------------------------------

    def _who_reads(self) -> None:
        """See, whenever another one reads, whether what is passed may be deleted at once."""
        is_kept = not self.drops_passed or (self.was_read and self.retention is not None)
        are_here = self.is_handled or (self._is_followed and HANDLER not in self.cursors)
        self._drops_now = are_here and not is_kept
        self._lets_go = self._keeping is not None and not self._drops_now

    @property
    def keeps(self) -> str:
        """Return the retention in words."""
        if self._drops_now:
            return "until it is handled" if self.is_handled else "until it is acknowledged"
        return "for ever" if self.retention is None else str(self.retention)

    def keep_from(self, partition: int) -> int:
        """The first offset that must be kept: the one place that decides what may be deleted."""
        one = self.partitions[partition]
        if self.is_handled and HANDLER not in self.cursors:
            return one.first
        floor = one.durable_end
        if not self._drops_now:
            floor = min(floor, one.expired)
        for name in one.outbound:
            floor = min(floor, self.cursors[name].offsets[partition])
        limited = floor
        for cursor in self._everywhere.values():
            if self._is_limited(cursor):
                limited = min(limited, cursor.offsets[partition])
            else:
                floor = min(floor, cursor.offsets[partition])
        return min(floor, max(limited, one.lapsed))

    def _is_limited(self, cursor: Cursor) -> bool:
        # Handlers that are not there in this run may come back: their cursor counts as a reader's.
        return cursor.is_readers or (cursor.name == HANDLER and not self.is_handled)

    def has_limited_cursors(self, partition: int) -> bool:
        """Whether there are cursors that protect up to a limit only."""
        return any(partition in cursor.offsets and self._is_limited(cursor) for cursor in self.cursors.values())

    def purge(self, partition: int, offset: int) -> None:
        """Let go of what is below ``offset``, whatever the retention says and readers protect. It is deleted as far as
        handlers and Sequences have passed it, and the rest when they have. Only a restart forgets that."""
        one = self.partitions[partition]
        offset = min(offset, one.durable_end)
        one.purged = max(one.purged, offset)
        one.expired, one.lapsed = max(one.expired, offset), max(one.lapsed, offset)
        self.trim(partition)

    def trim(self, partition: int) -> None:
        """Delete what need not be kept. Where readers may come, the last record that goes is read before, so that its
        fingerprint stays, unless it is in memory."""
        one = self.partitions[partition]
        floor = self.keep_from(partition)
        if floor <= one.first or one.is_cut:
            return
        if self.epoch and one.passed is not None and one.passed[0] == floor - 1:
            self._cut_behind(partition, floor, one.passed[1])
        elif self.epoch:
            one.is_cut = True
            cut = partial(self._last_read, partition, floor)
            self.want(partition, floor - 1, floor, cut)
        else:
            self._cut(partition, floor)

    def _last_read(self, partition: int, floor: int, found: list[tuple[int, Record]], now: float) -> None:
        one = self.partitions[partition]
        one.is_cut = False
        if one.first < floor <= self.keep_from(partition):  # somebody may have come meanwhile who needs it
            self._cut_behind(partition, floor, found[0][1] if found and found[0][0] == floor - 1 else None)
        self.trim(partition)

    def _cut_behind(self, partition: int, floor: int, last: Record | None) -> None:
        one = self.partitions[partition]
        self._cut(partition, floor)
        self._befores[str(partition)], one.passed = fingerprint_of(last) if last is not None else "", None
        self.describe_again()

    def _cut(self, partition: int, floor: int) -> None:
        if self._lets_go:
            self._tell(partition, floor)
        self.delete_below(partition, floor)
        if self._keeping is not None:
            self._keeping.trimmed(self.partitions[partition])

    def _tell(self, partition: int, floor: int) -> None:
        """Report deleted records that a cursor has not passed, and that cursor: no loss is silent."""
        first = self.partitions[partition].first
        here = [cursor for cursor in self.cursors.values() if partition in cursor.offsets]
        read = max((cursor.offsets[partition] for cursor in here), default=first)
        where = {"queue": self.name, "partition": partition}
        if floor > read:
            detail = {**where, "records": floor - max(read, first), "retention": self.keeps}
            self._effects.append(Incident("queue.unread_records_deleted", level="warning", detail=detail))
        for cursor in here:
            missed = floor - max(cursor.offsets[partition], first)
            if missed > 0:
                detail = {**where, "cursor": cursor.name, "records": missed, "retention": self.keeps}
                self._effects.append(Incident("reader.left_behind", level="warning", detail=detail))

    def delete_below(self, partition: int, offset: int) -> None:
        """Delete records that are certainly finished, whatever the readers; they may be in the open batch."""
        one = self.partitions[partition]
        if offset > one.first:
            one.first = offset
            self._commit.batch.trims[self.name, partition] = offset

    def delete(self) -> None:
        """Delete every partition, with records and cursors."""
        for partition in range(len(self.partitions)):
            self._commit.batch.trims.pop((self.name, partition), None)
            self._commit.batch.deletes.append((self.name, partition))

    def save_own(self, partition: int, name: str, state: State) -> None:
        """Save, with the open batch, other state of a partition under an internal name."""
        assert "/" in name, name
        self._commit.batch.cursors[self.name, partition, name] = state

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        return self._keeping.deadline() if self._lets_go and self._keeping is not None else None

    def pump(self, now: float) -> None:
        """Delete what has become too old or too much; bounded work, the rest at the next call."""
        if self._lets_go and self._keeping is not None:
            self._keeping.pump(now)

    def _look_again(self, now: float) -> None:
        self._who_reads()
        if self._lets_go and self._keeping is not None:
            self._keeping.look_again(now)

    def use(self, retention: RetentionPolicy, *, drops_passed: bool, now: float) -> None:
        """Keep records by another retention from now on, in a queue that had one."""
        assert self._keeping is not None, self.name
        self.retention, self.drops_passed = retention, drops_passed
        self._keeping.use(retention)
        self._look_again(now)

    # --- recovery -------------------------------------------------------------------------------------------------

    def begin(self, epoch: str) -> None:
        """Give it an epoch: it is new, or its store was put back to an earlier state."""
        self.epoch = epoch
        self.describe_again()

    def describe_again(self) -> None:
        """Save the description of the queue, as it is when the batch is taken."""
        self._commit.at_last(self.name, self._describe)

    def _describe(self, batch: Batch) -> None:
        state: State = {"kind": self.kind, "partitions": len(self.partitions)}
        if self.sessions:
            state["sessions"] = self.sessions
        if self.kind != OUTBOX:
            state |= {"epoch": self.epoch, "before": self._befores.copy()}
        if self._keeping is not None:
            state |= self._keeping.to_state()
        batch.queues[self.name] = state | {"read": self.was_read}

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Take over what the store held. A saved state that cannot be understood is set aside, and told."""
        for partition, one in enumerate(self.partitions):
            one.first, one.end = snapshot.bounds.get((self.name, partition), (0, 0))
            one.durable_end = one.end
            one.expired = one.lapsed = one.first
        self._recover_description(snapshot)
        stored = [key for key in snapshot.bounds if key[0] == self.name]
        if self.stored_partitions is None and stored:
            self.stored_partitions = max(len(self.partitions), 1 + max(number for _, number in stored))
        if self.stored_partitions not in (None, len(self.partitions)):
            return  # whoever opened it will refuse, and nothing is touched
        for (queue, partition, name), state in snapshot.cursors.items():
            if queue == self.name and ("/" not in name or name.startswith(OUTBOUND)):  # others with a slash are none
                self._recover_cursor(name, partition, state)
        if self.retention is not None:
            self._keeping = Keeping(self, self.retention)
            self._keeping.recover(snapshot, now)
        self._look_again(now)
        if self._is_grown:
            self.describe_again()
        if self.dead_letters is not None:
            self.dead_letters.recover(snapshot, now)

    def _recover_description(self, snapshot: Snapshot) -> None:
        state = snapshot.queues.get(self.name)
        if state is None:
            return
        epoch, count, befores = state.get("epoch", ""), state.get("partitions"), state.get("before", {})
        if not isinstance(epoch, str) or type(count) is not int or count < 1 or not isinstance(befores, dict):
            self._commit.batch.queues[ASIDE + self.name] = state
            self._tell_aside("its description", "it gets a new epoch: readers must start again", state)
            return
        self.epoch = epoch
        shared, sessions = divided(state)
        self.stored_partitions = count
        if count == len(self.partitions):
            self.sessions = sessions
        elif shared == self.shared and sessions < self.sessions:
            self.stored_partitions = len(self.partitions)  # more for sessions, behind all others
            self._is_grown = True
        self.was_read = state.get("read") is True
        known = [str(number) for number in range(len(self.partitions))]
        self._befores = {number: befores[number] for number in known if isinstance(befores.get(number), str)}

    def _recover_cursor(self, name: str, partition: int, state: State) -> None:
        one = self.partitions[partition] if partition < len(self.partitions) else None
        offset = None if one is None else _offset_of(name, state, one.end)
        if one is None or offset is None:
            self._commit.batch.cursors[self.name, partition, ASIDE + name] = state
            self._commit.batch.cursors[self.name, partition, name] = None
            if name == HANDLER:
                self._misplaced.add(partition)
            elif one is not None:
                rest = state if name.startswith(OUTBOUND) else {}
                self._commit.batch.cursors[self.name, partition, name] = {**rest, "offset": one.first}
            self._tell_aside(
                f"the position of the cursor {name!r} in partition {partition}",
                "it restarts at the oldest record",
                state,
            )
            offset = 0
        if one is None:
            return
        self._place_cursor(name, partition, max(offset, one.first), state)

    def _place_cursor(self, name: str, partition: int, offset: int, state: State) -> None:
        is_outbound = name.startswith(OUTBOUND)
        cursor = self.cursors.setdefault(name, Cursor(name, {} if is_outbound else dict(enumerate(self.firsts))))
        cursor.offsets[partition] = offset
        if not is_outbound:
            self._everywhere[name] = cursor
        if name == HANDLER:
            if partition not in self._misplaced:
                self._handled[partition] = state
            return
        if is_outbound:
            self.partitions[partition].outbound.add(name)
            self._is_followed = True
            cursor.about = {key: value for key, value in state.items() if key not in ("offset", "at")}
        else:
            self.was_read = True
        at = state.get("at")
        if type(at) is float:
            cursor.moved_at = at if cursor.moved_at is None else max(at, cursor.moved_at)

    def _tell_aside(self, what: str, so: str, state: State) -> None:
        detail = {"queue": self.name, "what": what, "so": so, "state": repr(state)[:200]}
        self._effects.append(Incident("state.unreadable", level="error", detail=detail))

    # --- for people -----------------------------------------------------------------------------------------------

    def unpassed(self) -> dict[str, list[tuple[int, int]]]:
        """For each cursor where the oldest records are that it has not passed: partition and offset."""
        return {
            cursor.name: [
                (partition, position)
                for partition, offset in cursor.offsets.items()
                if (position := max(offset, self.partitions[partition].first)) < self.partitions[partition].durable_end
            ]
            for cursor in self.cursors.values()
        }

    def describe(self, now: float, ages: Mapping[str, float]) -> dict[str, Any]:
        """What an operator wants to know.

        Args:
            now: Seconds.
            ages: For each cursor the seconds that the oldest record of :meth:`unpassed` has been in the queue.
        """
        partitions = {str(n): {"first": one.first, "end": one.durable_end} for n, one in enumerate(self.partitions)}
        cursors = [self.describe_cursor(cursor, now, ages) for cursor in self.cursors.values()]
        return {
            "name": self.name,
            "kind": self.kind,
            "epoch": self.epoch,
            "retention": self.keeps,
            "records": sum(one.durable_end - one.first for one in self.partitions),
            "partitions": partitions,
            "cursors": sorted(cursors, key=lambda one: (one["kind"], one["name"])),
        }

    def describe_cursor(self, cursor: Cursor, now: float, ages: Mapping[str, float]) -> dict[str, Any]:
        """``lag``: records not passed yet; ``age``: seconds that the oldest of them has been in the queue, 0 without
        any; ``idle``: seconds since the cursor moved, None if unknown."""
        lag = 0
        for partition, offset in cursor.offsets.items():
            one = self.partitions[partition]
            lag += one.durable_end - max(offset, one.first)
        return {
            "name": cursor.name,
            "kind": cursor.kind,
            "offsets": {str(partition): offset for partition, offset in cursor.offsets.items()},
            "lag": lag,
            "age": ages.get(cursor.name, 0.0) if lag else 0.0,
            "idle": None if cursor.moved_at is None else max(0.0, now - cursor.moved_at),
        }


def _offset_of(name: str, state: State, end: int) -> int | None:
    """Below which offset all is done with by what a cursor saved; None if it cannot be understood."""
    if name != HANDLER:
        offset = state.get("offset")
        return offset if type(offset) is int and 0 <= offset <= end else None
    done = ranges_of(state.get("done"), end)
    if done is None:
        return None
    floor = state.get("floor", done.first_gap - 1)
    return floor if type(floor) is int and 0 <= floor < done.first_gap else None


class Queues:
    """Every queue of one side, by name.

    Args:
        commit: Where their changes go.
        effects: Where their effects go.
        read: What reads the store.
    """

    def __init__(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        self._commit = commit
        self._effects = effects
        self._read = read
        self._queues: dict[str, Queue] = {}

    def __iter__(self) -> Iterator[Queue]:
        return iter(tuple(self._queues.values()))

    def add(self, queue: Queue) -> Queue:
        """Let it be one of them."""
        queue.join(self._commit, self._effects, self._read)
        self._queues[queue.name] = queue
        return queue

    def get(self, name: str) -> Queue | None:
        """The queue with that name."""
        return self._queues.get(name)

    def outbox(self, name: str) -> Queue:
        """Return the queue with that name, which contains only outgoing messages; created if it does not exist."""
        return self._queues.get(name) or self.add(Queue(name, drops_passed=True, kind=OUTBOX))

    def recover(self, name: str, part: Snapshot, now: float) -> Queue:
        """Return the queue with that name; as the store describes it, if it was not added.

        Args:
            name: Its name.
            part: Its part of the store.
            now: Seconds.
        """
        queue = self._queues.get(name)
        if queue is None:
            described = part.queues.get(name, {})
            kind, stored = described.get("kind", OUTBOX), described.get("partitions")
            count = max(1, stored if type(stored) is int else 1, *(partition + 1 for _, partition in part.bounds))
            queue = self.add(Queue(name, count, drops_passed=kind == OUTBOX, kind=kind))
            queue.recover(part, now)
        return queue

    def delete(self, queue: Queue) -> None:
        """Delete a queue with all its records."""
        self._queues.pop(queue.name, None)
        queue.delete()
