"""Marking: how far each Sequence may have transmitted, saved before it does.

A Sequence's numbers cost no write, so what was transmitted is not known after a crash. What is known is the mark: no
number beyond it ever left. It is saved so far ahead that it moves with what is saved anyway, and seldom by itself.
"""

from __future__ import annotations

from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.rm_source.source import RMSource


class Marking:
    """Keeps the marks of Sequences ahead of what they transmit.

    Args:
        commit: Where marks are saved.
        ready: Keys of the outboxes to look at.
    """

    def __init__(self, commit: GroupCommit, ready: dict[str, None]) -> None:
        self._commit = commit
        self._ready = ready

    def save(self, source: RMSource) -> None:
        """Save the Sequence with the open batch, and move its mark with that, unless it is far ahead."""
        self._commit.save(source.local_id, source)
        if source.numbers_left <= source.policy.mark_ahead * 3 // 4:
            self._move(source)

    def see(self, source: RMSource) -> None:
        """It has transmitted: save its mark, if there is little left up to that."""
        if source.numbers_left <= source.policy.mark_ahead // 4:
            self._move(source)
            self._commit.save(source.local_id, source)

    def _move(self, source: RMSource) -> None:
        if source.polled:
            return  # it may be asked for all that there is
        source.mark = source.highest_sent + source.policy.mark_ahead
        self._commit.then(partial(self._durable, source, source.mark), is_waited_for=False)

    def _durable(self, source: RMSource, mark: int, now: float) -> None:
        source.durable_mark = mark
        self._ready[source.key] = None
