"""The events of a journal as its audit looks at them: each with what others of its run say of it, and what it is
looked at for. What is decided of them is the deciders'; what is counted of them is here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

IN, OUT, PLACE, WAY = "in", "out", "place", "way"
"""What an event is looked at for: its Sequence that comes in; its Sequence that goes out; its partition of a queue, as
time goes by; the same from offset to offset. ``about`` begins with it, and a space."""

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
"""Events for :data:`WAY`: messages, and ranges of offsets. There the ranges come first that begin at a message."""

AT_MOST_ONCE, IN_ORDER = "at-most-once", "in-order"
"""Words of what a Sequence is promised, as ``created`` and ``stands`` tell it."""


class Told(NamedTuple):
    """One event, with what other events of its run say of it.

    Args:
        about: What it is looked at for: all of one come together.
        event, sequence, number, count, queue, partition, offset, peer, key, attempt, detail, worker, run, ordinal: As
            in the journal.
        at, since: Microseconds since 1970.
        epoch: Of its queue in its run; None: not known.
        restored: Whether its server's store was put back to a copy, as its operator said: a queue has a new epoch.
        rewound: Whether handlers of its partition were put back in its run.
        last: The ordinal of the last event of its run that follows without a hole. Events of one run with the same
            ``last`` are complete between themselves.
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
    """What became of one Sequence; the fields are those of :attr:`holdfast.pipeline.audit.Audit.sequences`, times in
    microseconds since 1970."""

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
    """Numbers of a Sequence that came later than one behind them, or not at all.

    Args:
        role, sequence: Of the Sequence.
        number, count: Which are missing when it opens.
        since: When one behind them came, or stood there first; microseconds since 1970.
        until: When the last of them came; None: it has not.
    """

    role: str
    sequence: str
    number: int
    count: int  # type: ignore[assignment]  # a column, not the method of tuples
    since: int
    until: int | None


class Latency(NamedTuple):
    """So many messages took so long.

    Args:
        stage: Of their way.
        name: Of the queue, or the key of the outbox.
        took: Microseconds, to one part in 500.
        messages: How many.
    """

    stage: str
    name: str
    took: int
    messages: int


Found = Violation | SequenceRow | Gap | Latency
"""What an audit finds in events."""


class Decider(Protocol):
    """Process the events of one subject, in their order.

    Attributes:
        found: Findings so far; the caller removes them.
    """

    found: list[Found]

    def take(self, told: Told) -> None:
        """The next event."""

    def end(self) -> None:
        """That was all."""


class Latencies:
    """How long messages took: how many took about as long, so that memory does not grow with messages."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}

    def add(self, stage: str, name: str, took: int) -> None:
        """One message. What ended before it began was timed by two clocks, and is not counted."""
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
        """How many different ones there are."""
        return len(self._counts)
