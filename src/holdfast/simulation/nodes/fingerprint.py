"""Canonical forms of endpoints and packets: the explorer treats two states with equal forms as one.

A form has a *shape*, in which every identifier is a hole, and the identifiers that fill the holes. Two endpoints of one
shape behave alike, whatever their identifiers are. ``_REPORTS`` and the special cases below omit state from a shape,
with the reason why that is safe. ``tests/simulation/test_reductions.py`` runs states with equal forms through every
step and compares the results.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.deadlines import Deadlines
from holdfast.core.messages import EndpointReference
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.retransmission import RoundTrip
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.rm_source.doubt import SequenceDoubt
from holdfast.core.rm_source.flight import InFlight
from holdfast.core.rm_source.source import RMSource
from holdfast.core.rm_source.transmissions import Transmissions
from holdfast.core.versions import Versions
from holdfast.simulation.nodes.clock import EPOCH
from holdfast.simulation.nodes.ledger import DurableState, Words
from holdfast.simulation.nodes.node import Arrival, Node
from holdfast.simulation.nodes.store import SimStore

if TYPE_CHECKING:
    from holdfast.simulation.world import World

HORIZON = 1000.0
"""Seconds: a later deadline counts as never."""
BACK = 1.0
"""Seconds: all earlier times count as equal. The core compares an age only with the retransmission delay, which is
this."""

_ALIKE = (Versions, DestinationPolicy, SourcePolicy, RoundTrip, SimStore, Transmissions)
"""Types that never change in a search, or work on parts that are compared by themselves. The round trip does change,
but the floor and cap of the delay hide it."""
_REPORTS = frozenset(
    {
        # Only reported, or compared with limits beyond the horizon.
        "created_at",
        "ended_at",
        "first_sent_at",
        "last_activity",
        "last_fault",
        "last_heard",
        "moved_at",
        "received_at",
        "released_at",
        "request_sent_at",
        # Read only while an endpoint starts.
        "_handled",
        # Counters.
        "dead",
        "failed",
        "succeeded",
        # Derived from other fields, or cached for reuse.
        "here",
        "history",
        "left_at",
        "requests",
        "_fixed",
        "_state",
        "saved",
        # The number of backoffs, irrelevant when all delays are equal.
        "tries",
        "_waited",
    }
)
"""Fields, and keys of saved states, that do not affect behavior in the explorer's setups."""
_MADE = ("urn:source:", "urn:destination:")
"""Prefixes of the identifiers that endpoints make: see :meth:`Node.new_identifier`."""
_MOST = 3
"""Higher numbers of attempts count as this one: the core asks for one attempt, and for this many answered ones."""
_FIELDS: dict[type[Any], tuple[str, ...] | None] = {}


class Form(NamedTuple):
    """The canonical form of an object.

    Args:
        shape: A 128-bit digest, equal for objects that differ only in identifiers.
        names: Its identifiers, each once, in the order the walk meets them.
        arrivals: For an endpoint: positions, among the given arrivals, of its unanswered requests, in the same order.
    """

    shape: bytes
    names: tuple[str, ...]
    arrivals: tuple[int, ...] = ()


def digest(value: Any) -> bytes:
    """Return 128 bits that are equal for equal values of the simple built-in types."""
    # Version 2 of marshal's format has no references, so equal values give equal bytes.
    return blake2b(marshal.dumps(value, 2), digest_size=16).digest()


def form_of(value: Any) -> Form:
    """Return the form of an envelope, or of another value without times."""
    walk = _Walk(0.0, ())
    return Form(digest(walk.of(value)), tuple(walk.names))


def form_of_endpoint(world: World, node: Node, arrivals: Sequence[Arrival]) -> Form:
    """Return the form of an endpoint, its store, its recorded history, and its unanswered requests."""
    walk = _Walk(world.clock.local(node.index), arrivals)
    disk, words = world.ledger.disks[node.index], world.ledger.words[node.index]
    parts = [
        walk.of(node.protocol),
        walk.of(node.store.pending),
        walk.of(node.store.load()),
        (node.end_wanted, world.has_ended if node.index == 0 else None),
        *_past(walk, disk, words),
    ]
    forgotten = [position for position in range(len(arrivals)) if position not in walk.arrivals]
    return Form(digest(parts), tuple(walk.names), (*walk.arrivals, *forgotten))


def _past(walk: _Walk, disk: DurableState, words: Words) -> list[Any]:
    """Return the history that invariants may compare later: accepted, queued, acknowledged and sent messages."""
    submitted = {queue: [record.body for record in records] for queue, records in disk.outbound.items() if records}
    queues = [[(queued.sequence, queued.number, queued.body) for queued in disk.queues[key]] for key in disk.queues]
    accepted = {name: ranges.as_pairs() for name, ranges in disk.accepted.items()}
    said = {name: ranges.as_pairs() for name, ranges in words.said.items()}
    return [
        walk.of(submitted),
        walk.of(queues),
        walk.of(accepted),
        walk.of(disk.dropped),
        tuple(sorted(disk.replies)),
        # Neither memory nor disk knows the other Sequences, so the endpoint cannot mention them again.
        walk.of_known(said),
        walk.of_known(words.finals),
        walk.of_known(words.bodies),
        tuple(sorted(words.in_doubt)),
        tuple(words.stopped),
    ]


