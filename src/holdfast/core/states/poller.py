"""The table of a poller: when this side polls a destination for its messages with MakeConnection."""

from __future__ import annotations

from holdfast.core.states.table import OURS, Event, Name


class PollerState(Name):
    """Whether a destination is polled."""

    IDLE = "idle"
    WAITING = "waiting"
    POLLING = "polling"
    REFUSED = "refused"


class PollerEvent(Event):
    EXPECTED = "one more message is expected", OURS
    DUE = "the pause is over, and a message is expected", OURS
    DUE_EARLY = "the pause is over, and only a Sequence of replies is open", OURS
    NOTHING_EXPECTED = "the pause is over, and no message can come", OURS
    SILENT = "the poll has no answer for as long as the longest pause", OURS
    MORE = "a message, and another one waits"
    MESSAGE = "a message"
    EMPTY = "no message"
    FAILED = "no answer"
    REFUSED = "the destination does not answer polls"


class PollerAction(Name):
    POLL_SOON = "poll after the shortest pause"
    SHORTEN = "begin with the shortest pause again"
    POLL = "poll"
    POLL_AT_ONCE = "poll at once"
    BACK_OFF = "poll after a longer pause"
    POSTPONE = "poll after the longest pause"
    STOP = "stop its outboxes, and report it"
    NOTHING = "nothing"


_P, _PE, _PA = PollerState, PollerEvent, PollerAction

POLLER_TABLE: dict[tuple[PollerState, PollerEvent], tuple[PollerAction, PollerState]] = {
    (_P.IDLE, _PE.EXPECTED): (_PA.POLL_SOON, _P.WAITING),
    (_P.WAITING, _PE.EXPECTED): (_PA.POLL_SOON, _P.WAITING),
    (_P.WAITING, _PE.DUE): (_PA.POLL, _P.POLLING),
    # Only an unexpected message can come, so the longest pause suffices.
    (_P.WAITING, _PE.DUE_EARLY): (_PA.POSTPONE, _P.WAITING),
    (_P.WAITING, _PE.NOTHING_EXPECTED): (_PA.NOTHING, _P.IDLE),
    # The poll in flight may have left too early for this message.
    (_P.POLLING, _PE.EXPECTED): (_PA.SHORTEN, _P.POLLING),
    # The answer may be lost while the connection stays open.
    (_P.POLLING, _PE.SILENT): (_PA.POLL, _P.POLLING),
    (_P.POLLING, _PE.NOTHING_EXPECTED): (_PA.NOTHING, _P.IDLE),
    (_P.POLLING, _PE.MORE): (_PA.POLL_AT_ONCE, _P.WAITING),
    (_P.POLLING, _PE.MESSAGE): (_PA.POLL_SOON, _P.WAITING),
    (_P.POLLING, _PE.EMPTY): (_PA.BACK_OFF, _P.WAITING),
    (_P.POLLING, _PE.FAILED): (_PA.BACK_OFF, _P.WAITING),
    (_P.POLLING, _PE.REFUSED): (_PA.STOP, _P.REFUSED),
    # Late answers to earlier polls.
    (_P.WAITING, _PE.MORE): (_PA.POLL_AT_ONCE, _P.WAITING),
    (_P.WAITING, _PE.MESSAGE): (_PA.POLL_SOON, _P.WAITING),
    (_P.WAITING, _PE.EMPTY): (_PA.NOTHING, _P.WAITING),
    (_P.WAITING, _PE.FAILED): (_PA.NOTHING, _P.WAITING),
    (_P.WAITING, _PE.REFUSED): (_PA.STOP, _P.REFUSED),
    # Nothing here expects a message, so what waits there is for no one here.
    (_P.IDLE, _PE.MORE): (_PA.NOTHING, _P.IDLE),
    (_P.IDLE, _PE.MESSAGE): (_PA.NOTHING, _P.IDLE),
    (_P.IDLE, _PE.EMPTY): (_PA.NOTHING, _P.IDLE),
    (_P.IDLE, _PE.FAILED): (_PA.NOTHING, _P.IDLE),
    (_P.IDLE, _PE.REFUSED): (_PA.NOTHING, _P.IDLE),
    (_P.REFUSED, _PE.MORE): (_PA.NOTHING, _P.REFUSED),
    (_P.REFUSED, _PE.MESSAGE): (_PA.NOTHING, _P.REFUSED),
    (_P.REFUSED, _PE.EMPTY): (_PA.NOTHING, _P.REFUSED),
    (_P.REFUSED, _PE.FAILED): (_PA.NOTHING, _P.REFUSED),
    (_P.REFUSED, _PE.REFUSED): (_PA.NOTHING, _P.REFUSED),
    # Stopped outboxes expect nothing, so an operator has resumed one.
    (_P.REFUSED, _PE.EXPECTED): (_PA.POLL_SOON, _P.WAITING),
}
"""A poll gets at most one message, so the next one leaves at once while others wait. Without a message, the pauses
grow."""
