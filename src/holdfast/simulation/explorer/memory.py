"""Endpoints with memorized steps: the real code computes each step once, and later uses look it up.

An endpoint is sans-IO: its state and its input determine its step. Most situations share endpoints with others, so
nearly every step of a search has been taken before. The memory saves an endpoint's complete state, including that of
its invariants. The invariants may read only the part of the other endpoint that
:func:`~holdfast.simulation.nodes.ledger.seen_by_the_other` returns, and that part belongs to the key of a step. While
one endpoint takes a step, the other one is absent, so that an undeclared dependence raises an error.

Every endpoint has its own time, which stands still while it takes no step. This is safe because neither the messages
nor the invariants' view of the other endpoint contain times.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any

from holdfast.core.messages import ANONYMOUS_EPR, Envelope
from holdfast.core.versions import Versions
from holdfast.simulation.explorer.situation import Bounds, Budget, Endpoint, Outcome, Packet, Situation, Step
from holdfast.simulation.explorer.stage import Stage
from holdfast.simulation.nodes.fingerprint import Form, form_of
from holdfast.simulation.nodes.ledger import DurableState, Words, seen_by_the_other
from holdfast.simulation.nodes.node import Node
from holdfast.simulation.promises.invariant import Invariant
from holdfast.simulation.promises.invariants import ALL_INVARIANTS


class Memory:
    """Every endpoint that a search has met, and every step taken."""

    def __init__(self, bounds: Bounds, invariants: Iterable[type[Invariant]] = ALL_INVARIANTS) -> None:
        self.stage = stage = Stage(bounds, invariants)
        """Holds the endpoint that takes a step."""
        self._nobody = stage.world.nodes
        """Placeholders for the absent endpoint: same setup, never started."""
        self._known: dict[Any, Remembered] = {}
        self._packets: dict[Form, Packet] = {}
        self._envelopes: dict[Form, Envelope] = {}
        self._views: dict[Any, int] = {}
        self.steps = 0
        """Number of computed steps."""
        # Shared objects: all endpoints use the same ones, by identity, or gain nothing from a copy.
        shared = [stage, stage.world, ANONYMOUS_EPR]
        for node in self._nobody:
            setup, policy = node.setup, node.setup.source_policy
            shared += [setup, setup.handling, setup.destination_policy, policy, policy.retransmission]
        self._shared = _Shared(shared)

    def begin(self) -> Situation:
        """Return the first situation of a search."""
        bounds, stage = self.stage.bounds, self.stage
        one, other = (Node(node.index, node.name, node.setup, stage.world) for node in self._nobody)
        stage.world.nodes = (one, other)
        packets = [self._kept(packet) for packet in stage.begin()]
        budget = Budget(bounds.losses, bounds.duplicates, bounds.crashes, bounds.early, bounds.late)
        return Situation([self._save(0)[0], self._save(1)[0]], packets, [[], []], budget)

    def missing(self, situation: Situation) -> str | None:
        """Describe what is unfinished; None if everything is finished."""
        for index, endpoint in enumerate(situation.endpoints):
            assert isinstance(endpoint, Remembered)
            self._load(index, endpoint)
        return self.stage.missing

    def work_out(self, endpoint: Remembered, step: Step, other: Remembered) -> Outcome:
        self.steps += 1
        index, world = endpoint.index, self.stage.world
        self._load(index, endpoint)
        one, another = world.nodes
        world.nodes = (one, self._nobody[1]) if index == 0 else (self._nobody[0], another)
        world.ledger.disks[1 - index], world.ledger.words[1 - index] = self._loads(other.seen)
        if step.packet is not None:
            step = step._replace(packet=self._copied(step.packet))
        requests, responses, unanswered = self.stage.take(index, step)
        after, order = self._save(index)
        return Outcome(
            after,
            tuple(self._kept(packet) for packet in requests),
            tuple((position, self._kept_envelope(envelope)) for position, envelope in responses),
            tuple(unanswered[position] for position in order),
        )

    # --- packets --------------------------------------------------------------------------------------------------

    def _kept(self, packet: Packet) -> Packet:
        return self._packets.setdefault(packet.form, packet)

    def _kept_envelope(self, envelope: Envelope | None) -> Envelope | None:
        return None if envelope is None else self._envelopes.setdefault(form_of(envelope), envelope)

    def _copied(self, packet: Packet) -> Packet:
        """Return a copy that an endpoint may keep and change."""
        transmit, envelope = self._loads(self._dumps((packet.transmit, packet.envelope)))
        return Packet(packet.sender, packet.receiver, transmit, packet.kind, packet.is_response, envelope)

    # --- endpoints ------------------------------------------------------------------------------------------------

    def _save(self, index: int) -> tuple[Remembered, tuple[int, ...]]:
        """Save the endpoint on the stage; also return the saved order of its arrivals."""
        stage, world = self.stage, self.stage.world
        node, form = world.nodes[index], stage.form(index)
        # The identifiers it makes next must be new, so the key includes their number, which is not renamed.
        key = (index, form.shape, form.names, node.run, node.identifiers)
        endpoint = self._known.get(key)
        if endpoint is None:
            disk, words = world.ledger.disks[index], world.ledger.words[index]
            arrivals = [stage.arrivals[index][position] for position in form.arrivals]
            told = (world.has_ended, world.is_stopped, world.submitted)
            whole = (node, disk, words, world.watches[index], arrivals, world.clock.now, told)
            endpoint = self._known[key] = Remembered(
                self,
                index,
                len(node.store.pending),
                stage.due_in(index),
                Form(form.shape, form.names, tuple(range(len(arrivals)))),
                self._dumps(whole),
                self._dumps(seen_by_the_other(disk, words)),
                self._view(disk, words),
            )
        return endpoint, form.arrivals

    def _view(self, disk: DurableState, words: Words) -> int:
        """Return a number for everything that the other endpoint's invariants can see."""
        seen_disk, seen_words = seen_by_the_other(disk, words)
        view = (
            tuple((name, ranges.as_pairs()) for name, ranges in seen_disk.accepted.items()),
            frozenset(seen_disk.dropped),
            tuple(seen_words.bodies.items()),
            frozenset(seen_words.in_doubt),
        )
        return self._views.setdefault(view, len(self._views))

    def _load(self, index: int, endpoint: Remembered) -> None:
        stage, world = self.stage, self.stage.world
        node, disk, words, watch, arrivals, now, told = self._loads(endpoint.saved)
        world.nodes = (node, world.nodes[1]) if index == 0 else (world.nodes[0], node)
        world.ledger.disks[index], world.ledger.words[index] = disk, words
        world.watches[index] = watch
        stage.arrivals[index] = arrivals
        world.clock.now = now
        if index == 0:
            world.has_ended, world.is_stopped, world.submitted = told

    # --- bytes ----------------------------------------------------------------------------------------------------

    def _dumps(self, value: Any) -> bytes:
        file = io.BytesIO()
        pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.shared = self._shared
        pickler.dump(value)
        return file.getvalue()

    def _loads(self, saved: bytes) -> Any:
        unpickler = _Unpickler(io.BytesIO(saved))
        unpickler.shared = self._shared
        return unpickler.load()


