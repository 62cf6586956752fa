"""The Retry-After header of this project's own answers."""

from __future__ import annotations

import random


def spread(seconds: int) -> int:
    """Return a random number of seconds of at least those given, and at most twice as many or two more.

    Peers that are put off together do not come back together.
    """
    return random.randint(seconds, seconds + max(2, seconds))


def retry_after(seconds: int) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that ask a peer to come back after these seconds, or a little later; none for 0."""
    return ((b"Retry-After", b"%d" % spread(seconds)),) if seconds else ()
