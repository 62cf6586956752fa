"""What a restart must not change: a destination that was killed answers what is said again as one that was not.

At a moment at which everything is durable the living endpoint is copied, and another one is made from its disk. Both
hear again all that the endpoint was ever told, and must give the same answers.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace

from holdfast.core.events import BackChannel, ReadWanted, Respond
from holdfast.core.messages import ANONYMOUS_EPR, Envelope
from holdfast.core.origin import Origin
from holdfast.core.protocol import RMProtocol
from holdfast.core.receiving.replies import APART
from holdfast.simulation.nodes.node import Node
from holdfast.simulation.nodes.store import SimStore
from holdfast.simulation.nodes.words import describe
from holdfast.simulation.promises.invariants import InvariantViolation
from holdfast.store.memory import MemoryStore

INVARIANT = "AnswersSurviveRestart"


class Heard:
    """What an endpoint was told, each thing once.

    Args:
        node: The endpoint.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._envelopes: dict[str, tuple[Envelope, Origin]] = {}

    def hear(self, envelope: Envelope, origin: Origin) -> None:
        """A request arrives from there."""
        self._envelopes.setdefault(repr(envelope), (replace(envelope), origin))

    def compare(self) -> bool:
        """See that a restart would change no answer; whether it could be seen: not while something is not durable,
        or is being read.

        Raises:
            InvariantViolation: it would.
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
    """Stands for an endpoint whose copy makes identifiers."""

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.identifiers = node.identifiers

    def new_identifier(self) -> str:
        self.identifiers += 1
        return f"urn:{self.name}:{self.identifiers}"


class _Twin:
    """A copy of an endpoint that nobody hears but who asks it, with a disk of its own that is never late."""

    def __init__(self, protocol: RMProtocol, disk: MemoryStore, now: float) -> None:
        self._protocol = protocol
        self._disk = disk
        self._now = now
        # The run's own chance is not to be used up by what never happens.
        protocol.outbound.context.jitter = _no_jitter
        # What is heard, not what is handled, is compared.
        protocol.inbound.handling = None

    @classmethod
    def living(cls, node: Node) -> _Twin:
        """The endpoint as it is."""
        store = SimStore(_nobody)
        store.durable = deepcopy(node.store.durable)
        shared = {id(node): _Name(node), id(node.store): store, id(ANONYMOUS_EPR): ANONYMOUS_EPR}
        return cls(deepcopy(node.protocol, shared), store.durable, node.now)

    @classmethod
    def restarted(cls, node: Node) -> _Twin:
        """The endpoint that would come up if this one were killed now."""
        disk, name = deepcopy(node.store.durable), _Name(node)
        protocol = node.make_protocol(disk.read, name.new_identifier)
        protocol.recover(disk.load(), node.now)
        twin = cls(protocol, disk, node.now)
        twin._settle(BackChannel(object()))  # it takes nothing in before it has read what it needs
        return twin

    def ask(self, envelope: Envelope, origin: Origin) -> str:
        """What it answers, in words; "nothing yet" if that takes time."""
        self._now += APART  # a sooner repeat waits, unless a kill has ended the other exchange of its request
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
