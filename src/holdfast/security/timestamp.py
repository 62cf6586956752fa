"""Timestamp: a Timestamp alone in the Security header, which a source writes and a destination demands."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.security.freshness import Freshness
from holdfast.security.header import Invalid, add_security, read_security, remove_security, write_timestamp
from holdfast.security.names import SECURITY
from holdfast.security.username_token import TIMESTAMPED, refused, transport_binding
from holdfast.settings import check_arguments
from holdfast.wire.policy.assertions import TIMESTAMP


class Timestamp(Processor):
    """Adds a Timestamp to every message, and demands a fresh one: ``Source(url, processors=[Timestamp()])``, and the
    same for a Destination.

    It suits a service whose policy demands IncludeTimestamp with TransportBinding, and no token. A Timestamp proves
    nothing about its sender, and nothing signs it: use https. A destination answers a request without a Timestamp, or
    with an old one, with a fault that does not tell the cause; the log does. Nothing of such a request is stored or
    acknowledged. A source accepts answers without a Timestamp.

    Args:
        freshness: How old a message may be, and how far the peer's clock may be ahead or behind.
        clock: Returns the seconds since 1970.
    """

    understands = (SECURITY,)
    owns = (SECURITY,)
    abilities = (TIMESTAMP,)

    def __init__(self, *, freshness: Freshness = Freshness(), clock: Callable[[], float] = time.time) -> None:
        check_arguments(Timestamp, locals())
        self._freshness = freshness
        self._clock = clock

    def policy(self, *, is_https: bool) -> str:
        """Return the transport binding of WS-SecurityPolicy 1.2 with a Timestamp; nothing without https."""
        return transport_binding(has_timestamp=True) if is_https else ""

    def outbound(self, context: MessageContext) -> None:
        """Add the header (SOAP Message Security 1.1, section 10). An answer has one if its request had one."""
        if not context.is_answer or context.notes.get(TIMESTAMPED):
            add_security(context, write_timestamp(self._clock(), self._freshness.life))

    def inbound(self, context: MessageContext) -> None:
        """Check the Timestamp, which a request to a destination must have, and remove the Security header."""
        try:
            security = read_security(context)
            timestamp = security.timestamp if security is not None else None
            if timestamp is not None:
                self._freshness.check(timestamp, self._clock())
            elif context.role == "destination" and not context.is_answer:
                raise Invalid("no Timestamp")
        except Invalid as error:
            raise refused(context, error) from None
        if not context.is_answer:
            context.notes[TIMESTAMPED] = timestamp is not None
        remove_security(context, security)
