"""When two states of the explorer are the same: what can be told apart from within, and nothing else.

Identifiers are renamed in the order they are met. Times count relative to now and no further back than the longest
delay that is compared with anything; those that only report (when a Sequence was created, last heard of, the round-trip
estimate between its floor and cap) do not count at all, since in the explorer's setups every retransmission delay is
alike and every other delay is beyond the horizon. Attempts count up to three. Of the past only what was said and queued
counts.
"""

from __future__ import annotations

import marshal
from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.retransmission import RoundTrip
from holdfast.core.timers import Deadlines
from holdfast.core.versions import Versions
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import EPOCH
from holdfast.testing.invariants import Invariant
from holdfast.testing.ledger import Ledger
from holdfast.testing.node import Node, Setup
from holdfast.testing.store import SimStore

if TYPE_CHECKING:
    from holdfast.testing.explore import Situation

HORIZON = 1000.0
"""Seconds: a deadline further away never comes."""
BACK = 2.0
"""Seconds: times further back are alike. Twice the one retransmission delay."""

_ALIKE = (Versions, DestinationPolicy, SourcePolicy, RoundTrip, Setup, SimStore, Invariant)
_REPORTS = frozenset(
    {
        "_state",
        "_usual",
        "_fixed",
        "created_at",
        "last_activity",
        "last_heard",
        "received_at",
        "first_sent_at",
        "number",
    }
    | {"run"}
)
"""Names of fields that only report, or cache what others say."""
_COUNTS = frozenset({"attempts", "tries"})
_MOST = 3
"""Attempts that are told apart: the core asks for one, and for so many answered ones."""
_FIELDS: dict[type[Any], tuple[str, ...] | None] = {}


def fingerprint(situation: Situation) -> bytes:
    """The same bytes for states that cannot be told apart, other bytes for others (as far as 128 bits can)."""
    # Version 2 of marshal's format has no references, so equal values give equal bytes.
    return blake2b(marshal.dumps(_Fingerprint(situation).whole(), 2), digest_size=16).digest()


class _Fingerprint:
    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._now = situation.world.clock.now
        self._names: dict[str, int] = {}
        self._met: dict[int, int] = {}

    def whole(self) -> tuple[Any, ...]:
        situation, world = self._situation, self._situation.world
        budget = situation.budget
        parts: list[Any] = [(budget.losses, budget.duplicates, budget.crashes, budget.early, world.has_ended)]
        for node in world.nodes:
            parts += [self._of(node.protocol), self._of(node.cursors), self._of(node.store.pending)]
            parts.append(self._disk(node))
        parts.append(self._of(situation.packets))
        parts.append(self._of(situation.open))
        return tuple(parts)

    def _disk(self, node: Node) -> tuple[Any, ...]:
        ledger: Ledger = self._situation.world.ledger
        disk = ledger.disks[node.index]
        queues = [[(queued.sequence, queued.number) for queued in records] for records in disk.queues.values()]
        outbound = {name: (len(records), disk.trimmed.get(name, 0)) for name, records in disk.outbound.items()}
        said = {name: ledger.said[name].as_pairs() for name in disk.behaviors if name in ledger.said}
        return (
            self._of(disk.sequences),
            self._of(queues),
            self._of(outbound),
            self._of(said),
            self._of(disk.held),
            self._of(disk.done),
        )

    def _of(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is int or kind is bool or kind is bytes:
            return value
        if kind is str:
            if not value.startswith("urn:"):
                return value
            return ("name", self._names.setdefault(value, len(self._names)))
        if kind is float:
            return self._time(value)
        if kind is tuple or kind is list or kind is deque:
            return tuple(self._of(part) for part in value)
        if kind is dict:
            items = sorted(value.items()) if value and type(next(iter(value))) is int else value.items()
            return tuple((self._of(key), self._of(part)) for key, part in items if key not in _REPORTS)
        if kind is set or kind is frozenset:
            return tuple(sorted(map(self._of, value), key=repr))
        if isinstance(value, Enum):
            return value.name
        return self._of_object(value, kind)

    def _time(self, value: float) -> float:
        if value < EPOCH / 2:
            return value  # a duration, or a window
        since = value - self._now
        return HORIZON if since > HORIZON else max(-BACK, round(since, 6))

    def _of_object(self, value: Any, kind: type) -> Any:
        if issubclass(kind, _ALIKE):
            return None
        if kind is partial:
            return (self._of(value.func), self._of(value.args), self._of(value.keywords))
        if kind is MethodType:
            return (value.__func__.__name__, self._of(value.__self__))
        if kind is FunctionType or kind is type:
            return value.__qualname__
        if kind is Node:
            return value.name
        met = self._met.get(id(value))
        if met is not None:
            return ("met", met)
        self._met[id(value)] = len(self._met)
        if kind is Deadlines:
            return tuple((self._of(key), self._time(time)) for key, time in value._times.items())
        if kind is MemoryStore:
            return None
        parts: list[Any] = [kind.__name__]
        if kind not in _FIELDS:
            _FIELDS[kind] = _fields(kind)
        names = _FIELDS[kind]
        for name in vars(value) if names is None else names:
            part: Any = getattr(value, name, None)
            if name not in _REPORTS:
                parts.append(min(part, _MOST) if name in _COUNTS else self._of(part))
        return tuple(parts)


def _fields(kind: type[Any]) -> tuple[str, ...] | None:
    """The names of an object's fields; None: those it has in its ``__dict__``."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return tuple(getattr(kind, "__slots__", ())) or None
