"""An endpoint in a separate world; the simulator of the first world carries its packets and events.

The endpoint is the real core, with its own disk, ledger and invariants. Its world also contains the sender's setup, but
the sender never starts there, because it runs in the first world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.events import Handle, ReadWanted
from holdfast.core.messages import Envelope
from holdfast.core.protocol import RMProtocol
from holdfast.simulation.actors.reader import At
from holdfast.simulation.nodes.node import Arrival, Journey, Node, Setup
from holdfast.simulation.promises.invariant import Invariant
from holdfast.simulation.world import World

if TYPE_CHECKING:
    from holdfast.simulation.options import Options


@dataclass(frozen=True, slots=True)
class Carrier:
    """What the simulator of the first world does for a second one.

    Args:
        at: Schedules an event, in seconds from now.
        chance: Chooses every delay.
        request: Carries an HTTP request of the endpoint.
        respond: Carries its answer to one.
    """

    at: At
    chance: random.Random
    request: Callable[[Journey], None]
    respond: Callable[[Arrival, Envelope | None], None]


class SecondWorld:
    """A world with one endpoint. It decides when packets travel and batches become durable."""

    def __init__(
        self,
        number: int,
        first: World,
        sender: Node,
        setups: tuple[Setup, Setup],
        options: Options,
        carrier: Carrier,
        *,
        invariants: Iterable[type[Invariant]],
        build: Callable[..., RMProtocol],
    ) -> None:
        self.number = number
        self.first = first
        self.sender = sender
        self.options = options
        self._at = carrier.at
        self._chance = carrier.chance
        self._request = carrier.request
        self.respond = carrier.respond
        self.world = World(setups, self, carrier.chance.random, invariants=invariants, build=build)
        self.world.clock, self.world.counts = first.clock, first.counts
        self.node = self.world.nodes[1]
        first.others[self.node.setup.address] = (number, self.world)

    def request(self, journey: Journey) -> None:
        """See :class:`Surroundings`."""
        self.first.journeys += 1
        self._request(Journey(self.number, journey.run, journey.transmit, self.sender.index, self.first.journeys))

    def batch_taken(self, node: Node) -> None:
        """See :class:`Surroundings`. Every commit takes the same time, so batches become durable in order."""
        self._at(self.options.commit_latency, self._durable)

    def _durable(self) -> Node:
        self.node.durable()
        return self.node

    def read_wanted(self, node: Node, wanted: ReadWanted) -> None:
        """See :class:`Surroundings`."""
        node.read(wanted)

    def handler_started(self, node: Node, handle: Handle) -> None:
        """See :class:`Surroundings`."""
        self._at(self._chance.random() * self.options.handler_latency, partial(self._handled, handle))

    def _handled(self, handle: Handle) -> Node:
        self.node.handled(handle)
        return self.node
