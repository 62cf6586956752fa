"""A second destination of the simulated source, which grants the same Identifiers as the first one.

The source sends to both. An acknowledgement, a fault or a closure from one of them must not change the other's
Sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.protocol import RMProtocol
from holdfast.core.records import Record
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.records import outbox_queue
from holdfast.simulation.nodes.node import SECOND, SECOND_ADDRESS, SECOND_OUTBOX, Journey, Node
from holdfast.simulation.promises.invariant import Invariant, skips
from holdfast.simulation.second_world import Carrier, SecondWorld
from holdfast.simulation.world import World

if TYPE_CHECKING:
    from holdfast.simulation.options import Options


class Twin(SecondWorld):
    """The second destination, and the source's messages to it."""

    def __init__(
        self,
        options: Options,
        world: World,
        carrier: Carrier,
        *,
        invariants: Iterable[type[Invariant]],
        build: Callable[..., RMProtocol],
    ) -> None:
        source, destination = options.setups()
        self._choices = ((options.versions, False),)
        setups = (replace(source, choices=self._choices), replace(destination, address=SECOND_ADDRESS))
        super().__init__(SECOND, world, world.nodes[0], setups, options, carrier, invariants=invariants, build=build)
        self._submitted = 0
        self._is_ending = False
        world.second = self.world

    # --- the source's side ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the second destination, and schedule the source's messages to it."""
        self.world.start(self.node)
        for _ in range(self.options.messages):
            self._at(self._chance.random() * self.options.storm * 0.6, self._submit)

    def open(self) -> Outbox:
        """Return the outbox to the second destination; each start of the source opens it again."""
        outbox = self.sender.protocol.outbound.open(SECOND_OUTBOX, SECOND_ADDRESS, [*self._choices])
        if self._is_ending:
            outbox.want_end(self.sender.now)
        return outbox

    def _submit(self) -> Node | None:
        if not self.sender.is_up:
            self._at(0.5, self._submit)
            return None
        if self._is_ending:
            return None
        body = b"t%d" % self._submitted
        self._submitted += 1
        self.first.note(lambda: f"the source's application submits {body.decode()}")
        self.first.count("messages to the second destination")
        record = Record(SECOND_OUTBOX, 0, "urn:request", body, self.sender.now, f"urn:message:{body.decode()}")
        self.sender.protocol.submit(self.open(), record, self.sender.now)
        return self.sender

    def end(self) -> None:
        """End the outbox: the application has sent its last message."""
        self._is_ending = True
        self.open()

    def request(self, journey: Journey) -> None:
        self.first.note(lambda: f"the second destination sends #{self.first.journeys + 1}")
        super().request(journey)

    def missing(self) -> str | None:
        """Describe a message that has not arrived; None if every message has."""
        if not self.open().records.is_empty:
            return "the source awaits acknowledgements from the second destination"
        disk = self.world.ledger.disks[1]
        there = {queued.body for records in disk.queues.values() for queued in records}
        there |= {disk.records[key].body for key in disk.dropped}
        records = self.first.ledger.disks[self.sender.index].outbound[outbox_queue(SECOND_OUTBOX)]
        missing = next(
            (body for body in (record.body for record in records) if body not in there and not skips(self.node)), None
        )
        return None if missing is None else f"{missing.decode()} has not reached the second destination"
