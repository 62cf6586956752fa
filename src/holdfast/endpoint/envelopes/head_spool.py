"""Keeps the headers of an answer that is too large: they name its request. Knows no connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from holdfast.core.faults import HOLDFAST_NS, REPLY_TOO_LARGE, TOO_LARGE_FOR_BROKER
from holdfast.core.messages import Envelope, Fault
from holdfast.endpoint.envelopes.http_media import is_package
from holdfast.endpoint.envelopes.message import ApplicationFault, fault_body
from holdfast.endpoint.envelopes.package_spool import FLUSH_FROM, MOST_DROPPED, PackageSpool
from holdfast.exceptions import HoldfastError, LimitExceeded, clause
from holdfast.http.exchange import Request
from holdfast.http.outcome import Response
from holdfast.wire import Limits, RootHead
from holdfast.wire.decoding.head import head_of

TOO_LARGE_REMEDY = (
    "Ask the service's operator to return large values as attachments (MTOM); a service "
    "on Holdfast does so with DestinationHTTP(mtom=True)."
)
"""What to do about an answer beyond a limit of this side."""


class HeadSpool:
    """One message without attachments; see :class:`~holdfast.http.exchange.Spool`. It is spooled only once it is larger
    than the limit, so it cannot be read. The rest of it is dropped: then the connection serves the next message.

    Args:
        limits: Limits on the envelope.
        head: What another process received of it.
        size: Bytes of the message that the other process received.
        problem: The limit that it exceeds; None: the one for its size.
        find: Finds the beginning of the envelope in a thread, instead of ``head``.

    Attributes:
        is_unsure: Whether this process does not know yet if the address of the message was given to a peer.
    """

    drops_up_to = MOST_DROPPED
    is_unsure = False

    def __init__(
        self,
        limits: Limits,
        head: bytes = b"",
        size: int = 0,
        problem: LimitExceeded | None = None,
        find: Callable[[], bytes] | None = None,
    ) -> None:
        self._limits = limits
        self._problem = problem
        self._find = find
        self.head = bytearray(head)
        self.size = self._flushed = size
        self.begins_at = limits.max_bytes

    @property
    def is_full(self) -> bool:
        """Whether the sender must repeat the message, since nothing shows yet that it is a reply."""
        return self.is_unsure

    @property
    def wants_flush(self) -> bool:
        """Whether enough came that the time for receiving begins again, as for a content that is written."""
        return self.size - self._flushed >= FLUSH_FROM

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self.head += data[: max(0, self._limits.max_header_bytes - len(self.head))]

    def flush(self) -> None:
        """Write nothing."""
        self._flushed = self.size

    def drop(self) -> None:
        """Do nothing: only the headers are kept anyway."""

    def beginning(self) -> bytes:
        """Return the first bytes of the envelope."""
        return bytes(self.head) if self._find is None else self._find()

    def root(self) -> bytes:
        """Return an envelope with the headers and an empty Body; errors as for :func:`head_of`."""
        return head_of(self.beginning(), self._limits)

    @property
    def problem(self) -> LimitExceeded:
        """The error of a message that is too large."""
        return self._problem or LimitExceeded(
            f"the message has {self.size:,} bytes without attachments, which is more than the limit"
        )


def head_in(content: Request | Response, limits: Limits, problem: LimitExceeded) -> HeadSpool:
    """Return the beginning of the envelope in a content, which may have attachments before it."""
    spool, body = content.spool, content.body
    if isinstance(spool, PackageSpool):
        return HeadSpool(limits, size=spool.size, problem=problem, find=spool.root_head.content)
    if isinstance(content, Response):
        media = content.content_type
    else:
        media = content.headers.get(b"content-type", b"").decode("latin-1")
    if not is_package(media):
        return HeadSpool(limits, body[: limits.max_header_bytes], len(body), problem)

    def find() -> bytes:
        head = RootHead(media, limits)
        head.add_all(body)
        return head.content()

    return HeadSpool(limits, size=len(body), problem=problem, find=find)


def replace_reply(
    envelope: Envelope | HoldfastError, problem: LimitExceeded, *, is_forwarded: bool
) -> TypeGuard[Envelope]:
    """Replace the body of a reply that was too large by a fault. Return whether the message is such a reply.

    The reply counts as received, so its source stops retransmitting it (WS-RM 3.9): it would be too large each time.
    Its requester receives the fault as the only answer to its request, so nothing is lost without an error.
    """
    if isinstance(envelope, HoldfastError) or envelope.relates_to is None:
        return False
    # An answer of the protocol lacks the Body that its Action announces.
    if envelope.control is not None or envelope.contradiction:
        return False
    fault = TOO_LARGE_FOR_BROKER
    if not is_forwarded:
        reason = _reason_of(problem)
        fault = Fault(REPLY_TOO_LARGE, reason, sender=False, code_namespace=HOLDFAST_NS)
    code = f"{{{fault.code_namespace}}}{fault.code}"
    envelope.body = fault_body(ApplicationFault(fault.reason, sender=fault.sender, code=code), envelope.soap.value)
    envelope.fault = fault
    return True


def unproven_reason(problem: LimitExceeded) -> str:
    """Return the reason for a request's error if a reply to it was too large to check who sent it."""
    return f"{_reason_of(problem)} Its signature could not be checked either."


def _reason_of(problem: LimitExceeded) -> str:
    return f"{clause(problem.message)}. {TOO_LARGE_REMEDY}"
