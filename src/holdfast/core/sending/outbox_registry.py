"""OutboxRegistry: the outboxes of an endpoint: opens them, finds them, and closes them. It gives none a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from holdfast.core.messages import MC_ANONYMOUS, is_polled
from holdfast.core.policy import SourcePolicy
from holdfast.core.queues.cursors import OUTBOUND
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queues import Queues
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.context import NO_HOOKS, OutboxHooks, SendingContext
from holdfast.core.sending.identifier_claims import GrantedIdentifier
from holdfast.core.sending.outboxes.lifecycle import Choice
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.records import outbox_queue, replies_queue
from holdfast.core.states.outbound import SourceState


class OutboxRegistry:
    """The outboxes of an endpoint.

    Args:
        policy_for: Returns the policy of Sequences by their address and the key of their outbox, if it differs.
    """

    def __init__(
        self,
        policy: SourcePolicy,
        context: SendingContext,
        queues: Queues,
        policy_for: Callable[[str, str], SourcePolicy] | None = None,
    ):
        self.policy = policy
        self._policy_for = policy_for
        self._queues = queues
        self.context = context
        self.commit, self.effects = context.commit, context.effects
        self.outboxes = context.outboxes
        self.sequences = context.sequences
        self.circuits = context.circuits
        self.reading = context.reading
        self.for_addresses: set[str] = set()
        """Keys of the outboxes of replies to addresses."""

    def is_anonymous(self, source: RMSource) -> bool:
        """Whether the Sequence's peer answers in back-channels only."""
        return self.context.composer.is_anonymous(source)

    def use(self, policy: SourcePolicy, policy_for: Callable[[str, str], SourcePolicy] | None) -> None:
        """Use these policies from now on. A forwarder's outbox keeps the forwarder's policy."""
        self.policy, self._policy_for = policy, policy_for
        for outbox in self.outboxes.values():
            if outbox.forwarding is None:
                outbox.use(self.policy_of(outbox.to, outbox.key))

    def policy_of(self, to: str | None, key: str) -> SourcePolicy:
        """Return the policy of the Sequences of an outbox, unless their forwarder has one."""
        return self.policy if to is None or self._policy_for is None else self._policy_for(to, key)

    def open(
        self, key: str, to: str, choices: list[Choice], hooks: OutboxHooks = NO_HOOKS, *, is_described: bool = True
    ) -> Outbox:
        """Return the outbox ``key``, creating it if it does not exist.

        Args:
            choices: Choices for CreateSequence, in order of preference. Outboxes to one address share one list, so a
                refusal seen by one moves the refused choice to the end for all.
            is_described: Whether the description of its queue is saved. A store keeps it even if the queue is deleted.
        """
        known = self.outboxes.get(key)
        if known is not None:
            queue = known.records.queue
        else:
            queue = self._queues.outbox(outbox_queue(key))
            if is_described:
                # It is stored in the batch of the first record, so a restart knows the kind of queue.
                queue.description.save()
        return self.open_at(key, to, choices, queue, 0, hooks)

    def open_at(
        self,
        key: str,
        to: str,
        choices: list[Choice],
        queue: Queue,
        partition: int,
        hooks: OutboxHooks,
        start: int | None = None,
    ) -> Outbox:
        """Return the outbox ``key`` of a partition, creating it if it does not exist; see :meth:`open`."""
        outbox = self.outboxes.get(key)
        if outbox is None:
            outbox = self.make(key, queue, partition, to, hooks, start)
            outbox.lifecycle.choices = choices
            outbox.save()
        outbox.lifecycle.choices = choices
        outbox.ready()
        return outbox

    def make(
        self,
        key: str,
        queue: Queue,
        partition: int,
        to: str | None,
        hooks: OutboxHooks,
        start: int | None = None,
    ) -> Outbox:
        """Make an outbox, with its cursor if that does not exist."""
        queue.follow(OUTBOUND + key, partition, start, partial(self._grown, key))
        self.context.mailboxes.add_outbox(to, key)
        policy = self.policy_of(to, key)
        outbox = self.outboxes[key] = Outbox(key, queue, partition, to, policy, self.context, hooks)
        return outbox

    def _grown(self, key: str, offset: int, record: Record | None, _now: float) -> None:
        outbox = self.outboxes[key]
        if record is not None:
            outbox.records.keep(offset, record)
        outbox.records.update_available()
        outbox.ready()

    def open_replies(self, source: RMSource, now: float) -> Outbox:
        """Open the outbox of a Sequence of replies, which needs no CreateSequence.

        Its key is the key that the Sequence is saved under.
        """
        outbox = self.make(source.key, self._queues.outbox(replies_queue(source.key)), 0, source.to, NO_HOOKS)
        # WS-RM 3.4: the Offer stands for the handshake.
        source.state = SourceState.CREATED
        outbox.adopt(source)
        self.commit.save_new(source.local_id, source, outbox.records.queue.name, outbox.records.partition)
        self.context.marking.save(source)
        return outbox

    def replies_to(self, key: str | None) -> Outbox | None:
        """Return the outbox of replies with a key; None for no key, such as that of a Sequence without an Offer.

        The key "" is an application's: the one of its messages without a ``sequence_key``.
        """
        return None if key is None else self.outboxes.get(key)

    def may_redirect(self, outbox: Outbox, addresses: Mapping[str, str]) -> bool:
        """Return whether an outbox may be redirected with its open Sequence, if it has one.

        It may not if the peer sends in answers to polls, because their address belongs to one destination. Nor may it
        if another Sequence to that address has the same Identifier: the peer would take the messages of one for the
        other's.

        Args:
            addresses: Key -> the new address, for each outbox that gets one together with this.
        """
        if (source := outbox.source) is None:
            return True
        named = self.context.sequences.named(source.identifier) if source.identifier is not None else []
        to = addresses[outbox.key]
        there = [one for one in named if one is not outbox and addresses.get(one.key, one.to) == to]
        return not is_polled(source.address) and not there

    def redirect(self, outbox: Outbox, to: str) -> None:
        """Send the messages of an outbox to another address from now on, with :meth:`may_redirect`.

        Its open Sequence continues there, because a service that has moved knows it. Another service does not: it
        answers UnknownSequence, and the messages that are not acknowledged go into a new Sequence.
        """
        self.circuits.leave(outbox)
        self.context.room.leave(outbox.key)
        self.context.accounts.leave(outbox.to, outbox.key)
        earlier, outbox.to = outbox.to, to
        if outbox.forwarding is not None:
            self.circuits.know(to, outbox.forwarding.circuit)
        if (source := outbox.source) is not None:
            self.context.creation.adopt(outbox, source)
            if source.offer is not None:
                outbox.hooks.redirect_offered(source.offer, earlier or "", to)
        outbox.save()
        outbox.ready()

    def redirected(self, earlier: Iterable[str]) -> None:
        """Finish redirects from these addresses: forget those that no outbox has, and claim the Identifiers anew."""
        for address in set(earlier) - {outbox.to for outbox in self.outboxes.values()}:
            self.context.creation.leave(address)
        self.announce()

    def announce(self) -> None:
        """Claim the granted Identifiers of all outboxes, at the addresses that they have now."""
        if self.context.claims is not None:
            self.context.claims.announce(_granted(self.outboxes.values()))

    def close(self, key: str, now: float) -> None:
        """Forget an outbox. An outbox of replies loses its records; another's queue keeps them."""
        outbox = self.outboxes.pop(key, None)
        if outbox is None:
            return
        self.for_addresses.discard(key)
        if outbox.source is not None:
            outbox.drop(now)
        self.context.deadlines.forget(key)
        self.context.accounts.leave(outbox.to, key)
        self.context.mailboxes.remove_outbox(outbox.to, key)
        self.circuits.leave(outbox)
        self.context.room.leave(key)
        if outbox.is_for_replies or outbox.is_for_address:
            self.context.creation.leave(outbox.to)
        outbox.records.here.release()
        if outbox.is_for_replies:
            self._queues.delete(outbox.records.queue)
        else:
            outbox.records.queue.unfollow(outbox.records.cursor, outbox.records.partition, now)

    def poll_for(self, outbox: Outbox, address: str, owner: str) -> None:
        """Set the address at which a peer that polls answers, and the user who alone may poll; saved."""
        # wsa:To of a request may be a name instead of an address that can be posted to.
        is_url = address.startswith(("http://", "https://")) and not address.startswith(MC_ANONYMOUS)
        outbox.address = address if is_url else ""
        outbox.owner = owner
        self.context.mailboxes.add_outbox(outbox.to, outbox.key, owner)
        outbox.save()

    def discard(self, key: str, now: float) -> None:
        """Forget an outbox and every record in its private queue."""
        outbox = self.outboxes[key]
        self.close(key, now)
        if not outbox.is_for_replies:
            self._queues.delete(outbox.records.queue)

    def queue(self, name: str) -> Queue | None:
        return self._queues.get(name)


def _granted(outboxes: Iterable[Outbox]) -> Iterator[GrantedIdentifier]:
    for outbox in outboxes:
        source = outbox.source
        if source is None or source.identifier is None or outbox.to is None or outbox.is_for_replies:
            continue
        yield GrantedIdentifier(source.local_id, outbox.to, source.identifier)
