"""MessageNumbers: the numbers of one outbound Sequence, which of them have a message, and which may be transmitted."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.messages import SequenceAcknowledgement


class MessageNumbers:
    """The numbers of one outbound Sequence.

    Args:
        limit: The highest number that the policy permits.
    """

    __slots__ = (
        "available", "durable_mark", "is_cut", "is_restored", "last", "limit", "mark", "next", "sent_before", "start",
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

    def restored(self) -> None:
        """Adapt to a store that was restored from an older copy.

        The process may have transmitted every message in the store, and messages lost in the restore with the next
        numbers. A new message must not reuse such a number, so new messages go to the next Sequence.
        """
        self.is_restored = True
        self.end_with_available()
        # Any stored message may have left before the restore, whatever the mark of the older copy says.
        self.mark = self.durable_mark = max(self.mark, self.available)
        self.sent_before = self.last or self.available

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
