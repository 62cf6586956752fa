"""Trust: until when each worker of a node may act on its partition, in memory that the node's processes share.

The agent writes a time for each partition, and the worker of the partition reads it. After that time, a worker accepts
no message, calls no handler and forwards nothing: another node may do so. The stored data need no clock: they are
protected by the epoch in each commit.

On Kafka, the memory also has what the worker has read in its log, and what it may do with it. Before it may act, until
another time, it may claim a log that no process owns. It replaces another claim only if the agent vouches that no
process acts by that claim.

The memory also has the last batch of each partition that its worker made durable, and the bytes that must
be free on the disk of its cache before it accepts messages, for the agent; and the time of the database or of Kafka,
for the workers.

The time of a partition is 0 from the loss of a claim until the next claim, and the agent claims no partition while an
earlier worker of it runs. So a worker never acts on a later claim than its own.

ClockCheck: the time of day by the database or by Kafka, and how far the clock of this machine is from it. No trust
depends on it.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterable
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def trust_clock() -> float:
    """Return the seconds since the machine started. On Linux they include the time that it was suspended, which
    ``time.monotonic`` omits."""
    return time.clock_gettime(_CLOCK)


class Trust:
    """The times of all partitions. Create it before the processes are forked; no partition is trusted yet."""

    def __init__(self, count: int) -> None:
        # Native doubles at aligned addresses: each is written and read as a whole.
        self._until = memoryview(mmap.mmap(-1, 8 * count)).cast("d")
        self._batches = memoryview(mmap.mmap(-1, 16 * count)).cast("q")
        self._wanted_bytes = memoryview(mmap.mmap(-1, 8 * count)).cast("q")
        self._clock_offset = memoryview(mmap.mmap(-1, 8)).cast("d")
        self._follows = memoryview(mmap.mmap(-1, 8 * count)).cast("d")
        self._vouched = memoryview(mmap.mmap(-1, 8 * count)).cast("q")
        self._read = memoryview(mmap.mmap(-1, 8 * count)).cast("q")
        """The last claim of each log that its worker read, doubled, and one more if no process owns it; 0: not read."""
        self._own = memoryview(mmap.mmap(-1, 8 * count)).cast("q")

    def set(self, partition: int, until: float) -> None:
        """Set the time, in seconds of :func:`trust_clock`, until which the worker of a partition may act."""
        self._until[partition] = until

    def until(self, partition: int) -> float:
        """Return that time; 0 if no worker may act on the partition."""
        return self._until[partition]

    def permit(self, partition: int, follows: float, vouched: int) -> None:
        """Let the worker of a partition claim its log.

        Args:
            partition: The partition.
            follows: Until when it may if no process owns the log, although it may not act.
            vouched: The last claim that it may replace.
        """
        self._follows[partition], self._vouched[partition] = follows, vouched

    def log_of(self, partition: int) -> tuple[int, bool, int] | None:
        """Return the last claim of a log that its worker read, whether no process owns the log by that, and the last
        claim of a worker of this node; None: no worker has read the log to its end since :meth:`forget_log`."""
        read = self._read[partition]
        return (read >> 1, bool(read & 1), self._own[partition]) if read else None

    def own_claim(self, partition: int) -> int:
        """Return the last claim of a worker of this node; 0: there is none."""
        return self._own[partition]

    def forget_log(self, partition: int) -> None:
        """Forget what an earlier worker read."""
        self._read[partition] = 0

    def revoke(self) -> None:
        """Let no worker act. The supervisor calls this when the agent has ended, for whatever reason."""
        for partition in range(len(self._until)):
            self._until[partition] = self._follows[partition] = 0.0

    def batches(self) -> dict[int, tuple[int, int]]:
        """Return the last durable batch of each partition that a worker of this node served."""
        count = len(self._until)
        found = {one: (self._batches[2 * one], self._batches[2 * one + 1]) for one in range(count)}
        return {one: batch for one, batch in found.items() if batch[0]}

    def wanted_bytes(self, partitions: Iterable[int]) -> int:
        """Return the most that a worker of these partitions noted. Forget what those of the others did."""
        kept = set(partitions)
        for partition in range(len(self._wanted_bytes)):
            if partition not in kept:
                self._wanted_bytes[partition] = 0
        return max(self._wanted_bytes)

    @property
    def clock_offset(self) -> float | None:
        """The offset that :class:`ClockCheck` finds, for the clock of each worker that starts; None: not known yet."""
        return self._clock_offset[0] or None

    @clock_offset.setter
    def clock_offset(self, seconds: float | None) -> None:
        self._clock_offset[0] = seconds or 0.0

    def of(self, partition: int) -> PartitionTrust:
        return PartitionTrust(self, partition)


class PartitionTrust:
    """The trust of one partition's worker.

    Args:
        trust: The times of all partitions.
        partition: The partition.
    """

    def __init__(self, trust: Trust, partition: int) -> None:
        self._trust = trust
        self._partition = partition

    def is_trusted(self, now: float | None = None) -> bool:
        """Whether the worker may act now. Ask before it opens its store, and before each request, handler call and
        forward.

        Args:
            now: In seconds of :func:`trust_clock`; None: read the clock.
        """
        return (trust_clock() if now is None else now) < self._trust.until(self._partition)

    def may_claim(self, epoch: int, *, is_free: bool) -> bool:
        """Note the last claim of the log, and return whether the worker may claim it now; see
        :class:`holdfast.store.Turn`."""
        trust, number = self._trust, self._partition
        trust._read[number] = 2 * epoch + is_free
        is_known = is_free or epoch <= max(trust._own[number], trust._vouched[number])
        return is_known and trust_clock() < max(trust._until[number], trust._follows[number])

    def claimed(self, epoch: int) -> None:
        """Note that the worker has the log by this claim."""
        self._trust._own[self._partition] = epoch

    def remember(self, epoch: int, batch: int) -> None:
        """Remember the last durable batch, unless a later one is known: the epoch of the worker's store, and its
        number. The worker calls this before it acknowledges anything in the batch."""
        batches, at = self._trust._batches, 2 * self._partition
        if batch >= batches[at + 1]:
            batches[at], batches[at + 1] = epoch, batch

    def want(self, wanted: int) -> None:
        """Note how many bytes must be free on the disk before the worker accepts messages; 0: it does."""
        self._trust._wanted_bytes[self._partition] = wanted

    @property
    def clock_offset(self) -> float | None:
        """The offset of the clock of a worker that starts; None: not known yet."""
        return self._trust.clock_offset


MOST_APART: Final = 10.0
"""Seconds from which a difference is reported."""
CLOCK_REMEDY: Final = (
    "Synchronize the clocks of the machines (NTP). The processes of this node use the other clock. If that one was "
    "wrong, restart the nodes one after the other when it is right."
)


def wall_offset() -> float:
    """Return the seconds from ``time.monotonic()`` to the time of day by the clock of this machine."""
    return time.time() - time.monotonic()


class ClockCheck:
    """Compares the clock of this machine with that of the database or of Kafka.

    Attributes:
        offset: Seconds from ``time.monotonic()`` to the time of the other clock; None: not compared yet. They are the
            same in all processes of this machine, and do not change when its time of day is corrected.
        ahead: Seconds that this machine's clock is ahead, negative if it is behind; 0: less than ``MOST_APART``.
    """

    def __init__(self) -> None:
        self.offset: float | None = None
        self.ahead = 0

    def compare(self, before: float, shared: float, after: float, wall: float) -> None:
        """Compare the clocks: the other machine read its own one between two moments of this machine.

        A slow answer may hide a difference, but never looks like one. What was reported stays unless it is clearly
        wrong.

        Args:
            before, after: The moments, in seconds of ``time.monotonic()``.
            shared: The time of the other clock, in seconds since 1970-01-01 UTC.
            wall: What :func:`wall_offset` returned.
        """
        known = wall if self.offset is None else self.offset
        self.offset = min(max(known, shared - after), shared - before)
        found = wall - self.offset
        if abs(found - self.ahead) >= MOST_APART / 2:
            self.ahead = round(found) if abs(found) > MOST_APART else 0

    def report_change(self, before: int, report: Callable[..., None], node: str) -> None:
        """Log that the clocks differ, or agree again, if that has changed.

        Args:
            before: The value of ``ahead`` at the last call; 0 at first.
            report: Logs an event: its level, its name, then its fields.
            node: The name of this node.
        """
        if self.ahead and self.ahead != before:
            report("warning", "cluster.clock_differs", node=node, seconds=self.ahead, remedy=CLOCK_REMEDY)
        elif before and not self.ahead:
            report("info", "cluster.clock_agrees", node=node)
