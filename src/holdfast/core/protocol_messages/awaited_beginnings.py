"""Sequences that begin with their first message, and that a later message announced before it (WS-RM 2003/03)."""

from __future__ import annotations

from collections import OrderedDict

MOST_AWAITED = 1_024
"""Sequences that are remembered. A forgotten one is only awaited for longer."""


class AwaitedBeginnings:
    """Times of the earliest messages of Sequences without their message 1."""

    def __init__(self) -> None:
        self._since: OrderedDict[str, float] = OrderedDict()

    def may_still_begin(self, identifier: str, patience: float, now: float) -> bool:
        """Record a later message, and return whether message 1 may be on its way.

        It was lost or overtaken, unless the Sequence ended here so long ago that it is forgotten.

        Args:
            patience: Seconds that message 1 may need.
        """
        since = self._since.setdefault(identifier, now)
        # The oldest is forgotten: a peer could otherwise name Identifiers without end.
        if len(self._since) > MOST_AWAITED:
            self._since.popitem(last=False)
        return now - since <= patience

    def begun(self, identifier: str) -> None:
        """Forget a Sequence once its message 1 has arrived."""
        self._since.pop(identifier, None)
