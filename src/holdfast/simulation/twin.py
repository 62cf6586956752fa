"""A second destination of the simulated source, which grants the Identifiers that the first destination grants.

It is the real core in a second world, with its own disk, ledger and invariants. The source sends to both: an
acknowledgement, a fault or a closure by one of them must change nothing of the other one's Sequence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.events import Handle, ReadWanted
from holdfast.core.messages import Envelope
from holdfast.core.protocol import RMProtocol
from holdfast.core.records import Record
from holdfast.core.sending.outbox import Outbox, outbox_queue
from holdfast.simulation.actors.reader import At
from holdfast.simulation.nodes.node import SECOND, SECOND_ADDRESS, SECOND_OUTBOX, Arrival, Journey, Node
from holdfast.simulation.promises.invariants import Invariant, skips
from holdfast.simulation.world import World

if TYPE_CHECKING:
    from holdfast.simulation.options import Options


class Twin:
    """The second destination, and what decides when its packets travel and its batches become durable.

    Args:
        options: What the source's world is like.
        world: The source's world.
        at: Schedules an event, in seconds from now.
        chance: Chooses every delay.
        request: Carries an HTTP request of the second destination.
        respond: Carries its answer to one.
        invariants: What must hold there.
        build: Makes its protocol.
    """

    def __init__(
        self,
        options: Options,
        world: World,
        at: At,
        chance: random.Random,
        request: Callable[[Journey], None],
        respond: Callable[[Arrival, Envelope | None], None],
        *,
        invariants: Iterable[type[Invariant]],
        build: Callable[..., RMProtocol],
    ) -> None:
        self._options = options
        self._source = world.nodes[0]
        self._world_of_source = world
        self._at = at
        self._chance = chance
        self._request = request
        self.respond = respond
        source, destination = options.setups()
        self._choices = ((options.versions, False),)
        setups = (replace(source, choices=self._choices), replace(destination, address=SECOND_ADDRESS))
        self.world = World(setups, self, chance.random, invariants=invariants, build=build)
        self.world.clock, self.world.counts = world.clock, world.counts
        self.node = self.world.nodes[1]
        self._submitted = 0
        self._is_ending = False
        world.second = self.world

    # --- the source's side ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the second destination, and schedule what the source's application sends to it."""
        self.world.start(self.node)
        for _ in range(self._options.messages):
            self._at(self._chance.random() * self._options.storm * 0.6, self._submit)

    def open(self) -> Outbox:
        """Return the outbox that leads to the second destination, opened again after each start of the source."""
        outbox = self._source.protocol.outbound.open(SECOND_OUTBOX, SECOND_ADDRESS, [*self._choices])
        if self._is_ending:
            self._source.protocol.outbound.want_end(outbox, self._source.now)
        return outbox

    def _submit(self) -> Node | None:
        if not self._source.is_up:
            self._at(0.5, self._submit)
            return None
        if self._is_ending:
            return None
        body = b"t%d" % self._submitted
        self._submitted += 1
        self._world_of_source.note(lambda: f"the source's application submits {body.decode()}")
        self._world_of_source.count("messages to the second destination")
        record = Record(SECOND_OUTBOX, 0, "urn:request", body, self._source.now, f"urn:message:{body.decode()}")
        self._source.protocol.submit(self.open(), record, self._source.now)
        return self._source

    def end(self) -> None:
        """The application has nothing more to send there."""
        self._is_ending = True
        self.open()

    def missing(self) -> str | None:
        """Return what has not arrived there, in words; None if everything has."""
        if not self.open().is_empty:
            return "the source waits for acknowledgements of the second destination"
        disk = self.world.ledger.disks[1]
        there = {queued.body for records in disk.queues.values() for queued in records}
        there |= {disk.records[key].body for key in disk.dropped}
        records = self._world_of_source.ledger.disks[self._source.index].outbound[outbox_queue(SECOND_OUTBOX)]
        missing = next(
            (body for body in (record.body for record in records) if body not in there and not skips(self.node)), None
        )
        return None if missing is None else f"{missing.decode()} has not reached the second destination"

    # --- see Surroundings -----------------------------------------------------------------------------------------

    def request(self, journey: Journey) -> None:
        """See :class:`Surroundings`."""
        world = self._world_of_source
        world.journeys += 1
        world.note(lambda: f"the second destination sends #{world.journeys}")
        self._request(Journey(SECOND, journey.run, journey.transmit, self._source.index, world.journeys))

    def batch_taken(self, node: Node) -> None:
        """See :class:`Surroundings`. Its disk is a steady one: batches become durable in their order."""
        self._at(self._options.commit_latency, self._durable)

    def _durable(self) -> Node:
        self.node.durable()
        return self.node

    def read_wanted(self, node: Node, wanted: ReadWanted) -> None:
        """See :class:`Surroundings`."""
        node.read(wanted)

    def handler_started(self, node: Node, handle: Handle) -> None:
        """See :class:`Surroundings`."""
        self._at(self._chance.random() * self._options.handler_latency, partial(self._handled, handle))

    def _handled(self, handle: Handle) -> Node:
        self.node.handled(handle)
        return self.node
