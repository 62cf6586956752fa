"""Settings of an ``RMProtocol``, by concern: its environment, its policies, and its rules for messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.messages import ANONYMOUS, Envelope, Fault, Routed
from holdfast.core.policy import DestinationPolicy, SourcePolicy, StagingPolicy
from holdfast.core.queues.queue_records import ReadRecords
from holdfast.core.records import Record
from holdfast.core.sending.identifier_claims import IdentifierClaims
from holdfast.core.versions import Addressing


def _always(_value: str) -> bool:
    return True


def _never(_value: str) -> bool:
    return False


def _tells_nothing(_request: Record, _fault: Fault, _addressing: Addressing) -> Record | None:
    return None


def _has_none(_to: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Environment:
    """What the shell provides.

    Args:
        new_identifier: Creates a URI never used before.
        jitter: Returns a number in [0, 1), a new one at each call.
        local: The address to which the peer can send; :data:`ANONYMOUS` for a source without a listener.
        claims: The Identifiers that other workers use; None in a server of one process.
        trouble: Returns a reason not to move records within the store, "" without one.
        has_credentials: Whether messages to an address have credentials, which its account is locked for if they are
            refused too often.
    """

    read: ReadRecords
    new_identifier: Callable[[], str]
    jitter: Callable[[], float]
    local: str = ANONYMOUS
    claims: IdentifierClaims | None = None
    trouble: Callable[[], str] = str
    has_credentials: Callable[[str], bool] = _has_none


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that the Sequences and the sinks of one side follow.

    Args:
        destination: For inbound Sequences.
        source: For outbound Sequences.
        source_for: Policy for outbound Sequences by their address and the key of their outbox; None: ``source`` for all
            of them.
        staging: For rows that external writers stage.
    """

    destination: DestinationPolicy = field(default_factory=DestinationPolicy)
    source: SourcePolicy = field(default_factory=SourcePolicy)
    source_for: Callable[[str, str], SourcePolicy] | None = None
    staging: StagingPolicy = field(default_factory=StagingPolicy)


@dataclass(frozen=True, slots=True)
class MessageRules:
    """Which messages the application accepts, answers and may send. By default, it accepts and answers every message.

    Args:
        allows: Whether messages may be sent to an address that a peer names; by default only anonymous is allowed.
        accepts: Whether the application accepts messages with this action.
        replies: Whether the application answers requests with this action; if not, they are acknowledged immediately.
        always_replies: Whether this action is a request even if the message does not ask for a reply.
        unrequested: At an endpoint for replies, returns where a message goes that is no requested reply; None: nothing
            reads it, so it is acknowledged and dropped. Without this rule, every message goes to a queue.
        tell: Converts a fault into the reply to a request that is refused within its Sequence, in the given version of
            WS-Addressing; returns None for a message that expects no reply.
    """

    allows: Callable[[str], bool] = _never
    accepts: Callable[[str], bool] = _always
    replies: Callable[[str], bool] = _always
    always_replies: Callable[[str], bool] = _never
    unrequested: Callable[[Envelope], Routed | None] | None = None
    tell: Callable[[Record, Fault, Addressing], Record | None] = _tells_nothing
