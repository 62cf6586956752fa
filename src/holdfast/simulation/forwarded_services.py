"""The services behind a simulated broker's further queues; one forwarder sends to each.

A broker puts a message into every queue of its route, and has a forwarder for each queue. So it sends the same message
to several services, in several Sequences, which share its store, its memory and its crashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from holdfast.core.protocol import RMProtocol
from holdfast.simulation.nodes.routed_queues import service_address
from holdfast.simulation.options import Options
from holdfast.simulation.promises.invariant import Invariant
from holdfast.simulation.second_world import Carrier, SecondWorld
from holdfast.simulation.world import World

FIRST = -3
"""The number of the first service in a journey; the numbers of the next ones descend."""


class ForwardedService(SecondWorld):
    """The service that gets the messages of one further queue."""

    def __init__(
        self,
        index: int,
        options: Options,
        world: World,
        carrier: Carrier,
        *,
        invariants: Iterable[type[Invariant]],
        build: Callable[..., RMProtocol],
    ) -> None:
        broker, destination = world.nodes[1], world.nodes[-1].setup
        self.queue = broker.setup.routed[index]
        service = replace(destination, address=service_address(self.queue), partitions=1)
        setups = (replace(broker.setup, forwards=False, sessions=0, routed=()), service)
        super().__init__(FIRST - index, world, broker, setups, options, carrier, invariants=invariants, build=build)
        self.node.name = f"service-of-{self.queue}"
        self.world.broker = (self.queue, world.ledger.disks[broker.index])
        self.world.ledger.words[0].in_doubt = world.ledger.words[0].in_doubt
        world.services[self.queue] = self.world

    def missing(self) -> str | None:
        """Describe a message that has not arrived; None if every message has."""
        there = {queued.body for records in self.world.ledger.disks[1].queues.values() for queued in records}
        places = self.first.ledger.disks[self.sender.index].routed.records
        sent = (one.body for place, records in places.items() if place[0] == self.queue for one in records)
        missing = next((body for body in sent if body not in there), None)
        return None if missing is None else f"{missing.decode()} has not reached the {self.node.name}"
