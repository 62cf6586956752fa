"""Context: what all outboxes of an endpoint share. It is made once, before the first of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.commit import GroupCommit
from holdfast.core.deadlines import Deadlines
from holdfast.core.events import Effect
from holdfast.core.rm_source.request_index import Requests
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.accounts import Accounts
from holdfast.core.sending.circuit import Circuits
from holdfast.core.sending.composer import Composer, Offered
from holdfast.core.sending.grants.creation import OutboundCreation
from holdfast.core.sending.identifier_claims import IdentifierClaims
from holdfast.core.sending.outbound_room import OutboundRoom
from holdfast.core.sending.outbound_sequences import OutboundSequences
from holdfast.core.sending.outboxes.hooks import Forwarders
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.transmission_mark import TransmissionMarks
from holdfast.core.sending.polling.mailboxes import Mailboxes
from holdfast.core.sending.polling.pollers import Pollers
from holdfast.core.sending.polling.waiting_polls import WaitingPolls
from holdfast.core.sending.read_ahead import ReadingAhead
from holdfast.core.sending.read_ahead_buffer import Buffers


def _forget_none(_identifier: str, _now: float) -> None:
    pass


def _redirect_none(_identifier: str, _earlier: str, _to: str) -> None:
    pass


def _endless() -> None:
    pass


def _has_none(_to: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class OutboxHooks:
    """What the opener of an outbox does for it that the sending half cannot.

    Args:
        forget_offered: Settles and forgets a Sequence that was offered for replies, with its Identifier and the time,
            because the Sequence that it was offered with has ended.
        redirect_offered: Sends the acknowledgements of such a Sequence to another address if they went to the earlier
            one, with its Identifier and both addresses.
        forwarding: Decides about the messages of a forwarder; None for an outbox that forwards nothing.
    """

    forget_offered: Callable[[str, float], None] = _forget_none
    redirect_offered: Callable[[str, str, str], None] = _redirect_none
    forwarding: Forwarders | None = None

    @property
    def forwarders(self) -> Forwarders:
        """The part that decides about the messages of a forwarder's outbox."""
        assert self.forwarding is not None
        return self.forwarding


NO_HOOKS = OutboxHooks()
"""For outboxes that neither offer a Sequence nor forward."""


class SendingContext:
    """Objects that the outboxes of an endpoint share.

    Args:
        new_identifier: Makes a URI never used before.
        jitter: Returns a number in [0, 1), another at each call.
        local: The address the peer can send to; :data:`ANONYMOUS` for an endpoint without a listener, and
            :data:`MC_ANONYMOUS` for one that polls.
        offered: The Sequences that this endpoint offered for replies.
        mailboxes: Where messages wait for peers that poll.
        claims: The Identifiers that other workers use; None in a server of one process.
        has_credentials: Whether messages to an address have credentials.
        reply_patience: Returns the seconds for which an unacknowledged reply is retransmitted; None: without end.
    """

    def __init__(
        self,
        commit: GroupCommit,
        effects: list[Effect],
        new_identifier: Callable[[], str],
        jitter: Callable[[], float],
        local: str,
        offered: Offered,
        mailboxes: Mailboxes,
        claims: IdentifierClaims | None = None,
        has_credentials: Callable[[str], bool] = _has_none,
        reply_patience: Callable[[], float | None] = _endless,
    ):
        self.local = local
        self.commit = commit
        self.effects = effects
        self.jitter = jitter
        self.offered = offered
        self.claims = claims
        self.outboxes: dict[str, Outbox] = {}
        """Sequence key -> outbox."""
        self.sequences = OutboundSequences()
        self.requests: Requests[RMSource] = Requests()
        """Requests that wait for a reply."""
        self.composer = Composer(local, offered, new_identifier)
        self.reply_patience = reply_patience
        self.deadlines = Deadlines()
        self.ready: dict[str, None] = {}
        """Keys of the outboxes with a turn."""
        self.circuits = Circuits(self.outboxes, self.deadlines, self.ready, effects, jitter)
        self.accounts = Accounts(self.outboxes, self.deadlines, self.ready, effects, has_credentials)
        self.room = OutboundRoom(self.ready)
        self.reading = ReadingAhead(effects, self.outboxes, self.ready, self.room)
        self.buffers = Buffers()
        self.mailboxes = mailboxes
        self.polls = WaitingPolls(effects)
        pause_of = self.circuits.paused_until
        self.pollers = Pollers(effects, self.sequences, offered, new_identifier, jitter, pause_of)
        self.marking = TransmissionMarks(commit, self.ready)
        self.creation = OutboundCreation(self, new_identifier)
