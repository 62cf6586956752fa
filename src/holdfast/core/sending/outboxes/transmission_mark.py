"""Marks: how far each Sequence may have transmitted, saved before it does.

A Sequence's numbers cost no write, so after a crash the transmitted numbers are unknown. Only the mark is known: no
number beyond it was ever transmitted. It is saved so far ahead that it moves with other saves, and seldom needs one.
"""

from __future__ import annotations

from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.rm_source.source import RMSource


class TransmissionMarks:
    """Keeps the marks of Sequences ahead of their transmissions."""

    def __init__(self, commit: GroupCommit, ready: dict[str, None]) -> None:
        self._commit = commit
        self._ready = ready

    def save(self, source: RMSource) -> None:
        """Save the Sequence with the open batch, and move its mark unless that is far ahead."""
        self._commit.save(source.local_id, source)
        # Other saves move it while three quarters are left, so that it seldom needs a separate save.
        if source.numbers.left_before_mark <= source.policy.mark_ahead * 3 // 4:
            self._move(source)

    def see(self, source: RMSource) -> None:
        """After a transmission, save the mark if few numbers are left before it."""
        if source.numbers.left_before_mark <= source.policy.mark_ahead // 4:
            self._move(source)
            self._commit.save(source.local_id, source)

    def leave_new(self, source: RMSource, *, is_restored: bool) -> None:
        """Let the Sequence end with the messages whose numbers are known, durably: the rest goes to the next one.

        Args:
            is_restored: Whether the store was restored from an older copy; else that is unknown.
        """
        numbers = source.numbers
        if is_restored:
            numbers.restored()
        else:
            numbers.leave_new()
        self._commit.save(source.local_id, source)
        self._commit.then(partial(self._durable, source, numbers.mark))

    def hear(self, source: RMSource) -> None:
        """Let new numbers leave, durably: the destination has said which numbers it has, and it has none of them."""
        source.numbers.is_word_awaited = False
        self._commit.save(source.local_id, source)
        self._commit.then(partial(self._may_leave_new, source))

    def _may_leave_new(self, source: RMSource, now: float) -> None:
        source.numbers.may_leave_new()
        self._ready[source.key] = None

    def _move(self, source: RMSource) -> None:
        if source.polled:
            return  # any of its messages may be requested
        source.numbers.mark = source.numbers.highest_sent + source.policy.mark_ahead
        # Nothing waits for it: a quarter of the numbers is left when it is saved for itself alone.
        self._commit.then(partial(self._durable, source, source.numbers.mark), is_waited_for=False)

    def _durable(self, source: RMSource, mark: int, now: float) -> None:
        source.numbers.mark_saved(mark)
        self._ready[source.key] = None
