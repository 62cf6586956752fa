"""A message costs the same however many Sequences are open. Counted in lines of the core that run, not in time."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from lines_run import lines_of
from reads import take_effects

from holdfast.core.events import Transmit
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Sequence,
    SequenceAcknowledgement,
)
from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore

VERSIONS = Versions()
FEW, MANY = 20, 2_000
HERE = EndpointReference("http://here.example/")


class Side:
    """One side, and what its peer says to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = MemoryStore()
        names = count()
        policy = DestinationPolicy(max_party_sequences=MANY)
        self.protocol = RMProtocol(
            Queue("inbox", 4),
            Environment(self.store.read, lambda: f"urn:{next(names)}", lambda: 0.5),
            policies=Policies(destination=policy),
            rules=MessageRules(allows=lambda _: True, replies=lambda _action: False),
        )
        self.sent: list[Transmit] = []

    def turn(self) -> None:
        """What a shell does after each input."""
        while True:
            self.protocol.pump(self.now)
            self.sent += [
                effect for effect in take_effects(self.protocol, self.store, self.now) if isinstance(effect, Transmit)
            ]
            self.protocol.deadline()
            if not self.protocol.wants_commit:
                return
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)

    def envelope(self, **fields: Any) -> Envelope:
        return Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, **fields)

    # --- as a destination -----------------------------------------------------------------------------------------

    def grant(self, number: int, acks_to: EndpointReference) -> None:
        creating = self.envelope(control=CreateSequence(acks_to), message_id=f"urn:c{number}", reply_to=ANONYMOUS_EPR)
        creating.action = "http://docs.oasis-open.org/ws-rx/wsrm/200702/CreateSequence"
        self.protocol.receive(creating, object(), self.now)
        self.turn()

    def take(self, identifier: str, number: int) -> None:
        message = self.envelope(sequence=Sequence(identifier, number), action="urn:a", body=b"<a/>")
        self.protocol.receive(message, object(), self.now)
        self.turn()

    # --- as a source ----------------------------------------------------------------------------------------------

    def send(self, key: str) -> None:
        outbox = self.protocol.outbound.open(key, HERE.address, [(VERSIONS, False)])
        self.protocol.submit(outbox, Record(key, 0, "urn:a", b"<a/>", self.now, f"urn:m{self.now}{key}"), self.now)
        self.turn()
        while self.sent:
            sent = self.sent.pop(0)
            answer = self.envelope(relates_to=sent.envelope.message_id)
            if isinstance(sent.envelope.control, CreateSequence):
                answer.control = CreateSequenceResponse(f"urn:s:{key}")
            else:
                assert sent.envelope.sequence is not None
                answer.control = Acknowledge()
                answer.acknowledgements = (SequenceAcknowledgement(f"urn:s:{key}", ((1, sent.number),)),)
            self.protocol.received(sent, answer, self.now)
            self.turn()


@pytest.mark.parametrize("acks_to", [ANONYMOUS_EPR, HERE], ids=["anonymous", "addressable"])
def test_a_message_costs_a_destination_the_same_with_many_open_sequences_as_with_few(
    acks_to: EndpointReference,
) -> None:
    def lines(sequences: int) -> list[int]:
        side = Side()
        for number in range(sequences):
            side.now += 0.001
            side.grant(number, acks_to)
        identifiers = list(side.protocol.inbound.destinations)
        for identifier in identifiers:
            side.now += 0.001
            side.take(identifier, 1)
        side.now += 1.0  # what was owed is told
        side.turn()
        found = []
        for identifier in identifiers[:10]:
            side.now += 0.001
            found.append(lines_of(lambda name=identifier: side.take(name, 2)))  # type: ignore[misc]
        return found

    assert lines(MANY) == lines(FEW)


def test_a_message_costs_a_source_the_same_with_many_open_sequences_as_with_few() -> None:
    def lines(sequences: int) -> list[int]:
        side = Side()
        keys = [str(number) for number in range(sequences)]
        for _ in range(2):
            for key in keys:
                side.now += 0.001
                side.send(key)
        side.now += 10.0
        side.turn()
        found = []
        for key in keys[:10]:
            side.now += 0.001
            found.append(lines_of(lambda name=key: side.send(name)))  # type: ignore[misc]
        return found

    assert lines(MANY) == lines(FEW)