class _Shared:
    """Objects that are not copied with an endpoint, each saved as a number.

    Args:
        values: The initial objects, by identity. Versions are added on first use; equal ones share a number.
    """

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.numbers = {id(value): number for number, value in enumerate(values)}
        self.classes: dict[tuple[str, str], Any] = {}
        self._versions: dict[Versions, int] = {}

    def number_of_versions(self, versions: Versions) -> int:
        number = self._versions.get(versions)
        if number is None:
            number = self._versions[versions] = len(self.values)
            self.values.append(versions)
        return number


class _Pickler(pickle.Pickler):
    shared: _Shared

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is Versions:
            return self.shared.number_of_versions(value)
        return self.shared.numbers.get(id(value))


class _Unpickler(pickle.Unpickler):
    shared: _Shared

    def persistent_load(self, number: int) -> Any:
        return self.shared.values[number]

    def find_class(self, module: str, name: str) -> Any:
        known = self.shared.classes.get((module, name))
        if known is None:
            known = self.shared.classes[module, name] = super().find_class(module, name)
        return known


class Remembered:
    """One immutable state of an endpoint; a step leads to another one.

    Args:
        memory: The memory it belongs to.
        index: 0 for the source, 1 for the destination.
        pending, due_in, form: See :class:`Endpoint`.
        saved: The pickled endpoint.
        seen: The pickled part that the other side may read.
        view: A number for that part.
    """

    __slots__ = ("_memory", "_outcomes", "due_in", "form", "index", "pending", "saved", "seen", "view")

    def __init__(
        self,
        memory: Memory,
        index: int,
        pending: int,
        due_in: float | None,
        form: Form,
        saved: bytes,
        seen: bytes,
        view: int,
    ) -> None:
        self._memory = memory
        self.index = index
        self.pending = pending
        self.due_in = due_in
        self.form = form
        self.saved = saved
        self.seen = seen
        self.view = view
        self._outcomes: dict[tuple[Step, int], Outcome] = {}

    def take(self, step: Step, other: Endpoint) -> Outcome:
        assert isinstance(other, Remembered)
        key = (step, other.view)
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = self._memory.work_out(self, step, other)
        return outcome
