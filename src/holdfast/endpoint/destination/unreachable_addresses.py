"""Addresses of peers that a destination cannot reach: the log names each, once, with the reason."""

from __future__ import annotations

from typing import Final

from holdfast.endpoint.logs import log

FAILURES: Final = 2
"""Consecutive failures after which an address is reported: a client may restart."""
MOST: Final = 1_000
"""Maximum number of addresses with a count, since peers choose addresses."""
_REMEDY: Final = (
    "Replies and acknowledgements to this address wait. Check that the client listens there, that the address is the "
    "one that this host sees, and that no firewall is between them."
)


class UnreachableAddresses:
    """Counts failed transmissions to each address until it answers."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}

    def failed(self, address: str, reason: str) -> None:
        """Record a failed transmission, and report the address if there were enough."""
        count = self._failures[address] = self._failures.pop(address, 0) + 1
        if len(self._failures) > MOST:
            del self._failures[next(iter(self._failures))]
        if count == FAILURES:
            log.warning("address.unreachable", to=address, reason=reason, remedy=_REMEDY)

    def answered(self, address: str) -> None:
        """Record an answer of the address."""
        if self._failures and self._failures.pop(address, 0) >= FAILURES:
            log.warning("address.reachable", to=address)
