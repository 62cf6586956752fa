"""The class of every invariant, and what several of them ask.

An invariant reads the :class:`~holdfast.simulation.nodes.ledger.Ledger` (durable state, sent acknowledgements) and the
running endpoints. It never asks an endpoint whether it acted correctly. To write one, override the hooks you need and
call :meth:`broken`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from holdfast.core.events import Handle
from holdfast.core.messages import (
    Envelope,
    IncompleteSequenceBehavior,
    SequenceAcknowledgement,
)
from holdfast.core.policy import Delivery
from holdfast.core.records import Batch
from holdfast.simulation.nodes.node import Node

if TYPE_CHECKING:
    from holdfast.simulation.world import World


class InvariantViolation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class Invariant:
    """One condition, named after its class; the class's docstring states it.

    Each endpoint has its own instance, which may remember what it saw there. Of the other endpoint, it may read only
    the part that :func:`~holdfast.simulation.nodes.ledger.seen_by_the_other` returns.
    """

    def broken(self, what: str) -> NoReturn:
        """Report a violation."""
        raise InvariantViolation(type(self).__name__, what)

    def said(self, world: World, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        """Called before an endpoint sends an acknowledgement."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        """Called after a batch became durable and the ledger recorded it."""

    def leaving(self, world: World, node: Node, envelope: Envelope) -> None:
        """Called before an endpoint sends any envelope and the ledger records it."""

    def sent(self, world: World, node: Node, envelope: Envelope) -> None:
        """Called before an endpoint sends an envelope with a Sequence header and the ledger records it."""

    def reported(self, world: World, node: Node, body: bytes) -> None:
        """Called when the core reports to the source's application that a message has arrived."""

    def handed_over(self, world: World, node: Node, handle: Handle) -> None:
        """Called when the core gives a record to the handler."""

    def pumped(self, world: World, node: Node) -> None:
        """Called after an endpoint's timer fired."""

    def after(self, world: World, node: Node) -> None:
        """Called after each event of a running endpoint."""


def numbers_of(acknowledgement: SequenceAcknowledgement) -> list[int]:
    return [number for lower, upper in acknowledgement.ranges for number in range(lower, upper + 1)]


def skips(node: Node) -> bool:
    """Whether the endpoint drops late messages: at-most-once, in order, without replies."""
    policy = node.setup.destination_policy
    if policy.incomplete_sequence_behavior is not IncompleteSequenceBehavior.NO_DISCARD:
        return False  # it holds messages until no rule can discard them
    offers = any(offer for _, offer in node.world.nodes[0].setup.choices)
    return policy.assurance.in_order and policy.assurance.delivery is Delivery.AT_MOST_ONCE and not offers


def repeats(world: World) -> bool:
    """Whether the source automatically sends unacknowledged messages again in a new Sequence."""
    return world.nodes[0].setup.source_policy.assurance.delivery is Delivery.AT_LEAST_ONCE


def is_requeued(world: World, body: bytes) -> bool:
    """Whether a message was a dead letter of a broker, so that an operator may have requeued it."""
    brokers = (node.index for node in world.nodes if node.setup.forwards)
    return any(letter.body == body for index in brokers for letter in world.ledger.disks[index].letters)


def is_of_replies(world: World, node: Node, identifier: str) -> bool:
    """Whether a Sequence carries the replies to an endpoint's requests.

    Such a Sequence ends with the Sequence of the requests, after the end of that one is durable.
    """
    if not node.setup.forwards:
        return node.index == 0
    return all(name != identifier for name, _ in world.ledger.words[node.index - 1].bodies)
