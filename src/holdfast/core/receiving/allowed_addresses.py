"""The addresses that a peer may have this endpoint send to: the anonymous one, MakeConnection's, ``none`` and those on
the allow-list."""

from __future__ import annotations

import re
from collections.abc import Callable

from holdfast.core.messages import MC_ANONYMOUS, EndpointReference

# A trailing dot, a port and repeated slashes are other spellings of the same host and path.
_SPECIFICATIONS = re.compile(r"https?://docs\.oasis-open\.org\.?(?::\d*)?/+ws-rx/", re.IGNORECASE)
"""Addresses that a specification gives a meaning. A post to them would reach a documentation site."""


class Addresses:
    """Decides which addresses this endpoint may send to.

    Args:
        allows: Whether messages may be sent to an address that is neither the anonymous one nor ``none``.
    """

    def __init__(self, allows: Callable[[str], bool]) -> None:
        self._allows = allows

    def may_send_to(self, reference: EndpointReference) -> bool:
        """Return whether messages for the reference may be sent, or go nowhere (``none``)."""
        # An answer opens no connection, and to ``none`` nothing is sent.
        if reference.is_answered or reference.is_none:
            return True
        return _SPECIFICATIONS.match(reference.address) is None and self._allows(reference.address)

    def refusal(self, *references: EndpointReference | None) -> str:
        """Return the reason, for the peer that named them, why one of these may not be sent to; "" if all may."""
        for reference in references:
            if reference is None or self.may_send_to(reference):
                continue
            if _SPECIFICATIONS.match(reference.address) is not None:
                return (
                    f"This endpoint cannot send to {reference.address}. A client that polls with WS-MakeConnection "
                    f"names {MC_ANONYMOUS} followed by an identifier of its own."
                )
            return (
                f"This destination does not send to {reference.address}: the address is not on its allow-list. Use "
                "the anonymous address, or ask the operator to allow this one."
            )
        return ""
