"""The state table of a process that owns a log, or wants to."""

from __future__ import annotations

from holdfast.core.states.table import OURS, Event, Name


class OwnerState(Name):
    """What the process does with the log."""

    READING = "reads to the end of the log"
    CLAIMING = "appends a claim"
    SEEKING = "reads on, until its claim"
    OWNING = "owns the log, and writes nothing now"
    WRITING = "waits for the outcome of a write"
    CHECKING = "reads what others appended between its own records"
    DOUBTING = "reads to the end of the log, because the outcome of its write is unknown"
    RECLAIMING = "appends another claim, which separates the write from anything that arrives later"
    RESEEKING = "reads on, until that claim"
    LOST = "another process owns the log"


class OwnerEvent(Event):
    """Events of the log."""

    OWN_CLAIM = "its claim is read, and valid; no write is in doubt, or that write was read before"
    UNWRITTEN = "its claim is read, and valid; the write in doubt was not read before"
    FOREIGN_CLAIM = "a valid claim of another process is read"
    VOID_CLAIM = "its claim is read, and void"
    FOUND = "its write is read, and valid"
    END = "the end of the log is read"
    APPENDED = "the claim is appended, or its outcome is unknown", OURS
    COMMIT = "a batch must be written", OURS
    CONTIGUOUS = "Kafka confirms the write directly after the last record that was read or written"
    GAP = "Kafka confirms the write further on"
    UNKNOWN = "the outcome of the write is unknown"


class OwnerAction(Name):
    """What the process does then."""

    NOTHING = "nothing"
    SERVE = "begin to serve"
    APPEND = "append the write"
    ACKNOWLEDGE = "the write is durable"
    RENEW = "discard the connection that may still append the write"
    STOP = "acknowledge nothing more"


_S, _E, _A = OwnerState, OwnerEvent, OwnerAction

OWNER_TABLE: dict[tuple[OwnerState, OwnerEvent], tuple[OwnerAction, OwnerState]] = {
    (_S.READING, _E.FOREIGN_CLAIM): (_A.NOTHING, _S.READING),
    (_S.READING, _E.OWN_CLAIM): (_A.SERVE, _S.OWNING),
    (_S.READING, _E.VOID_CLAIM): (_A.NOTHING, _S.READING),
    (_S.READING, _E.END): (_A.NOTHING, _S.CLAIMING),
    (_S.CLAIMING, _E.APPENDED): (_A.NOTHING, _S.SEEKING),
    # Another process was first: the claim will be void.
    (_S.SEEKING, _E.FOREIGN_CLAIM): (_A.NOTHING, _S.SEEKING),
    (_S.SEEKING, _E.OWN_CLAIM): (_A.SERVE, _S.OWNING),
    (_S.SEEKING, _E.VOID_CLAIM): (_A.NOTHING, _S.READING),
    # The claim was not appended, or not yet. If it comes later, one of the two is void.
    (_S.SEEKING, _E.END): (_A.NOTHING, _S.CLAIMING),
    (_S.OWNING, _E.COMMIT): (_A.APPEND, _S.WRITING),
    (_S.WRITING, _E.CONTIGUOUS): (_A.ACKNOWLEDGE, _S.OWNING),
    (_S.WRITING, _E.GAP): (_A.NOTHING, _S.CHECKING),
    (_S.WRITING, _E.UNKNOWN): (_A.RENEW, _S.DOUBTING),
    (_S.CHECKING, _E.FOUND): (_A.ACKNOWLEDGE, _S.OWNING),
    (_S.CHECKING, _E.FOREIGN_CLAIM): (_A.STOP, _S.LOST),
    (_S.CHECKING, _E.VOID_CLAIM): (_A.NOTHING, _S.CHECKING),
    # The end that a reader sees may be behind what was confirmed.
    (_S.CHECKING, _E.END): (_A.RENEW, _S.DOUBTING),
    (_S.DOUBTING, _E.FOUND): (_A.NOTHING, _S.DOUBTING),
    (_S.DOUBTING, _E.FOREIGN_CLAIM): (_A.STOP, _S.LOST),
    (_S.DOUBTING, _E.VOID_CLAIM): (_A.NOTHING, _S.DOUBTING),
    (_S.DOUBTING, _E.END): (_A.NOTHING, _S.RECLAIMING),
    (_S.RECLAIMING, _E.APPENDED): (_A.NOTHING, _S.RESEEKING),
    (_S.RESEEKING, _E.FOUND): (_A.NOTHING, _S.RESEEKING),
    (_S.RESEEKING, _E.FOREIGN_CLAIM): (_A.STOP, _S.LOST),
    (_S.RESEEKING, _E.VOID_CLAIM): (_A.NOTHING, _S.RESEEKING),
    (_S.RESEEKING, _E.OWN_CLAIM): (_A.ACKNOWLEDGE, _S.OWNING),
    (_S.RESEEKING, _E.UNWRITTEN): (_A.APPEND, _S.WRITING),
    (_S.RESEEKING, _E.END): (_A.NOTHING, _S.RECLAIMING),
}
"""Between its claim and its last record, an owner's records have consecutive offsets, so no claim is between them."""

READS = frozenset({_S.READING, _S.SEEKING, _S.CHECKING, _S.DOUBTING, _S.RESEEKING})
"""States in which the process reads the log."""
CLAIMS = frozenset({_S.CLAIMING, _S.RECLAIMING})
"""States in which the process appends a claim."""
