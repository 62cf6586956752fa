"""Expiry of messages to forward, and the faults that waiting requesters then receive.

While a service is down, or its forwarder suspended, requesters hear only from the forwarder. It therefore re-examines
every delayed request in time, whatever else happens to its outbox. This module only decides; ``undeliverable`` acts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.events import Incident
from holdfast.core.faults import HOLDFAST_NS
from holdfast.core.messages import Fault
from holdfast.core.policy import ForwardingPolicy
from holdfast.core.receiving.replies import Replies
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.forwarder_state import HeldBack
from holdfast.core.sending.outboxes.outbox import Outbox

EXPIRED = "expired"
"""Replaces a fault's code: the message was too old to be sent."""

UNWANTED = "given up"
"""The same for a request that its requester no longer waits for."""

REQUEST_EXPIRES = 50.0
"""Seconds after which a request that was never sent expires, if the policy sets no limit and the reply goes back in an
answer. Clients of WCF, CXF and Metro wait for a minute, so the fault arrives before that."""

PROMPT = 1.0
"""Seconds within which a request is forwarded even if its Sequence has ended. A client that sends one-way messages with
a ReplyTo may end its Sequence at once, and an available service must still receive them."""

MOST_LEFT_OUT = 1_000
"""Maximum runs of records that an outbox excludes while it sends nothing: every save includes them."""

_TOO_OLD = Fault(EXPIRED, "The message expired before it could be forwarded.", sender=False)
_UNWANTED = Fault(UNWANTED, "The requester stopped waiting before the request could be forwarded.", sender=False)


class GivenUp(NamedTuple):
    """Records that the forwarder does not send.

    Args:
        offsets: Their offsets, ascending.
        told: The log event, without its details.
    """

    offsets: list[int]
    fault: Fault
    told: Incident


