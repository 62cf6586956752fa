"""Pauses: how long an answer to an address waits, so that the peer reads the 202 to its request first.

The endpoint writes the 202 before the answer, which suffices for most peers. This module owns the list of peers that
need a pause, and its length. It handles neither HTTP nor the protocol.
"""

from __future__ import annotations

from typing import TypeVar

from holdfast.core.events import Transmit
from holdfast.core.messages import Envelope
from holdfast.endpoint.logs import log

PAUSE = 0.05
"""Seconds. A CXF client loses an answer that overtakes its 202, and the call fails: one in thirty without a pause, one
of six hundred with this one, on a busy machine."""

_HASTY = (b"Apache-CXF",)
"""Prefixes of the User-Agent of clients that lose such an answer and do not request it again."""

MOST = 1_024
"""Maximum number of remembered addresses, and of remembered answers. A new one replaces the oldest."""


Value = TypeVar("Value")


class Pauses:
    """Addresses that need a pause: those of peers that ask for one, and those with a request that was repeated after
    its answer was sent, as if the answer had been lost."""

    def __init__(self) -> None:
        self._needed_by: dict[str, None] = {}
        self._answered: dict[str, str] = {}
        """MessageID of a request -> the address that its answer was sent to."""

    def heard(self, envelope: Envelope, user_agent: bytes) -> None:
        """Record a request with its User-Agent header."""
        target = envelope.reply_to
        if target is None or target.is_anonymous or target.is_none or target.address in self._needed_by:
            return
        if user_agent.startswith(_HASTY):
            self._remember(target.address, user_agent.decode("latin-1"))
        elif self._answered.get(envelope.message_id or "") == target.address:
            self._remember(target.address, "a request was repeated after its answer")

    def before(self, sent: Transmit) -> float:
        """Return the seconds to wait before the first transmission of an envelope that answers a request."""
        request = sent.envelope.relates_to
        if request is None or sent.attempt > 1:
            return 0.0
        if sent.to in self._needed_by:
            return PAUSE
        _put(self._answered, request, sent.to)
        return 0.0

    def _remember(self, address: str, why: str) -> None:
        _put(self._needed_by, address, None)
        log.info("answers.delayed", to=address, seconds=PAUSE, why=why)


def _put(known: dict[str, Value], key: str, value: Value) -> None:
    known[key] = value
    if len(known) > MOST:
        del known[next(iter(known))]
