"""RequestFreshness: whether a request of another node is new, and not a recorded one that an attacker sends again.

Each process that answers requests has a **challenge**, a random text, and each process that asks has a random name and
counts its requests. A stamp names the challenge, the sender and the number, and the proof of the request covers it. A
number counts once (the window of RFC 4303, section 3.4.3), and a challenge for two periods. So a request that an
attacker held back is worth nothing after two minutes, whatever the clocks of the nodes say. A sender that names another
challenge gets the present one, and sends the request again. Time and randomness are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

PERIOD: Final = 60.0
"""Seconds until there is another challenge. The one before it counts as long again."""
WINDOW: Final = 4096
"""Numbers below the highest one of a sender that may still arrive."""
MOST_SENDERS: Final = 4096
"""Senders remembered for a challenge. One more, and there is another challenge."""


@dataclass(slots=True)
class _Window:
    """The numbers of one sender: the highest, and a bit for each of those below it."""

    highest: int = 0
    seen: int = 0

    def admit(self, number: int) -> bool:
        """Count a number; return False if it was counted before, or is too far below the highest."""
        if number > self.highest:
            self.seen = (self.seen << min(number - self.highest, WINDOW) | 1) & ((1 << WINDOW) - 1)
            self.highest = number
            return True
        below = self.highest - number
        if below >= WINDOW or self.seen >> below & 1:
            return False
        self.seen |= 1 << below
        return True


@dataclass(slots=True)
class _Challenge:
    text: str = ""
    since: float = float("-inf")
    senders: dict[str, _Window] = field(default_factory=dict)


class RequestFreshness:
    """What one process remembers of the requests that it has admitted.

    Args:
        new_challenge: Returns a random text without dots.
    """

    def __init__(self, new_challenge: Callable[[], str]) -> None:
        self._new = new_challenge
        self._present, self._before = _Challenge(), _Challenge()

    def challenge(self, now: float) -> str:
        if now - self._present.since >= PERIOD:
            is_recent = now - self._present.since < 2 * PERIOD
            self._renew(now, self._present if is_recent else _Challenge())
        return self._present.text

    def admit(self, stamp: str, now: float) -> bool:
        """Return whether a request with that stamp is new. The proof of the request was checked before."""
        present = self.challenge(now)
        challenge, sender, number = parts_of(stamp)
        if not challenge or challenge not in (present, self._before.text):
            return False
        senders = (self._present if challenge == present else self._before).senders
        window = senders.get(sender)
        if window is None:
            # Only nodes with the secret come here, but each restart is another sender.
            if len(senders) >= MOST_SENDERS:
                self._renew(now, _Challenge())
                return False
            window = senders[sender] = _Window()
        return window.admit(number)

    def _renew(self, now: float, before: _Challenge) -> None:
        self._before = before
        self._present = _Challenge(self._new(), now)


class RequestStamps:
    """The stamps of one process that asks others.

    Args:
        sender: A random text without dots.
    """

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._known: dict[str, str] = {}
        self._numbers = count(1)

    def next(self, place: str) -> str:
        return f"{self._known.get(place, '')}.{self._sender}.{next(self._numbers)}"

    def learn(self, place: str, challenge: str) -> None:
        """Note the challenge of the process at a place."""
        if len(self._known) >= MOST_SENDERS:
            self._known.clear()
        self._known[place] = challenge


def parts_of(stamp: str) -> tuple[str, str, int]:
    """Return the challenge, the sender and the number in a stamp; an empty challenge if the text is not a stamp."""
    challenge, _, rest = stamp.partition(".")
    sender, _, number = rest.partition(".")
    if not (sender and number.isascii() and number.isdecimal() and len(number) <= 18):
        return "", "", 0
    return challenge, sender, int(number)