class Expiry:
    """Expiry of messages that are too old, and of requests without a waiting requester."""

    def __init__(self, registry: OutboxRegistry, replies: Replies) -> None:
        self._registry = registry
        self._replies = replies

    def see(self, outbox: Outbox, now: float) -> list[GivenUp]:
        """Return the next records that expire, among those never transmitted.

        Records needed for the decision and missing from memory are then read: :attr:`Outbox.front`.
        """
        policy, start = outbox.forwarding, outbox.records.unsent
        assert policy is not None
        outbox.records.front = None  # an earlier policy may have set it
        given_up: list[GivenUp] = []
        # A held-back outbox sends nothing, so its requesters hear of it only here.
        if outbox.lifecycle.is_held_back:
            given_up += self._see_requests(outbox, policy, start, now)
        if not given_up and not outbox.records.wants_front and self._may_expire(outbox, policy, start, now):
            given_up += self._see_next(outbox, policy, start, now)
        if outbox.records.wants_front:
            self._registry.reading.ask(outbox)
        return given_up

    def _may_expire(self, outbox: Outbox, policy: ForwardingPolicy, start: int, now: float) -> bool:
        if policy.expires is not None:
            return True
        # Without a policy only requests expire, and a held-back outbox has just examined those.
        if outbox.lifecycle.is_held_back or start >= outbox.records.durable_end:
            return False
        record = outbox.records.record(start)
        if record is None:
            return True  # the records to read may include a request
        return outbox.records.has_requests and not self._came_just_now(outbox, record, now)

    def _came_just_now(self, outbox: Outbox, record: Record, now: float) -> bool:
        """Whether a record, and so every later one, arrived just now.

        The outbox is then examined again: it may not send soon, and nothing else may happen to it.
        """
        if now >= record.received_at + PROMPT:
            return False
        outbox.wake(record.received_at + PROMPT)
        return True

    def _see_next(self, outbox: Outbox, policy: ForwardingPolicy, start: int, now: float) -> list[GivenUp]:
        due, seen = math.inf, start
        expired: list[int] = []
        unwanted: list[int] = []
        while (record := outbox.records.record(seen)) is not None:
            expires_at = self._expires_at(record, policy)
            if seen + 1 in outbox.records.left_out:
                pass  # it is dead-lettered already, or has arrived
            elif expires_at <= now:
                expired.append(seen)
            elif self._is_unwanted(record, now):
                unwanted.append(seen)
            else:
                due = min(due, expires_at)
                # Beyond the window nothing leaves now: the next turn looks at the rest.
                if seen >= start + outbox.policy.window:
                    break
            seen += 1
        outbox.records.front = start if start < outbox.records.durable_end else None
        if due < math.inf:
            outbox.wake(due)
        return _late(expired, unwanted)

    def _see_requests(self, outbox: Outbox, policy: ForwardingPolicy, start: int, now: float) -> list[GivenUp]:
        """Return requests with waiting requesters that expire while nothing is sent.

        A stopped outbox returns them at once, as only an operator resumes it; a suspended one when they are too old.
        One-way messages before them make no difference.
        """
        if outbox.lifecycle.held_back is None:
            outbox.lifecycle.held_back = HeldBack(start, start + outbox.policy.window, outbox.records.durable_end)
        held = outbox.lifecycle.held_back
        held.next = max(held.next, start)
        expired: list[int] = []
        unwanted: list[int] = []
        returned: list[int] = []
        others = self._others(outbox) if outbox.lifecycle.stopped else []
        # Each save of the outbox includes the excluded records, so their number is limited.
        room = MOST_LEFT_OUT - len(outbox.records.left_out)
        while held.next < outbox.records.durable_end and len(expired) + len(unwanted) + len(returned) < room:
            offset = held.next
            record = outbox.records.record(offset)
            if record is None:
                outbox.records.front = offset
                break
            if offset + 1 not in outbox.records.left_out and record.wants_reply and self._replies.is_asked_for(record):
                expires_at = self._expires_at(record, policy)
                if expires_at <= now:
                    expired.append(offset)
                elif self._is_unwanted(record, now):
                    unwanted.append(offset)
                elif not outbox.lifecycle.stopped:
                    outbox.wake(expires_at)
                    break  # those behind it arrived later
                # Another forwarder of the same records may still bring the reply.
                elif all(one.records.is_acknowledged(offset) for one in others):
                    returned.append(offset)
            held.passed()
        given_up = _late(expired, unwanted)
        if returned:
            given_up.append(GivenUp(returned, _stopped(outbox), Incident("requests.returned", level="warning")))
        return given_up

    def _others(self, outbox: Outbox) -> list[Outbox]:
        """Return other forwarders of the same records, which may still bring the replies."""
        return [
            one
            for one in self._registry.outboxes.values()
            if one.records.shares_partition(outbox.records) and not one.lifecycle.stopped
        ]

    def untaken(self, outbox: Outbox, source: RMSource, now: float) -> Iterator[tuple[int, Fault]]:
        """Yield numbered requests that never left, as nothing listens there, and that expire.

        Each comes with the fault for its requester.
        """
        policy = outbox.forwarding
        assert policy is not None
        if not source.is_open or outbox.lifecycle.stopped:
            return
        # What has just come is forwarded even if its requester seems gone: see ``PROMPT``.
        first = outbox.records.record(outbox.records.first)
        if first is not None and self._came_just_now(outbox, first, now):
            return
        refused = outbox.withdrawal.refused if outbox.withdrawal is not None else ()
        for number in source.flight.untaken:
            record = outbox.records.record(outbox.records.offset_of(number))
            # Of an earlier run it is unknown whether it left, so it is in doubt and not merely late.
            if record is None or not record.wants_reply or number <= source.numbers.sent_before or number in refused:
                continue
            expires_at = self._expires_at(record, policy)
            if expires_at <= now:
                yield number, _TOO_OLD
            elif self._is_unwanted(record, now):
                yield number, _UNWANTED
            elif expires_at < math.inf:
                outbox.wake(expires_at)

    def _expires_at(self, record: Record, policy: ForwardingPolicy) -> float:
        expires = policy.expires
        if expires is None and record.wants_reply and self._replies.is_asked_for(record):
            expires = REQUEST_EXPIRES
        return math.inf if expires is None else record.received_at + expires

    def _is_unwanted(self, record: Record, now: float) -> bool:
        """Whether it is a request that its requester no longer waits for."""
        is_old = record.wants_reply and now >= record.received_at + PROMPT
        return is_old and self._replies.is_asked_for(record) and self._replies.is_given_up(record, now)


def _late(expired: list[int], unwanted: list[int]) -> list[GivenUp]:
    both = (expired, _TOO_OLD), (unwanted, _UNWANTED)
    return [
        GivenUp(offsets, fault, Incident("messages.expired", level="warning")) for offsets, fault in both if offsets
    ]


def _stopped(outbox: Outbox) -> Fault:
    code, words = outbox.lifecycle.stopped, outbox.lifecycle.stopped_for
    why = f"{code}: {words}" if words else code
    return Fault(
        code,
        f"The forwarder has stopped until an operator decides: {why}",
        sender=False,
        code_namespace=HOLDFAST_NS,
    )
