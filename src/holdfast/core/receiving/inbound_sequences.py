"""InboundSequences: the Sequences that an endpoint receives, and the queues and limits that hold for them.

It decides nothing. ``inbound`` receives their messages and ends them; every other part of this room finds them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from zlib import crc32

from holdfast.core.commit import GroupCommit
from holdfast.core.deadlines import Deadlines
from holdfast.core.events import Effect
from holdfast.core.messages import Envelope
from holdfast.core.origin import whole_party
from holdfast.core.policy import DestinationPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.receiving.creation_repeats import Creations
from holdfast.core.receiving.sequence_quotas import Shares
from holdfast.core.records import Record
from holdfast.core.rm_destination.destination import RMDestination


class InboundSequences:
    """The Sequences that an endpoint receives.

    Args:
        further: Other queues, for messages routed to them. All have the same number of partitions, so a Sequence has
            the same partition in each.
    """

    def __init__(
        self,
        policy: DestinationPolicy,
        commit: GroupCommit,
        effects: list[Effect],
        queue: Queue,
        further: Iterable[Queue] = (),
    ):
        self.policy = policy
        self.commit = commit
        self.effects = effects
        self.queue = queue
        self.queues = {one.name: one for one in (queue, *further)}
        assert all(len(one.partitions) == len(queue.partitions) for one in self.queues.values()), self.queues
        self.destinations: dict[str, RMDestination] = {}
        self.offered: dict[str, str] = {}
        """Offered Identifier -> the Sequence it was offered with, as long as that is remembered."""
        self.release_offer: Callable[[str], None] | None = None
        """Lets other workers accept an Offer; None without other workers."""
        self.creations = Creations()
        self.shares = Shares(policy.max_remembered)
        self.deadlines = Deadlines()

    def add(self, destination: RMDestination) -> None:
        """Add a Sequence granted or offered by this endpoint; saved with the open batch."""
        # CRC-32, because hash() differs between processes: a restart must find the same partition.
        destination.partition = crc32(destination.identifier.encode()) % self.queue.description.shared
        self.know(destination)
        self.commit.save_new(destination.identifier, destination, self.queue.name, destination.partition)

    def know(self, destination: RMDestination) -> None:
        """Register a Sequence, new or recovered."""
        self.destinations[destination.identifier] = destination
        self.creations.add(destination)
        if destination.offered is not None:
            self.offered[destination.offered] = destination.identifier
        # A Sequence that is over is only remembered. It takes no share of its party.
        if not destination.is_over:
            self.shares.opened(whole_party(destination.party))
        self.deadlines.want(destination.identifier, destination.deadline())

    def forget(self, destination: RMDestination) -> None:
        del self.destinations[destination.identifier]
        self.shares.forget(destination.identifier)
        self.creations.forget(destination)
        if destination.offered is not None:
            self.offered.pop(destination.offered, None)
            self.offer_unused(destination.offered)

    def offer_unused(self, offered: str) -> None:
        """Release an offered Identifier that no Sequence has, once that is durable."""
        if self.release_offer is not None:
            # Earlier, a crash would bring the Sequence back, while another worker has one with the same Offer.
            self.commit.then(partial(self._release, self.release_offer, offered), is_waited_for=False)

    def _release(self, release: Callable[[str], None], offered: str, now: float) -> None:
        if offered not in self.offered:
            release(offered)

    def reply_patience(self) -> float | None:
        """Return the seconds for which a reply without an acknowledgement is retransmitted; None: without end."""
        return self.policy.inactivity_timeout

    def use(self, policy: DestinationPolicy) -> None:
        """Apply a policy to Sequences granted from now on; open ones keep theirs."""
        self.policy = policy
        self.shares.use(policy.max_remembered)


def record_of(destination: RMDestination | None, envelope: Envelope, awaits_reply: bool, now: float) -> Record:
    """Return the record to store for a message, or for a reply without a Sequence (``destination`` is None)."""
    sequence = envelope.sequence
    return Record(
        destination.identifier if destination is not None else "",
        sequence.message_number if sequence is not None else 0,
        envelope.action,
        envelope.body,
        now,
        envelope.message_id,
        envelope.to,
        envelope.reply_to.address if envelope.reply_to is not None else None,
        envelope.relates_to,
        envelope.soap._value_,  # what .value gives, without a call
        b"".join(envelope.headers),
        awaits_reply,
        None,
        envelope.transport,
        envelope.attachments,
        envelope.reply_to.reference_parameters if envelope.reply_to is not None else (),
        _fault_to(envelope),
    )


def _fault_to(envelope: Envelope) -> tuple[str, tuple[bytes, ...]] | None:
    """Return where faults about a request go, if they do not go where its reply goes."""
    fault_to = envelope.fault_to
    # An anonymous FaultTo is the response, which the fault takes in any case.
    if fault_to is None or fault_to.is_anonymous or fault_to == envelope.reply_to:
        return None
    return fault_to.address, fault_to.reference_parameters
