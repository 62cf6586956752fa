"""The sending half over a store in memory, and what it wants done; a test answers for the peer."""

from __future__ import annotations

import itertools
from typing import Any

from reads import take_effects

from holdfast.core.events import Effect, Incident, Stopped, Transmit
from holdfast.core.messages import (
    ANONYMOUS,
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    Fault,
    SequenceAcknowledgement,
)
from holdfast.core.origin import Origin
from holdfast.core.policy import SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.sending.identifier_claims import IdentifierClaims
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore

TO = "http://d/"
NEW, OLD = Versions("1.1"), Versions("1.0")
STEADY = RetransmissionPolicy(initial=1.0, floor=0.5, cap=1.0, jitter=0.0)


class Sending:
    """The sending half over a store in memory, and what it wants done."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        now: float = 100.0,
        local: str = ANONYMOUS,
        claims: IdentifierClaims | None = None,
        rules: MessageRules | None = None,
        letters: DeadLetters | None = None,
        **policy: Any,
    ) -> None:
        self.store = store or MemoryStore()
        self.now = now
        self.transmitted: list[Transmit] = []
        self.told: list[Effect] = []
        count = itertools.count(1)
        self.protocol = RMProtocol(
            Queue("replies"),
            Environment(
                self.store.read, lambda: f"urn:id:{id(self)}:{next(count)}", lambda: 0.0, local=local, claims=claims
            ),
            policies=Policies(source=SourcePolicy(**{"retransmission": STEADY} | policy)),
            rules=rules,
            letters=letters,
        )
        self.protocol.recover(self.store.load(), self.now)
        self._see_to_effects()
        self.choices = [(NEW, False), (OLD, False)]

    def open(self, key: str = "a", to: str = TO) -> Outbox:
        return self.protocol.outbound.open(key, to, self.choices)

    def submit(self, outbox: Outbox, *bodies: str, **fields: Any) -> None:
        for body in bodies:
            record = Record(outbox.key, 0, "urn:a", body.encode(), self.now, f"urn:m:{body}", **fields)
            self.protocol.submit(outbox, record, self.now)
        self.settle()

    def creating(self, key: str = "a", to: str = TO) -> tuple[Outbox, Transmit]:
        """An outbox with two messages, and its CreateSequence, of one version only."""
        outbox = self.open(key, to)
        outbox.lifecycle.choices = outbox.lifecycle.choices[:1]
        self.submit(outbox, f"{key}1", f"{key}2")
        (create,) = self.take()
        return outbox, create

    def incidents(self, name: str) -> list[Incident]:
        return [one for one in self.told if isinstance(one, Incident) and one.name == name]

    def settle(self) -> None:
        self.protocol.pump(self.now)
        while True:
            self._see_to_effects()
            if not self.protocol.wants_commit:
                return
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)

    def _see_to_effects(self) -> None:
        for effect in take_effects(self.protocol, self.store, self.now):
            (self.transmitted if isinstance(effect, Transmit) else self.told).append(effect)  # type: ignore[arg-type]

    def take(self) -> list[Transmit]:
        """What was sent since the last call."""
        self.settle()
        taken, self.transmitted = self.transmitted, []
        return taken

    def wait(self, seconds: float) -> list[Transmit]:
        self.now += seconds
        return self.take()

    def lose(self, sent: Transmit) -> None:
        """Its exchange ends without an answer."""
        self.protocol.failed(sent, self.now)
        self.settle()

    def answer(self, sent: Transmit | None, **fields: Any) -> None:
        """The peer answers a message; None: it posts one of its own."""
        if sent is None:
            envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, **fields)
            self.protocol.receive(envelope, None, self.now, origin=Origin(TO))
        else:
            versions = sent.envelope.soap, sent.envelope.addressing, sent.envelope.rm
            envelope = Envelope(*versions, relates_to=sent.envelope.message_id)
            for name, value in fields.items():
                setattr(envelope, name, value)
            self.protocol.received(sent, envelope, self.now)
        self.settle()

    def post_acknowledgement(self, outbox: Outbox, *ranges: tuple[int, int]) -> None:
        """The peer posts an acknowledgement for an outbox."""
        assert outbox.source is not None and outbox.source.identifier is not None
        acknowledgement = SequenceAcknowledgement(outbox.source.identifier, ranges)
        self.answer(None, control=Acknowledge(), acknowledgements=(acknowledgement,))

    def take_granting(self) -> list[Transmit]:
        """The messages that were sent since the last call; CreateSequence is granted."""
        self.settle()
        taken, self.transmitted = self.transmitted, []
        for sent in taken:
            if isinstance(sent.envelope.control, CreateSequence):
                self.grant(sent, f"urn:s:{sent.source}")
        return [one for one in taken if one.number] + (self.take_granting() if self.transmitted else [])

    def grant(self, sent: Transmit, identifier: str) -> None:
        assert isinstance(sent.envelope.control, CreateSequence)
        self.answer(sent, control=CreateSequenceResponse(identifier))

    def refuse(self, sent: Transmit, code: str = "CreateSequenceRefused", **fault: Any) -> None:
        self.answer(sent, fault=Fault(code, "no", **{"is_rm": True} | fault))

    def acknowledge(self, sent: Transmit, *ranges: tuple[int, int]) -> None:
        acknowledgement = SequenceAcknowledgement(sequence_of(sent), ranges)
        self.answer(sent, control=Acknowledge(), acknowledgements=(acknowledgement,))

    def opened(self, key: str = "a", *bodies: str) -> tuple[Outbox, list[Transmit]]:
        """An outbox whose Sequence is granted, and the messages that left with that."""
        outbox = self.open(key)
        self.submit(outbox, *bodies)
        (create,) = self.take()
        self.grant(create, f"urn:s:{key}")
        return outbox, self.take()

    @property
    def stopped(self) -> list[Stopped]:
        return [effect for effect in self.told if isinstance(effect, Stopped)]


def sequence_of(sent: Transmit) -> str:
    """The Sequence of a message, or the one that an AckRequested asks for."""
    named = sent.envelope.sequence or sent.envelope.ack_requested[0]
    return named.identifier


def numbers(sent: list[Transmit]) -> list[int]:
    return [one.number for one in sent]
