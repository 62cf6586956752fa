"""The events of a journal as the audit processes them, with added facts of their run, and the kinds of findings.

The deciders judge the events; this module only defines the types and sums up latencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

IN, OUT, PLACE, WAY = "in", "out", "place", "way"
"""The subject of an event: its inbound Sequence, its outbound Sequence, its partition of a queue over time, or the same
partition by offset. ``about`` begins with it and a space."""

INBOUND = (
    "created",
    "stands",
    "delivered",
    "held",
    "discarded",
    "not queued",
    "given up",
    "acknowledged",
    "handed over",
    "duplicate",
    "closed",
    "terminated",
    "expired",
    "forgotten",
)
"""Events with a Sequence and no ``key`` that belong to :data:`IN`."""
OUTBOUND = ("created", "stands", "arrived", "terminated")
"""Events with a Sequence and a ``key`` that belong to :data:`OUT`."""
SENDING = ("transmitted", "retransmitted", "replied")
"""Events for :data:`OUT` that have no ``key``."""
PLACED = ("queue stands", "delivered", "given up", "handled stands", "handled", "handed over")
"""Events with a ``queue`` that belong to :data:`PLACE`."""
COMING, TAKEN = ("delivered", "submitted"), ("handled", "arrived")
"""Events for :data:`WAY`: messages, and ranges of offsets. At the same offset, ranges come before the message."""

AT_MOST_ONCE, IN_ORDER = "at-most-once", "in-order"
"""Words of a Sequence's assurance, as ``created`` and ``stands`` report it."""


class Told(NamedTuple):
    """One event, with added facts of its run.

    Args:
        about: Its subject; all events of a subject come together.
        event, sequence, number, count, queue, partition, offset, peer, key, attempt, detail, worker, run, ordinal: As
            in the journal.
        at, since: Microseconds since 1970.
        epoch: Epoch of its queue in its run; None: unknown.
        restored: Whether the server's store was restored from a copy, as its operator declared: a queue has a new
            epoch.
        rewound: Whether the handlers of its partition were rewound in its run.
        last: The ordinal of the last event of its run before the next hole. Events of one run with the same ``last``
            have no hole between them.
    """

    about: str
    event: str
    sequence: str | None
    number: int | None
    count: int | None  # type: ignore[assignment]  # a column of the journal, not the method of tuples
    queue: str | None
    partition: int | None
    offset: int | None
    since: int | None
    peer: str | None
    key: str | None
    attempt: int | None
    detail: str | None
    worker: int | None
    run: str
    ordinal: int
    at: int
    epoch: str | None
    restored: bool
    rewound: bool
    last: int


class Violation(NamedTuple):
    """One violation: the rule, its subject, and the event that shows it; None: several, or no event.

    Args:
        rule: Name of a rule in :data:`holdfast.pipeline.audit.rules.RULES`.
        sequence, number, count, queue, partition, offset, run, ordinal: As in the journal.
        at: Microseconds since 1970.
        unless_at_most_once: Whether a Sequence with "at most once" is exempt.
    """

    rule: str
    sequence: str | None
    number: int | None
    count: int | None  # type: ignore[assignment]  # a column of the journal, not the method of tuples
    queue: str | None = None
    partition: int | None = None
    offset: int | None = None
    run: str | None = None
    ordinal: int | None = None
    at: int | None = None
    unless_at_most_once: bool = False


class SequenceRow(NamedTuple):
    """The summary of one Sequence. The fields are those of :attr:`holdfast.pipeline.audit.Audit.sequences`, with times
    in microseconds since 1970."""

    role: str
    sequence: str
    peer: str | None
    key: str | None
    assurance: str | None
    state: str | None
    begun: int | None
    ended: int | None
    messages: int
    highest: int
    missing: int
    delivered: int
    held: int
    discarded: int
    not_queued: int
    acknowledged: int
    duplicates: int
    transmitted: int
    retransmitted: int


class Gap(NamedTuple):
    """Numbers of a Sequence that arrived after a higher number, or not at all.

    Args:
        role, sequence: Of the Sequence.
        number, count: The missing numbers when the gap opens.
        since: When a higher number arrived, or was first listed; microseconds since 1970.
        until: When the last of them arrived; None: it has not.
    """

    role: str
    sequence: str
    number: int
    count: int  # type: ignore[assignment]  # a column, not the method of tuples
    since: int
    until: int | None


class Latency(NamedTuple):
    """A number of messages with the same latency.

    Args:
        stage: Stage of the messages' way.
        name: Of the queue, or the key of the outbox.
        took: Microseconds, to one part in 500.
    """

    stage: str
    name: str
    took: int
    messages: int


Found = Violation | SequenceRow | Gap | Latency
"""The kinds of findings."""


class Decider(Protocol):
    """Process the events of one subject, in their order.

    Attributes:
        found: Findings so far; the caller removes them.
    """

    found: list[Found]

    def take(self, told: Told) -> None:
        """Process the next event."""

    def end(self) -> None:
        """Finish after the last event."""


class Latencies:
    """Latencies of messages, counted by rounded duration, so that memory does not grow with messages."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}

    def add(self, stage: str, name: str, took: int) -> None:
        """Add the latency of a message. A negative one comes from two clocks, and does not count."""
        if took >= 0:
            finest = took.bit_length() - 9
            if finest > 0:
                took = ((took >> finest) << finest) + (1 << finest >> 1)
            key = (stage, name, took)
            self._counts[key] = self._counts.get(key, 0) + 1

    def take(self) -> Iterator[Latency]:
        """Return everything, and start again."""
        counts, self._counts = self._counts, {}
        return (Latency(*key, messages) for key, messages in counts.items())

    def __len__(self) -> int:
        return len(self._counts)
