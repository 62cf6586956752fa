"""MessageNumbers: the numbers of one outbound Sequence, which of them have a message, and which may be transmitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.messages import SequenceAcknowledgement


class MessageNumbers:
    """The numbers of one outbound Sequence.

    Args:
        limit: The highest number that the policy permits.
    """

    __slots__ = (
        "available", "durable_mark", "is_cut", "is_restored", "is_word_awaited", "known", "last", "limit", "mark",
        "next", "reach", "sent_before", "start", "withheld_mark",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        self.start = 0
        """Offset of the message with number 1."""
        self.available = 0
        """The highest number with a durable message."""
        self.is_cut = False
        """Whether messages after ``available`` go to the next Sequence, even if they are durable."""
        self.is_restored = False
        """Whether the store was restored from an older copy since the Sequence began."""
        self.next = 1
        """The number to transmit next for the first time."""
        self.last: int | None = None
        """The number of 1.0's LastMessage, once decided; the number that closes the Sequence."""
        self.limit = limit
        """The highest number of this Sequence, by the policy or by the peer's MessageNumberRollover."""
        self.sent_before = 0
        """The highest number that may have been transmitted before a crash."""
        self.mark = 0
        """Highest number that may be transmitted once it is saved: ``core.sending.outboxes.transmission_mark``."""
        self.durable_mark = 0
        """The saved mark. No number above it is transmitted, except in a polled Sequence."""
        self.known: int | None = None
        """Highest number that had a message when this run read the Sequence from the store. If the store is an older
        copy, a lost run has given the numbers above it to other messages. None: this run began the Sequence."""
        self.reach = 0
        """No number above it was transmitted by the runs that this store records, also not above the present end."""
        self.is_word_awaited = False
        """Whether the destination has not said yet, in this run, which numbers it has."""
        self.withheld_mark: int | None = None
        """The saved mark while no number above ``known`` may leave; None: ``durable_mark`` is the saved mark."""

    @property
    def highest_sent(self) -> int:
        return self.next - 1

    @property
    def left_before_mark(self) -> int:
        """How many numbers may be transmitted before the mark must move."""
        return self.mark - self.next + 1

    @property
    def is_full(self) -> bool:
        """Whether every number that the Sequence can have was used, so that later messages need another Sequence."""
        return self.next > self.limit or (self.is_cut and self.next > self.available)

    @property
    def end(self) -> int:
        """The number that completes the Sequence, as far as its messages are known."""
        return self.last or min(self.available, self.limit)

    def highest_new(self, *, may_tell_last: bool) -> int:
        """Return the highest number that may leave now."""
        highest = self.available
        if self.last is not None:
            # The last number announces the end, so it waits until the end is durable.
            highest = self.last if may_tell_last else self.last - 1
        return min(highest, self.limit)

    def lower_limit(self, limit: int) -> None:
        """Transmit no number above ``limit``."""
        self.limit = min(self.limit, limit)
        # Numbers above the limit were sent in vain: their messages get numbers in the next Sequence.
        self.next = min(self.next, self.limit + 1)

    def end_with_available(self) -> None:
        """Leave messages that are not available yet to the next Sequence."""
        self.limit = min(self.limit, self.available)

    def keep_sent(self) -> None:
        """Record the numbers transmitted so far, before a lower limit moves some of them to the next Sequence."""
        self.sent_before = max(self.sent_before, self.highest_sent)

    def resume(self, stored: int, withheld: Sequence[int] | None) -> None:
        """Withhold new numbers from now on: the store of an earlier run was read.

        Args:
            stored: The highest number with a stored message, also behind the present end of the Sequence.
            withheld: ``known`` and ``reach`` of an earlier run, if it withheld new numbers until its end; None: every
                stored message is known.
        """
        known, self.reach = (self.available, min(stored, self.mark)) if withheld is None else withheld
        self.known = min(known, self.available)
        if self.last is not None or self.is_restored:
            return  # it gets no new message
        self.is_word_awaited = True
        self.withheld_mark, self.durable_mark = self.durable_mark, min(self.durable_mark, self.known)
        self.sent_before = min(self.sent_before, self.known)

    @property
    def withheld(self) -> list[int] | None:
        """``known`` and ``reach`` as long as new numbers are withheld."""
        return [self.known, self.reach] if self.is_word_awaited and self.known is not None else None

    def may_leave_new(self) -> None:
        """Withhold new numbers no longer: it is durable that the destination has said which ones it has."""
        if self.withheld_mark is not None:
            self.durable_mark, self.withheld_mark = self.withheld_mark, None

    def mark_saved(self, mark: int) -> None:
        """Allow numbers up to ``mark``, which is durable."""
        if self.withheld_mark is None or self.known is None:
            self.durable_mark = mark
        else:
            self.withheld_mark, self.durable_mark = mark, min(mark, self.known)

    def leave_new(self) -> None:
        """Leave every message without a ``known`` number to the next Sequence."""
        if self.known is None or self.last is not None:
            self.end_with_available()
        else:
            self.lower_limit(self.known)

    def know_stored(self) -> None:
        """Let every stored message keep its number: an operator says that the store is an older copy.

        A run after the copy may have sent it with that number.
        """
        if self.known is not None:
            self.known = self.available

    def restored(self) -> None:
        """Adapt to a store that was restored from an older copy.

        A lost run may have transmitted every message in the store, and messages lost in the restore with the next
        numbers. A new message must not reuse such a number, so new messages go to the next Sequence.
        """
        self.is_restored = True
        self.leave_new()
        self.is_word_awaited = False
        self.may_leave_new()
        end = min(self.available, self.limit)
        # Any stored message may have left before the restore, whatever the mark of the older copy says.
        self.mark = max(self.mark, end)
        self.sent_before = self.last or end

    def is_outdated_by(self, ack: SequenceAcknowledgement) -> bool:
        """Whether an acknowledgement covers a number that no run recorded in this store can have transmitted.

        Then the store is an older copy, or the destination is broken. False for a Sequence that this run began: no lost
        run has used it, so the destination is broken (WS-RM 4.4).
        """
        if self.known is None or self.is_restored:
            return False
        highest = max(self.reach, self.highest_sent, self.sent_before, self.last or 0)
        return any(upper > highest for _, upper in ack.ranges) or any(number > highest for number in ack.nacks)

    def known_part(self, ack: SequenceAcknowledgement) -> SequenceAcknowledgement:
        """Return the part of an acknowledgement that concerns known messages, after a restore."""
        # The peer may acknowledge what this copy of the store has never had: that is no invalid acknowledgement.
        known = self.last or self.limit
        ranges = tuple((lower, min(upper, known)) for lower, upper in ack.ranges if lower <= known)
        return replace(ack, ranges=ranges, nacks=tuple(number for number in ack.nacks if number <= known))

    def may_be_acknowledged(self, ack: SequenceAcknowledgement) -> bool:
        """Whether an acknowledgement covers only numbers that may have been sent (WS-RM 4.4)."""
        highest = max(self.next - 1, self.sent_before)
        for lower, upper in ack.ranges:
            if not 0 < lower <= upper <= highest:
                return False
        return not ack.nacks or all(0 < number <= highest for number in ack.nacks)

    def with_record(self, number: int) -> int:
        """Return the highest number up to ``number`` that has a record.

        1.0's LastMessage has a number but no record: the record at its offset belongs to the next Sequence.
        """
        return number if self.last is None else min(number, self.last - 1)
