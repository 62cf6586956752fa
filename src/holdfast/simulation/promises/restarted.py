"""A restart must not change answers: after a kill, a destination answers repeated requests as it would have without.

At a moment when everything is durable, the check copies the running endpoint and builds another one from its disk. Both
receive every earlier request again and must give the same answers.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace

from holdfast.core.events import BackChannel, ReadWanted, Respond
from holdfast.core.messages import ANONYMOUS_EPR, Envelope, MakeConnection
from holdfast.core.origin import Origin
from holdfast.core.protocol import RMProtocol
from holdfast.core.receiving.replies import APART
from holdfast.simulation.nodes.node import Node
from holdfast.simulation.nodes.store import SimStore
from holdfast.simulation.nodes.words import describe
from holdfast.simulation.promises.invariant import InvariantViolation
from holdfast.store.memory import MemoryStore

INVARIANT = "AnswersSurviveRestart"


class Heard:
    """Records each request that an endpoint received, without duplicates."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._envelopes: dict[str, tuple[Envelope, Origin]] = {}

    def hear(self, envelope: Envelope, origin: Origin) -> None:
        """Record a request and its origin, except for a poll: its answer waits for reads that a living one has done."""
        if not isinstance(envelope.control, MakeConnection):
            self._envelopes.setdefault(repr(envelope), (replace(envelope), origin))

    def compare(self) -> bool:
        """Check that a restart would change no answer.

        Returns:
            Whether the check was possible. It is not while a batch is pending or a read is in progress.

        Raises:
            InvariantViolation: a restart would change an answer.
        """
        node = self._node
        is_resting = not (node.store.pending or node.reading or node.protocol.wants_commit or node.protocol.effects)
        if not node.is_up or not is_resting:
            return False
        living, restarted = _Twin.living(node), _Twin.restarted(node)
        for envelope, origin in self._envelopes.values():
            said, again = living.ask(envelope, origin), restarted.ask(envelope, origin)
            if said != again:
                what = f"{node.name} answers {describe(envelope)} with {said}, and after a restart with {again}"
                raise InvariantViolation(INVARIANT, what)
        return True


class _Name:
    """Stands in for the endpoint, so that a copy's new identifiers do not affect it."""

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.identifiers = node.identifiers

    def new_identifier(self) -> str:
        self.identifiers += 1
        return f"urn:{self.name}:{self.identifiers}"


class _Twin:
    """A copy of an endpoint with its own, immediately durable disk; only the check sends to it."""

    def __init__(self, protocol: RMProtocol, disk: MemoryStore, now: float) -> None:
        self._protocol = protocol
        self._disk = disk
        self._now = now
        # A hypothetical request must not consume the run's random numbers.
        protocol.outbound.context.jitter = _no_jitter
        # The check compares answers, not handling.
        if protocol.handling is not None:
            protocol.handling.leave()

    @classmethod
    def living(cls, node: Node) -> _Twin:
        store = SimStore(_nobody)
        store.durable = deepcopy(node.store.durable)
        shared = {id(node): _Name(node), id(node.store): store, id(ANONYMOUS_EPR): ANONYMOUS_EPR}
        return cls(deepcopy(node.protocol, shared), store.durable, node.now)

    @classmethod
    def restarted(cls, node: Node) -> _Twin:
        """Build the endpoint that would start if this one were killed now."""
        disk, name = deepcopy(node.store.durable), _Name(node)
        protocol = node.make_protocol(disk.read, name.new_identifier)
        protocol.recover(disk.load(), node.now)
        twin = cls(protocol, disk, node.now)
        twin._settle(BackChannel(object()))  # it accepts requests only after its recovery reads
        return twin

    def ask(self, envelope: Envelope, origin: Origin) -> str:
        """Return the endpoint's answer in words; "nothing yet" if the answer takes time."""
        self._now += APART  # an earlier repeat waits, unless a kill has ended the other exchange of its request
        asker = BackChannel(object())
        self._protocol.receive(replace(envelope), asker, self._now, origin=origin)
        return self._settle(asker)

    def _settle(self, asker: BackChannel) -> str:
        answer = "nothing yet"
        while True:
            for effect in self._protocol.take_effects():
                if isinstance(effect, Respond) and effect.back_channel is asker:
                    answer = _whole(effect.envelope)
                elif isinstance(effect, ReadWanted):
                    found = self._disk.read(effect.queue, effect.partition, effect.start, effect.end)
                    self._protocol.records_read(effect, found, self._now)
            if self._protocol.wants_commit:
                self._disk.commit(self._protocol.take_batch())
                self._protocol.batch_durable(self._now)
            elif not self._protocol.effects:
                return answer


def _whole(envelope: Envelope | None) -> str:
    if envelope is None:
        return "nothing (202)"
    said = {field.name: getattr(envelope, field.name) for field in fields(envelope)}
    return f"{describe(envelope)} { ({name: value for name, value in said.items() if value}) }"


def _no_jitter() -> float:
    return 0.0


def _nobody(_batch: object) -> None:
    pass