class _Walk:
    """Walks objects in a fixed order and reduces them to the plain values that affect behavior."""

    def __init__(self, now: float, arrivals: Sequence[Arrival]) -> None:
        self.names: dict[str, int] = {}
        self.arrivals: dict[int, None] = {}
        self._now = now
        self._positions = {id(arrival): position for position, arrival in enumerate(arrivals)}
        self._met: dict[int, tuple[int, object]] = {}
        """Every object met. The reference keeps it alive, so that no other object reuses its id."""

    def of(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is int or kind is bool or kind is bytes:
            return value
        if kind is str:
            return self._of_string(value)
        if kind is float:
            return self._time(value)
        if kind is tuple or kind is list or kind is deque:
            return tuple([self.of(part) for part in value])
        if issubclass(kind, dict):
            items = sorted(value.items()) if value and type(next(iter(value))) is int else value.items()
            return tuple([(self.of(key), self.of(part)) for key, part in items if key not in _REPORTS])
        if kind is set or kind is frozenset:
            return tuple(sorted(map(self.of, value), key=repr))
        if isinstance(value, Enum):
            return value.name
        return self._of_object(value, kind)

    def _of_string(self, value: str) -> Any:
        kind, _, name = value.rpartition("/")  # a queue of replies, or an outbox, is named after a Sequence
        if not name.startswith(_MADE):
            return value
        return (kind, self.names.setdefault(name, len(self.names)))

    def of_known(self, past: dict[Any, Any]) -> Any:
        """Reduce a dict keyed by identifiers to the entries with an identifier already met."""
        known = {}
        for key, part in past.items():
            name = key if isinstance(key, str) else key[0]
            if name in self.names:
                known[key] = part
        return tuple(sorted([(self.of(key), self.of(part)) for key, part in known.items()]))

    def _time(self, value: float) -> float:
        if value < EPOCH / 2:
            return value  # a duration, or a window
        since = value - self._now
        return HORIZON if since > HORIZON else max(-BACK, round(since, 3))

    def _of_object(self, value: Any, kind: type) -> Any:
        if issubclass(kind, _ALIKE):
            return None
        if kind is partial:
            return (self.of(value.func), self.of(value.args), self.of(value.keywords))
        if kind is MethodType:
            return (value.__func__.__name__, self.of(value.__self__))
        if kind is FunctionType or kind is type:
            return value.__qualname__
        if kind is Node:
            return value.name
        if kind is Arrival:
            return self._of_arrival(value)
        if kind is EndpointReference:
            return (value.address, value.reference_parameters)
        if kind is SequenceDoubt:
            return value.state.name  # its other parts are the source's
        met = self._met.get(id(value))
        if met is not None:
            return ("met", met[0])
        self._met[id(value)] = (len(self._met), value)
        if kind is Deadlines:
            return tuple([(self.of(key), self._time(time)) for key, time in value._times.items()])
        parts: list[Any] = [kind.__name__]
        if kind is RMSource:
            parts.append(self._of_flight(value))
        if kind is RMDestination:
            parts.append(value.ended_at is None)
        if kind not in _FIELDS:
            _FIELDS[kind] = _fields(kind)
        names = _FIELDS[kind]
        for name in vars(value) if names is None else names:
            part: Any = getattr(value, name, None)
            if name == "attempts":
                parts.append(min(part, _MOST))
            elif name == "_patience":
                parts.append(self._of_patience(part))
            elif name not in _REPORTS and not (name == "flight" and kind is RMSource):
                parts.append(self.of(part))
        return tuple(parts)

    def _of_arrival(self, arrival: Arrival) -> Any:
        position = self._positions.get(id(arrival))
        if position is None:
            return "answered"
        self.arrivals.setdefault(position)
        return ("open", list(self.arrivals).index(position))

    def _of_patience(self, waiting: list[tuple[float, int, float, str, int, Any]]) -> Any:
        """Reduce the times at which requesters are answered: those within the horizon, in their order."""
        near = sorted([one for one in waiting if one[0] <= self._now + HORIZON], key=itemgetter(0, 1))
        return tuple([(self._time(at), self.of(name), number, self.of(back)) for at, _, _, name, number, back in near])

    def _of_flight(self, source: RMSource) -> Any:
        """Reduce the messages in flight.

        The core compares their send times only with each other and with the current time: it sends nothing before
        those. So ranks replace the times.
        """
        moments = sorted({entry.sent_at for entry in source.flight.values()} | {self._now}, reverse=True)
        return tuple(
            (number, moments.index(entry.sent_at), self._of_entry(entry, polled=source.polled))
            for number, entry in sorted(source.flight.items())
        )

    def _of_entry(self, entry: InFlight, *, polled: bool) -> Any:
        due = None if polled else self._time(entry.due)  # what is polled is never sent because it is due
        return (
            due,
            min(entry.attempts, _MOST),
            entry.answered,
            entry.waits_for,
            entry.is_parked,
            entry.exchanges > 0,
            entry.faults > 0,
        )


def _fields(kind: type[Any]) -> tuple[str, ...] | None:
    """Return the names of an object's fields, with those of its base classes; None: they are in its ``__dict__``."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    if getattr(kind, "__slots__", None) is None:
        return None
    return tuple(name for base in reversed(kind.__mro__) for name in getattr(base, "__slots__", ()))
