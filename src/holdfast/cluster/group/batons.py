"""Batons: which node last took a partition, in the log of a topic that all nodes read in the same order.

A node acts on a partition only while it has the partition's baton. It takes a baton with a note, and releases it with
another one when its worker has ended. Each note names the note that it follows, and counts only if none came between:
so of several nodes that take a baton at once, the first one has it, and all nodes agree. A baton that its node released
may be taken at once. To take any other one, a node has to wait until no earlier node can act any longer
(:mod:`holdfast.cluster.group.membership`). No clock and no connection is in here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatonNote:
    """A note about the baton of one partition.

    Args:
        partition: The partition.
        node, since: Its author, and when that node started.
        epoch: The author's number of its assignment: another one each time it gets the partition.
        after: The offset of the note that it follows; -1: it is the first one.
        is_free: Whether the author releases the baton; otherwise it takes it.
    """

    partition: int
    node: str
    since: float
    epoch: int
    after: int
    is_free: bool = False


@dataclass(slots=True)
class Baton:
    """The baton of one partition, as far as its notes were read.

    Attributes:
        version: The offset of the last note; -1: there is none.
        last: The last note that counts; None: unknown.
        is_certain: Whether that was the last note of all. Kafka deletes earlier notes at some time, so a node that
            started later could not know whether a note that does not follow the one before counts.
    """

    version: int = -1
    last: BatonNote | None = None
    is_certain: bool = False

    def read(self, offset: int, note: BatonNote) -> bool:
        """Read a note, and return whether it counts."""
        if offset <= self.version:  # the topic is read once more from its beginning
            return False
        self.is_certain = note.after == self.version
        self.version = offset
        if self.is_certain:
            self.last = note
        return self.is_certain

    @property
    def is_free(self) -> bool:
        """Whether its node released it."""
        return self.is_certain and self.last is not None and self.last.is_free


class Batons:
    """The batons of all partitions, as one node reads them and takes them.

    Args:
        node, since: The node, and when it started.
        partitions: How many.
        hold: Seconds for which a node acts on what it saw.
    """

    def __init__(self, node: str, since: float, partitions: int, hold: float) -> None:
        self._own = node, since
        self._hold = hold
        self._batons = {partition: Baton() for partition in range(partitions)}
        self._written: dict[int, tuple[BatonNote, float]] = {}
        """Partition -> the note that is on its way, and since when."""
        self._changed: dict[int, float] = {}
        """Partition -> when a note was read, if no look was sent since."""
        self._quiet: dict[int, float] = {}
        """Partition -> when the first look was answered that was sent after the last note was read."""

    def read(self, offset: int, note: BatonNote, now: float) -> None:
        """Read a note from the topic."""
        baton, partition = self._batons[note.partition], note.partition
        if offset <= baton.version:
            return
        counts = baton.read(offset, note)
        own, sent = self._written.get(partition, (None, 0.0))
        if own == note:
            del self._written[partition]
        if counts and (note.node, note.since) == self._own and (own != note or now > sent + self._hold):
            # Kafka may have deleted another one that came between. That takes longer than a hold.
            baton.is_certain, baton.last = False, None
        self._changed[partition] = now
        self._quiet.pop(partition, None)

    def looked(self, sent: float, now: float) -> None:
        """The coordinator described the group."""
        for partition, changed in list(self._changed.items()):
            if sent > changed:
                del self._changed[partition]
                self._quiet[partition] = now

    def has(self, partition: int, epoch: int) -> bool:
        """Whether this node took the baton for this assignment."""
        last = self._batons[partition].last
        return last is not None and not last.is_free and (last.node, last.since, last.epoch) == (*self._own, epoch)

    def may_take(self, partition: int) -> bool:
        """Whether no node acts on the partition now, because its baton is released, or this node's own."""
        baton = self._batons[partition]
        return baton.is_free or self.may_release(partition)

    def may_release(self, partition: int) -> bool:
        """Whether this node has the baton, for whichever assignment."""
        baton = self._batons[partition]
        return baton.is_certain and self._is_own(baton) and not baton.is_free

    def is_quiet(self, partition: int, sent: float) -> bool:
        """Whether looks at the group, the last of which was sent then, have lasted for a hold since the last note."""
        if self._batons[partition].version < 0:
            return True
        quiet = self._quiet.get(partition)
        return quiet is not None and sent > quiet + self._hold

    def taker(self, partition: int) -> tuple[str, float] | None:
        """Return the node that has a baton, and when that node started; None: none, or unknown."""
        last = self._batons[partition].last
        return None if last is None or last.is_free else (last.node, last.since)

    def write(self, partition: int, epoch: int, now: float, *, is_free: bool) -> BatonNote | None:
        """Return the note to write now; None: one is on its way."""
        if partition in self._written and now <= self._written[partition][1] + self._hold:
            return None
        note = BatonNote(partition, *self._own, epoch, self._batons[partition].version, is_free)
        self._written[partition] = note, now
        return note

    def _is_own(self, baton: Baton) -> bool:
        return baton.last is not None and (baton.last.node, baton.last.since) == self._own
