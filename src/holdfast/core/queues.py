"""Queue: where inbound messages wait for whoever reads them, and what may be deleted of it. Sans-IO.

It is the only writer of what a batch says about an inbound queue: its records, its cursors, its description, its
trims. Shells call verbs and never touch an open batch.

Below a **cursor** all is done with, in each partition. There are the handlers' (:data:`HANDLER`) and those of readers
outside, by name. A record is deleted when the retention lets go of it and every cursor has passed it; a reader's
protects only up to a limit, the handlers' without one. A queue that is handled, and that nobody else ever read,
may be told to keep only what is not handled yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect, Incident
from holdfast.core.outbox import ReadRecords
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record, Snapshot, State
from holdfast.core.retention import MARKS, MEASURE_BYTES, RetentionPolicy, Sizes, first_younger, floors_by_size
from holdfast.exceptions import ConfigurationError

HANDLER = "handler"
"""The handlers' cursor. Names of ours that come later have a slash in them, which no reader's may."""
DEAD_LETTERS = "dead-letters"
"""The queue of what no handler could handle."""
ASIDE = "aside/"
"""Before the name under which a saved state is kept that could not be understood."""

TRIM_EVERY = 256
"""Handled records that are deleted together."""
STEPS = 100
"""Records go by age in steps of a hundredth of it: that much older they may get."""
LONGEST_STEP = 3600.0
"""Seconds after which a queue that holds something is looked at again, and that it is served is saved."""
MOST_PAUSES = 100
"""Times in which a queue was not served, of which it knows."""
PARTITIONS_AT_ONCE = 16
"""Partitions looked at in one step; bounds its work."""
MEASURE_EVERY = 1.0
"""Seconds between two steps that count the bytes of what came, where size counts."""

MEASURE_PAUSE = 0.02
"""Seconds between two steps while there is much to count, as when size begins to count."""

_READER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SIZES = "own/sizes"


def check_reader(name: str) -> None:
    """See that a reader's cursor may be called so.

    Raises:
        ConfigurationError: it may not.
    """
    if name == HANDLER:
        raise ConfigurationError(
            f"the cursor {HANDLER!r} is that of the destination's own handlers", remedy="Give the reader another name."
        )
    if _READER.fullmatch(name) is None:
        raise ConfigurationError(
            f"a reader cannot be called {name[:120]!r}",
            remedy="Up to 100 letters, digits, dots, hyphens and underscores; a letter or a digit first.",
        )


class TooManyReaders(ConfigurationError):
    """A queue has as many cursors as it may have."""


@dataclass(slots=True)
class Cursor:
    """Who is done with what.

    Args:
        name: Its name.
        offsets: Of each partition: all below is done with.
        moved_at: When it last moved, seconds since 1970-01-01 UTC; None if that is not known.
    """

    name: str
    offsets: list[int]
    moved_at: float | None = None

    @property
    def is_readers(self) -> bool:
        """Whether it is one of a reader outside."""
        return self.name != HANDLER


@dataclass(slots=True)
class Partition:
    """One append-only list of records.

    Args:
        first: The first offset that is there.
        end: The offset of the next record accepted.
        durable_end: Records below it are durable.
        before: Fingerprint of the last record below ``first``, "" if it is not known.
        expired: Below it the retention has let go.
        lapsed: Below it no reader's cursor protects any more.
        due: When to look again what has become too old; None: when something comes.
        sizes: What its records take, where size counts.
    """

    first: int = 0
    end: int = 0
    durable_end: int = 0
    before: str = ""
    expired: int = 0
    lapsed: int = 0
    due: float | None = None
    sizes: Sizes | None = None


def fingerprint_of(record: Record) -> str:
    """What tells a record from any other that could have been in its place: 16 hexadecimal digits."""
    what = (record.sequence, record.message_number, record.received_at.hex(), record.message_id, record.action)
    return blake2b(repr(what).encode() + record.body, digest_size=8).hexdigest()


class Queue:
    """The queue that inbound messages go to.

    Args:
        name: Its name in the store.
        count: Of its partitions.
        retention: How long it keeps records; None: for ever.
        drops_handled: Whether what is handled may be deleted at once, as long as no reader ever was there.
        kind: What its description calls it.
        dead_letters: The queue of what its handlers could not handle.
    """

    def __init__(
        self,
        name: str,
        count: int = 1,
        retention: RetentionPolicy | None = None,
        *,
        drops_handled: bool = False,
        kind: str = "inbox",
        dead_letters: Queue | None = None,
    ) -> None:
        self.name = name
        self.retention = retention
        self.drops_handled = drops_handled
        self.kind = kind
        self.dead_letters = dead_letters
        self.is_handled = False
        """Whether there are handlers: what they are not done with is kept, whatever the retention says."""
        self.epoch = ""
        """Made with the queue, so that offsets of another store are not taken for its own."""
        self.was_read = False
        """Whether a reader's cursor was ever there."""
        self.stored_partitions: int | None = None
        """How many the store says there are; None for a new queue."""
        self.cursors: dict[str, Cursor] = {}
        self.partitions = [Partition() for _ in range(count)]
        self._alive = 0.0
        self._pauses: list[tuple[float, float]] = []
        self._handled: dict[int, State] = {}
        self._misplaced: set[int] = set()
        self._due: float | None = None
        self._measure_due: float | None = None
        self._lets_go = False
        """Whether the retention deletes, and not the handlers."""

    def join(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        """Say where its changes and effects go, and what reads the store."""
        self._commit = commit
        self._effects = effects
        self._read = read
        if self.dead_letters is not None:
            self.dead_letters.join(commit, effects, read)

    # --- records --------------------------------------------------------------------------------------------------

    @property
    def firsts(self) -> list[int]:
        """Of each partition the first offset that is there."""
        return [one.first for one in self.partitions]

    @property
    def ends(self) -> list[int]:
        """Of each partition the offset that the next durable record will have."""
        return [one.durable_end for one in self.partitions]

    def append(self, partition: int, record: Record) -> int:
        """A record into the open batch; its offset."""
        one = self.partitions[partition]
        offset = one.end
        one.end = offset + 1
        self._commit.batch.appends.append((self.name, partition, offset, record))
        return offset

    def release(self, partition: int, sequence: str, number: int, now: float) -> int:
        """A held record into the queue, with the open batch; its offset."""
        one = self.partitions[partition]
        offset = one.end
        one.end = offset + 1
        self._commit.batch.releases.append((sequence, number, self.name, partition, offset, now))
        return offset

    def stored(self, partition: int, offset: int, now: float) -> None:
        """The record there is durable."""
        one = self.partitions[partition]
        one.durable_end = offset + 1
        if self._lets_go:
            assert self.retention is not None
            if one.due is None and self.retention.age is not None:
                self._look_at(one, now + min(self.retention.age, LONGEST_STEP))
            if one.sizes is not None and self._measure_due is None:
                self._measure_due = now + MEASURE_EVERY

    def _look(self, partition: int, offset: int) -> Record | None:
        found = self._read(self.name, partition, offset, offset + 1)
        return found[0][1] if found else None

    def fingerprint(self, partition: int, position: int) -> str:
        """Of the last record below ``position``: who has read up to there can tell this queue from one that was put
        back to an earlier state and grew on. "" where nothing is known: at 0, and below what is still there."""
        one = self.partitions[partition]
        if position == one.first:
            return one.before
        if not one.first < position <= one.durable_end:
            return ""
        record = self._look(partition, position - 1)
        return "" if record is None else fingerprint_of(record)

    # --- cursors --------------------------------------------------------------------------------------------------

    def handled(self, partition: int, *, at_most_once: bool = False) -> State:
        """What the handlers are done with there, for a :class:`~holdfast.core.cursor.HandlerCursor`. What is deleted
        counts as done with. So does, if nobody may be handed twice, all that is there where their place was lost.
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
        """Move a cursor forward, never back; made if it is not there. Durable with the open batch.

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
        stands = max(min(offset, one.durable_end), cursor.offsets[partition])
        cursor.offsets[partition] = stands
        cursor.moved_at = now
        self._commit.batch.cursors[self.name, partition, name] = state or {"offset": stands, "at": now}
        if self._lets_go:
            soon = now + self._step
            if one.first < one.expired and (one.due is None or one.due > soon):
                self._look_at(one, soon)
        elif self._drops_now and stands - one.first >= TRIM_EVERY:
            self.trim(partition)
        return stands

    def advance(self, name: str, offsets: dict[int, int], now: float) -> dict[int, int]:
        """Move a reader's cursor forward in all partitions, never back; made where the queue begins if it is not there.
        Durable with the open batch.

        Returns:
            Where it stands.

        Raises:
            ConfigurationError: it may not be called so, or there are too many.
        """
        partitions = range(len(self.partitions))
        return {one: self.move_cursor(name, one, offsets.get(one, 0), now) for one in partitions}

    def _new_cursor(self, name: str, now: float) -> Cursor:
        cursor = Cursor(name, self.firsts, now)
        if cursor.is_readers:
            check_reader(name)
            limit = self.retention.max_readers if self.retention is not None else None
            if limit is not None and sum(one.is_readers for one in self.cursors.values()) >= limit:
                raise TooManyReaders(
                    f"the queue {self.name!r} has {limit} readers, as many as it may have",
                    remedy="Delete the cursors of readers that are gone: holdfast queues lists them.",
                )
            if not self.was_read:
                self.was_read = True
                self._describe()
            self._look_again(now)
        self.cursors[name] = cursor
        return cursor

    def drop_cursor(self, name: str, now: float) -> bool:
        """Forget a reader's cursor; whether it was there. Nothing is deleted but what the retention let go of."""
        cursor = self.cursors.get(name)
        if cursor is None or not cursor.is_readers:
            return False
        del self.cursors[name]
        for partition in range(len(self.partitions)):
            self._commit.batch.cursors[self.name, partition, name] = None
        self._look_again(now)
        return True

    # --- what may be deleted --------------------------------------------------------------------------------------

    @property
    def _drops_now(self) -> bool:
        return self.drops_handled and self.is_handled and not self.was_read

    @property
    def keeps(self) -> str:
        """What is kept, in words."""
        if self._drops_now:
            return "until it is handled"
        return "for ever" if self.retention is None else str(self.retention)

    def keep_from(self, partition: int) -> int:
        """The first offset that must be kept: the one place that decides what may be deleted."""
        one = self.partitions[partition]
        handler = self.cursors.get(HANDLER)
        if self._drops_now:
            return handler.offsets[partition] if handler is not None else one.first
        if self.retention is None:
            return one.first
        floor = one.expired
        # Handlers that are not there in this run may come back: their cursor counts as a reader's.
        readers = [cursor.offsets[partition] for cursor in self._waited_for()]
        if readers:
            floor = min(floor, max(min(readers), one.lapsed))
        if self.is_handled:
            floor = min(floor, handler.offsets[partition] if handler is not None else one.first)
        return min(floor, one.durable_end)

    def _waited_for(self) -> list[Cursor]:
        return [cursor for cursor in self.cursors.values() if cursor.is_readers or not self.is_handled]

    def trim(self, partition: int) -> None:
        """Delete what need not be kept."""
        one = self.partitions[partition]
        floor = self.keep_from(partition)
        if floor <= one.first:
            return
        self._tell(partition, floor)
        before = self.fingerprint(partition, floor)
        one.first = floor
        one.before = before
        one.expired, one.lapsed = max(one.expired, floor), max(one.lapsed, floor)
        if one.sizes is not None:
            one.sizes.cut(floor)
        self._commit.batch.trims[self.name, partition] = floor
        self._describe()

    def _tell(self, partition: int, floor: int) -> None:
        """Nothing goes unseen without a word: what nobody has read, and who has missed it."""
        first = self.partitions[partition].first
        read = max((cursor.offsets[partition] for cursor in self.cursors.values()), default=first)
        where = {"queue": self.name, "partition": partition}
        if floor > read:
            detail = {**where, "records": floor - max(read, first), "retention": self.keeps}
            self._effects.append(Incident("records deleted unread", level="warning", detail=detail))
        for cursor in self._waited_for():
            missed = floor - max(cursor.offsets[partition], first)
            if missed > 0:
                detail = {**where, "cursor": cursor.name, "records": missed, "retention": self.keeps}
                self._effects.append(Incident("reader left behind", level="warning", detail=detail))

    def delete_below(self, partition: int, floor: int) -> None:
        """Delete records that are known to be over, whoever reads."""
        one = self.partitions[partition]
        if floor > one.first:
            one.first = floor
            self._commit.batch.trims[self.name, partition] = floor

    def save_own(self, partition: int, name: str, state: State) -> None:
        """Save, with the open batch, what else is known of a partition, under a name of ours."""
        assert "/" in name, name
        self._commit.batch.cursors[self.name, partition, name] = state

    def drop_below(self, partition: int, offset: int) -> None:
        """Delete what is below that offset, also in the open batch: everybody has it who wanted it."""
        one = self.partitions[partition]
        if offset > one.first:
            one.first = offset
            self._commit.batch.trims[self.name, partition] = offset

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        if self._measure_due is None or self._due is None:
            return self._due if self._measure_due is None else self._measure_due
        return min(self._due, self._measure_due)

    def pump(self, now: float) -> None:
        """Delete what has become too old or too much; bounded work, the rest at the next call."""
        if self._measure_due is not None and self._measure_due <= now:
            self._measure(now)
        if self._due is None or self._due > now:
            return
        left = PARTITIONS_AT_ONCE
        for partition, one in enumerate(self.partitions):
            if left and one.due is not None and one.due <= now:
                left -= 1
                self._expire(partition, now)
                self.trim(partition)
        self._due = min((one.due for one in self.partitions if one.due is not None), default=None)
        if now - self._alive >= LONGEST_STEP:
            self._alive = now
            self._describe()

    @property
    def _step(self) -> float:
        assert self.retention is not None
        ages = [age for age in (self.retention.age, self.retention.reader_age) if age is not None]
        return min(LONGEST_STEP, min(ages, default=LONGEST_STEP) / STEPS)

    def _look_at(self, one: Partition, when: float) -> None:
        one.due = when
        self._due = when if self._due is None else min(self._due, when)

    def _look_again(self, now: float) -> None:
        self._lets_go = self.retention is not None and not self._drops_now
        if self._lets_go:
            for one in self.partitions:
                self._look_at(one, now)
            self._measure_due = now if self.partitions[0].sizes is not None else None

    def _expire(self, partition: int, now: float) -> None:
        """See how far the retention lets go by age, and when to look again."""
        one = self.partitions[partition]
        retention = self.retention
        assert retention is not None
        look = partial(self._look, partition)
        dues: list[float] = []
        again = now + self._step
        if retention.age is not None:
            start = max(one.expired, one.first)
            one.expired, at = first_younger(look, start, one.durable_end, self._before(now, retention.age))
            if one.expired < one.durable_end:
                dues.append(again if at is None else at + retention.age)
        if retention.reader_age is not None and self._waited_for():
            start = max(one.lapsed, one.first)
            one.lapsed, at = first_younger(look, start, one.durable_end, self._before(now, retention.reader_age))
            if one.lapsed < one.durable_end:
                dues.append(again if at is None else at + retention.reader_age)
        one.due = min(max(again, min(dues)), now + LONGEST_STEP) if dues else None

    def _before(self, now: float, age: float) -> float:
        """What was delivered before is older than ``age``, counting only time in which the queue was served: neither
        a long outage nor a clock that is wrong at the start makes old what nobody could read meanwhile."""
        before = now - age
        for start, end in reversed(self._pauses):
            if end <= before:
                break
            before -= end - start
        return before

    def _measure(self, now: float) -> None:
        """Count the bytes of what came, and see how far the retention lets go by size."""
        assert self.retention is not None
        left = MEASURE_BYTES
        for partition, one in enumerate(self.partitions):
            assert one.sizes is not None
            is_marked = False
            while left > 0 and one.sizes.measured < one.durable_end:
                found = self._read(self.name, partition, one.sizes.measured, one.durable_end)
                if not found:
                    break
                total = one.sizes.total
                for offset, record in found:
                    is_marked |= one.sizes.add(offset, record)
                left -= one.sizes.total - total
            if is_marked:
                self._commit.batch.cursors[self.name, partition, _SIZES] = one.sizes.to_state()
        self._measure_due = now + MEASURE_PAUSE if left <= 0 else None
        sizes = [one.sizes for one in self.partitions if one.sizes is not None]
        for limit, name in ((self.retention.size, "expired"), (self.retention.reader_size, "lapsed")):
            if limit is not None:
                for one, floor in zip(self.partitions, floors_by_size(sizes, limit), strict=True):
                    setattr(one, name, max(getattr(one, name), floor))
        for partition in range(len(self.partitions)):
            self.trim(partition)

    # --- recovery -------------------------------------------------------------------------------------------------

    def begin(self, epoch: str) -> None:
        """Give it an epoch: it is new, or its store was put back to an earlier state."""
        self.epoch = epoch
        self._describe()

    def _describe(self) -> None:
        befores = {str(number): one.before for number, one in enumerate(self.partitions) if one.before}
        description: State = {"kind": self.kind, "epoch": self.epoch, "partitions": len(self.partitions)}
        served = {"alive": self._alive, "pauses": [list(pause) for pause in self._pauses]}
        self._commit.batch.queues[self.name] = {**description, **served, "read": self.was_read, "before": befores}

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
            if queue == self.name and "/" not in name:  # those with a slash are no cursors
                self._recover_cursor(name, partition, state)
        if self.retention is not None:
            self._recover_sizes(snapshot, self.retention)
            self._recover_pauses(snapshot, now)
        self._look_again(now)
        if self.dead_letters is not None:
            self.dead_letters.recover(snapshot, now)

    def _recover_description(self, snapshot: Snapshot) -> None:
        state = snapshot.queues.get(self.name)
        if state is None:
            return
        epoch, count, befores = state.get("epoch", ""), state.get("partitions"), state.get("before", {})
        if not isinstance(epoch, str) or type(count) is not int or count < 1 or not isinstance(befores, dict):
            self._commit.batch.queues[ASIDE + self.name] = state
            self._tell_aside("its description", "it gets a new epoch: readers must begin anew", state)
            return
        self.epoch = epoch
        self.stored_partitions = count
        self.was_read = state.get("read") is True
        for number, one in enumerate(self.partitions):
            before = befores.get(str(number), "")
            one.before = before if isinstance(before, str) else ""

    def _recover_pauses(self, snapshot: Snapshot, now: float) -> None:
        state = snapshot.queues.get(self.name, {})
        pauses, alive = state.get("pauses"), state.get("alive")
        if isinstance(pauses, list) and all(_is_pause(pause) for pause in pauses):
            self._pauses = [(pause[0], pause[1]) for pause in pauses]
        newest = [self._look(number, one.end - 1) for number, one in enumerate(self.partitions) if one.end > one.first]
        times = [record.delivered_at for record in newest if record is not None]
        if type(alive) is float and alive > 0:
            times.append(alive)
        since = max(times, default=now)
        if now - since > 2 * LONGEST_STEP:
            self._pauses = [*self._pauses, (since, now)][-MOST_PAUSES:]
        self._alive = now

    def _recover_cursor(self, name: str, partition: int, state: State) -> None:
        one = self.partitions[partition] if partition < len(self.partitions) else None
        offset = None if one is None else _offset_of(name, state, one.end)
        if one is None or offset is None:
            self._commit.batch.cursors[self.name, partition, ASIDE + name] = state
            self._commit.batch.cursors[self.name, partition, name] = None
            if name == HANDLER:
                self._misplaced.add(partition)
            elif one is not None:
                self._commit.batch.cursors[self.name, partition, name] = {"offset": one.first}
            self._tell_aside(
                f"the place of the cursor {name!r} in partition {partition}", "it begins anew at what is there", state
            )
            offset = 0
        if one is None:
            return
        cursor = self.cursors.setdefault(name, Cursor(name, self.firsts))
        cursor.offsets[partition] = max(offset, one.first)
        if name == HANDLER:
            if partition not in self._misplaced:
                self._handled[partition] = state
            return
        self.was_read = True
        at = state.get("at")
        if type(at) is float:
            cursor.moved_at = at if cursor.moved_at is None else max(at, cursor.moved_at)

    def _tell_aside(self, what: str, so: str, state: State) -> None:
        detail = {"queue": self.name, "what": what, "so": so, "state": repr(state)[:200]}
        self._effects.append(Incident("saved state not understood, set aside", level="error", detail=detail))

    def _recover_sizes(self, snapshot: Snapshot, retention: RetentionPolicy) -> None:
        limits = [limit for limit in (retention.size, retention.reader_size) if limit is not None]
        if not limits:
            return
        for partition, one in enumerate(self.partitions):
            state = snapshot.cursors.get((self.name, partition, _SIZES))
            one.sizes = Sizes(one.first, min(limits) // MARKS, state)
            if not one.first <= one.sizes.measured <= one.end:
                one.sizes = Sizes(one.first, min(limits) // MARKS)
            one.sizes.cut(one.first)

    # --- for people -----------------------------------------------------------------------------------------------

    def describe(self, now: float) -> dict[str, Any]:
        """What an operator wants to know."""
        partitions = {str(n): {"first": one.first, "end": one.durable_end} for n, one in enumerate(self.partitions)}
        cursors = [self.describe_cursor(cursor, now) for cursor in self.cursors.values()]
        return {
            "name": self.name,
            "kind": self.kind,
            "epoch": self.epoch,
            "retention": self.keeps,
            "records": sum(one.durable_end - one.first for one in self.partitions),
            "partitions": partitions,
            "cursors": sorted(cursors, key=lambda one: (one["kind"], one["name"])),
        }

    def describe_cursor(self, cursor: Cursor, now: float) -> dict[str, Any]:
        """``lag``: records not passed yet; ``age``: seconds that the oldest of them has been in the queue, 0 if there
        is none; ``idle``: seconds since it moved, None if that is not known."""
        lag, age = 0, 0.0
        for partition, (offset, one) in enumerate(zip(cursor.offsets, self.partitions, strict=True)):
            position = max(offset, one.first)
            lag += one.durable_end - position
            oldest = self._look(partition, position) if position < one.durable_end else None
            if oldest is not None:
                age = max(age, now - oldest.delivered_at)
        return {
            "name": cursor.name,
            "kind": "reader" if cursor.is_readers else "handler",
            "offsets": {str(partition): offset for partition, offset in enumerate(cursor.offsets)},
            "lag": lag,
            "age": age,
            "idle": None if cursor.moved_at is None else max(0.0, now - cursor.moved_at),
        }


def _is_pause(pause: object) -> bool:
    is_pair = isinstance(pause, list) and len(pause) == 2 and all(type(one) is float for one in pause)
    return is_pair and pause[0] <= pause[1]  # type: ignore[index]


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


def ranges_of(saved: object, end: int) -> AcknowledgementRanges | None:
    """Offsets that were saved as ranges of numbers from 1 up to ``end``; None if they are not that."""
    if not isinstance(saved, list) or len(saved) % 2 or not all(type(number) is int for number in saved):
        return None
    # Numbers from 1, as ranges that neither touch nor cross.
    if any(upper < lower for lower, upper in zip(saved[0::2], saved[1::2], strict=True)):
        return None
    if any(lower < upper + 2 for upper, lower in zip([-1, *saved[1::2]], saved[0::2], strict=False)):
        return None
    if saved and saved[-1] > end:
        return None
    return AcknowledgementRanges.from_state(saved)
