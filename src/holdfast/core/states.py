"""The state tables of both sides as data. Everything that moves a Sequence from state to state stands here.

Rows and columns follow the non-normative state tables of WS-RM 1.2 (appendix D). A cell is (what to do, next state).
What a cell says is done, and nothing else is done about its event. An event is the peer's or ours. Where a table has
no cell for what a peer did, the peer is told that it speaks of an unknown Sequence. Where it has none for what we did
(a call, a timer), that is a mistake of ours, and an error: :class:`NoSuchMove`.

Beside the two tables of the specification there are five of our own. How the end of a Sequence becomes durable before
it is told: :data:`END_TABLE` for a source, :data:`SETTLING_TABLE` for a destination. What a source asks before numbers
go to another Sequence: :data:`DOUBT_TABLE`. What an outbox does about what is put into it: :data:`OUTBOX_TABLE`. And
whether forwarders send to an address: :data:`CIRCUIT_TABLE`.
The docs' diagrams are drawn from these tables (``python -m holdfast.core.states``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from holdfast.core.versions import RM, Capabilities
from holdfast.exceptions import LastMessageNumberExceeded


class NoSuchMove(RuntimeError):
    """We did something to a Sequence in a state where it makes no sense: a mistake of ours, never of a peer's."""


class _Name(Enum):
    """An enum hashed by identity: the tables are looked up for every message, and Enum's own hash is slow."""

    __hash__ = object.__hash__


class Event(_Name):
    """Something that happens: what it is called, and whether it is we who do it (a call, a timer, a commit)."""

    is_ours: bool

    def __new__(cls, words: str, is_ours: bool = False) -> Event:
        """An event: what it is called, and whose it is."""
        member = object.__new__(cls)
        member._value_ = words
        member.is_ours = is_ours
        return member


OURS = True


def absent(about: str, state: Enum, event: Event) -> None:
    """What to do where a table has no cell: nothing, for what a peer did, which is then answered as unknown.

    Args:
        about: Which Sequence or outbox.
        state: Its state.
        event: What happened.

    Raises:
        NoSuchMove: for what we did ourselves.
    """
    if event.is_ours:
        raise NoSuchMove(
            f"{about} is in state {state.value!r}, which has no cell for {event.value!r}: an error in Holdfast. What"
            " was acknowledged is safe. Please report this line with what led to it."
        )


# --- RM Destination --------------------------------------------------------------------------------------------------


class DestinationState(_Name):
    """States of one inbound Sequence. TERMINATED is a memory kept for a while, to answer repeats in kind."""

    CREATED = "created"
    CLOSED = "closed"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


class DestinationEvent(Event):
    """What can happen to an inbound Sequence."""

    NEW_MESSAGE = "new message"
    MESSAGE_WITHOUT_ROOM = "new message, for which there is no room yet"
    MESSAGE_WHILE_SUSPENDED = "new message, while somebody holds the Sequence back"
    DUPLICATE_MESSAGE = "duplicate message"
    MESSAGE_ABOVE_LIMIT = "message number above the limit"
    MESSAGE_AFTER_LAST = "message number after LastMessage"
    ACK_REQUESTED = "AckRequested"
    ACK_REQUESTED_BEFORE_END_IS_TOLD = "AckRequested, before its end may be told"
    CLOSE_SEQUENCE = "CloseSequence"
    TERMINATE_SEQUENCE = "TerminateSequence"
    CLOSE_SEQUENCE_RESPONSE = "CloseSequenceResponse"
    TERMINATE_SEQUENCE_RESPONSE = "TerminateSequenceResponse"
    ENDING_FAULT = "SequenceTerminated or UnknownSequence fault"
    OTHER_FAULT = "InvalidAcknowledgement fault"
    DECIDE_TO_CLOSE = "decide to close", OURS
    DECIDE_TO_TERMINATE = "decide to terminate", OURS
    EXPIRED = "Expires or inactivity elapsed", OURS


class DestinationAction(_Name):
    """What an RM Destination does about it."""

    ACCEPT = "accept"
    LEAVE = "leave it to be sent again"
    ACKNOWLEDGE = "acknowledge"
    RAISE_SEQUENCE_CLOSED = "raise SequenceClosed"
    RAISE_SEQUENCE_TERMINATED = "raise SequenceTerminated"
    RAISE_MESSAGE_NUMBER_ROLLOVER = "raise MessageNumberRollover"
    RAISE_LAST_MESSAGE_NUMBER_EXCEEDED = "raise LastMessageNumberExceeded"
    ANSWER_CLOSE = "send CloseSequenceResponse"
    ANSWER_TERMINATE = "send TerminateSequenceResponse"
    TERMINATE_OFFERED = "send TerminateSequence of the offered Sequence, if it is answered"
    SEND_CLOSE = "send CloseSequence"
    SEND_TERMINATE = "send TerminateSequence"
    SEND_FAULT = "send SequenceTerminated"
    STOP_TELLING = "tell it no more"
    END = "end it"
    END_FOR_SOURCE = "end it, acknowledge what awaits a reply, and then disown it"
    DISOWN = "disown it: acknowledge it to its source no more"
    NOTHING = "nothing"


_D, _E, _A = DestinationState, DestinationEvent, DestinationAction

DestinationTable = dict[tuple[DestinationState, DestinationEvent], tuple[DestinationAction, DestinationState]]

_DESTINATION: DestinationTable = {
    (_D.CREATED, _E.NEW_MESSAGE): (_A.ACCEPT, _D.CREATED),
    (_D.CREATED, _E.MESSAGE_WITHOUT_ROOM): (_A.LEAVE, _D.CREATED),
    (_D.CREATED, _E.MESSAGE_WHILE_SUSPENDED): (_A.LEAVE, _D.CREATED),
    (_D.CREATED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.CREATED),
    (_D.CREATED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_MESSAGE_NUMBER_ROLLOVER, _D.CREATED),
    (_D.CREATED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_CLOSED, _D.CREATED),
    (_D.CREATED, _E.ACK_REQUESTED): (_A.ACKNOWLEDGE, _D.CREATED),
    (_D.CREATED, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.CLOSED),
    (_D.CREATED, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.CREATED, _E.CLOSE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CREATED),
    (_D.CREATED, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CREATED),
    (_D.CREATED, _E.ENDING_FAULT): (_A.END_FOR_SOURCE, _D.TERMINATED),
    (_D.CREATED, _E.OTHER_FAULT): (_A.NOTHING, _D.CREATED),
    (_D.CREATED, _E.DECIDE_TO_CLOSE): (_A.SEND_CLOSE, _D.CLOSED),
    (_D.CREATED, _E.DECIDE_TO_TERMINATE): (_A.SEND_TERMINATE, _D.TERMINATING),
    (_D.CREATED, _E.EXPIRED): (_A.END, _D.TERMINATED),
    (_D.CLOSED, _E.NEW_MESSAGE): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    (_D.CLOSED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.CLOSED),
    (_D.CLOSED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    (_D.CLOSED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    (_D.CLOSED, _E.ACK_REQUESTED): (_A.ACKNOWLEDGE, _D.CLOSED),
    (_D.CLOSED, _E.ACK_REQUESTED_BEFORE_END_IS_TOLD): (_A.ACKNOWLEDGE, _D.CLOSED),
    (_D.CLOSED, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.CLOSED),
    (_D.CLOSED, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.CLOSED, _E.CLOSE_SEQUENCE_RESPONSE): (_A.STOP_TELLING, _D.CLOSED),
    (_D.CLOSED, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CLOSED),
    (_D.CLOSED, _E.ENDING_FAULT): (_A.END_FOR_SOURCE, _D.TERMINATED),
    (_D.CLOSED, _E.OTHER_FAULT): (_A.NOTHING, _D.CLOSED),
    (_D.CLOSED, _E.DECIDE_TO_CLOSE): (_A.NOTHING, _D.CLOSED),
    (_D.CLOSED, _E.DECIDE_TO_TERMINATE): (_A.SEND_TERMINATE, _D.TERMINATING),
    (_D.CLOSED, _E.EXPIRED): (_A.END, _D.TERMINATED),
    (_D.TERMINATING, _E.NEW_MESSAGE): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATING),
    (_D.TERMINATING, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.TERMINATING),
    (_D.TERMINATING, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATING),
    (_D.TERMINATING, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATING),
    (_D.TERMINATING, _E.ACK_REQUESTED): (_A.ACKNOWLEDGE, _D.TERMINATING),
    (_D.TERMINATING, _E.ACK_REQUESTED_BEFORE_END_IS_TOLD): (_A.ACKNOWLEDGE, _D.TERMINATING),
    (_D.TERMINATING, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.TERMINATING),
    (_D.TERMINATING, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.TERMINATING, _E.CLOSE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.TERMINATING),
    (_D.TERMINATING, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.END_FOR_SOURCE, _D.TERMINATED),
    (_D.TERMINATING, _E.ENDING_FAULT): (_A.END_FOR_SOURCE, _D.TERMINATED),
    (_D.TERMINATING, _E.OTHER_FAULT): (_A.NOTHING, _D.TERMINATING),
    (_D.TERMINATING, _E.DECIDE_TO_CLOSE): (_A.NOTHING, _D.TERMINATING),
    (_D.TERMINATING, _E.DECIDE_TO_TERMINATE): (_A.NOTHING, _D.TERMINATING),
    (_D.TERMINATING, _E.EXPIRED): (_A.END, _D.TERMINATED),
    (_D.TERMINATED, _E.NEW_MESSAGE): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    (_D.TERMINATED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.TERMINATED),
    (_D.TERMINATED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    (_D.TERMINATED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    # AckRequested for an ended Sequence, whose end may be told, has no cell: UnknownSequence.
    (_D.TERMINATED, _E.ACK_REQUESTED_BEFORE_END_IS_TOLD): (_A.ACKNOWLEDGE, _D.TERMINATED),
    (_D.TERMINATED, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.TERMINATED),
    (_D.TERMINATED, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.TERMINATED, _E.CLOSE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.TERMINATED),
    (_D.TERMINATED, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.TERMINATED),
    (_D.TERMINATED, _E.ENDING_FAULT): (_A.DISOWN, _D.TERMINATED),
    (_D.TERMINATED, _E.OTHER_FAULT): (_A.NOTHING, _D.TERMINATED),
}

_CLOSING = (_E.CLOSE_SEQUENCE, _E.CLOSE_SEQUENCE_RESPONSE)


def _destination_table(can: Capabilities) -> DestinationTable:
    """The whole table without what a version cannot do (WS-RM appendix D)."""
    absent_states = {*(() if can.closes else (_D.CLOSED,)), *(() if can.answers_terminate else (_D.TERMINATING,))}
    absent_events = {
        *(() if can.closes else _CLOSING),
        *(() if can.answers_terminate else (_E.TERMINATE_SEQUENCE_RESPONSE,)),
    }
    table = {
        (state, event): outcome
        for (state, event), outcome in _DESTINATION.items()
        if state not in absent_states and event not in absent_events
    }
    # Whoever cannot say that it ends a Sequence says it by a fault.
    if not can.closes:
        table[_D.CREATED, _E.DECIDE_TO_CLOSE] = (_A.SEND_FAULT, _D.TERMINATED)
    if not can.answers_terminate:
        table[_D.CREATED, _E.DECIDE_TO_TERMINATE] = (_A.SEND_FAULT, _D.TERMINATED)
        for state in {*_D} - absent_states:
            table[state, _E.TERMINATE_SEQUENCE] = (_A.TERMINATE_OFFERED, _D.TERMINATED)
    if can.rollover_ends:  # WS-RM 1.0 4
        table[_D.CREATED, _E.MESSAGE_ABOVE_LIMIT] = (_A.RAISE_MESSAGE_NUMBER_ROLLOVER, _D.TERMINATED)
    if LastMessageNumberExceeded.code in can.faults:  # WS-RM 1.0 4
        table[_D.CREATED, _E.MESSAGE_AFTER_LAST] = (_A.RAISE_LAST_MESSAGE_NUMBER_EXCEEDED, _D.TERMINATED)
    return table


DESTINATION_TABLES: dict[RM, DestinationTable] = {rm: _destination_table(rm.can) for rm in RM}


class SettlingState(_Name):
    """How far the end of an inbound Sequence has come: whatever its state but CREATED, this says what may be told."""

    OPEN = "open"
    SETTLING = "settling"
    AWAITING = "awaiting replies"
    SETTLED = "settled"


class SettlingEvent(Event):
    """What can happen to the end of an inbound Sequence."""

    END = "it takes no new message any more", OURS
    WAIVED = "its source ends it without replies", OURS
    DURABLE = "its end is durable", OURS
    LAST_REPLY = "no reply is awaited", OURS
    TELL = "its source is to be told", OURS
    REFUSED = "a message is refused because of its end"
    REFUSED_FOR_ITSELF = "a message is refused for its number"


class SettlingAction(_Name):
    """What is done about it."""

    SETTLE = "release or discard what is held, and save"
    SAVE = "save"
    ACKNOWLEDGE_ALL = "acknowledge all but what awaits its reply"
    MAKE_FINAL = "let acknowledgements be final"
    TELL = "tell it"
    TELL_LATER = "tell it later"
    WAIT = "answer once it is durable"
    SAY_NOTHING = "answer with nothing"
    ANSWER = "answer with the fault"
    NOTHING = "nothing"


_U, _UE, _UA = SettlingState, SettlingEvent, SettlingAction

SETTLING_TABLE: dict[tuple[SettlingState, SettlingEvent], tuple[SettlingAction, SettlingState]] = {
    (_U.OPEN, _UE.END): (_UA.SETTLE, _U.SETTLING),
    (_U.OPEN, _UE.REFUSED): (_UA.ANSWER, _U.OPEN),
    (_U.OPEN, _UE.REFUSED_FOR_ITSELF): (_UA.ANSWER, _U.OPEN),
    (_U.SETTLING, _UE.END): (_UA.NOTHING, _U.SETTLING),
    (_U.SETTLING, _UE.WAIVED): (_UA.SAVE, _U.SETTLING),
    (_U.SETTLING, _UE.DURABLE): (_UA.ACKNOWLEDGE_ALL, _U.AWAITING),
    (_U.SETTLING, _UE.TELL): (_UA.TELL_LATER, _U.SETTLING),
    (_U.SETTLING, _UE.REFUSED): (_UA.WAIT, _U.SETTLING),
    (_U.SETTLING, _UE.REFUSED_FOR_ITSELF): (_UA.WAIT, _U.SETTLING),
    (_U.AWAITING, _UE.END): (_UA.NOTHING, _U.AWAITING),
    (_U.AWAITING, _UE.WAIVED): (_UA.SAVE, _U.SETTLING),
    (_U.AWAITING, _UE.LAST_REPLY): (_UA.MAKE_FINAL, _U.SETTLED),
    (_U.AWAITING, _UE.TELL): (_UA.TELL_LATER, _U.AWAITING),
    (_U.AWAITING, _UE.REFUSED): (_UA.SAY_NOTHING, _U.AWAITING),
    (_U.AWAITING, _UE.REFUSED_FOR_ITSELF): (_UA.ANSWER, _U.AWAITING),
    (_U.SETTLED, _UE.END): (_UA.NOTHING, _U.SETTLED),
    (_U.SETTLED, _UE.WAIVED): (_UA.NOTHING, _U.SETTLED),
    (_U.SETTLED, _UE.TELL): (_UA.TELL, _U.SETTLED),
    (_U.SETTLED, _UE.REFUSED): (_UA.ANSWER, _U.SETTLED),
    (_U.SETTLED, _UE.REFUSED_FOR_ITSELF): (_UA.ANSWER, _U.SETTLED),
}
"""A source that knew of the end before it is durable would not come back if that is lost; one that knew of it while a
request is handled would give that up."""


# --- RM Source -------------------------------------------------------------------------------------------------------


class SourceState(_Name):
    """States of one outbound Sequence. NONE: not begun; TERMINATED: over, and forgotten at once."""

    NONE = "none"
    CREATING = "creating"
    GRANTED = "granted"
    CREATED = "created"
    ROLLOVER = "rollover"
    CLOSING = "closing"
    CLOSED = "closed"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


class SourceEvent(Event):
    """What can happen to an outbound Sequence."""

    WANT_SEQUENCE = "want a Sequence", OURS
    TURN = "its turn to send", OURS
    CREATE_SEQUENCE_RESPONSE = "CreateSequenceResponse"
    CREATE_SEQUENCE_REFUSED = "CreateSequenceRefused fault"
    GRANT_DURABLE = "the grant is durable", OURS
    SEND_MESSAGE = "send a message", OURS
    SEND_LAST_NUMBER = "send the highest number", OURS
    ACKNOWLEDGEMENT = "SequenceAcknowledgement"
    FINAL_ACKNOWLEDGEMENT = "SequenceAcknowledgement with Final"
    NACK = "Nack"
    INVALID_ACKNOWLEDGEMENT = "illegal acknowledgement"
    ROLLOVER_FAULT = "MessageNumberRollover fault"
    TAKES_NO_NUMBER = "the destination takes no number at all", OURS
    DOUBT_STAYS = "the destination does not say what it has", OURS
    CLOSED_FAULT = "SequenceClosed fault"
    ENDING_FAULT = "fault that ends it"
    ENDING_FAULT_EARLY = "fault that ends it, while answers to other messages are on their way"
    ACKNOWLEDGEMENT_FAULT = "InvalidAcknowledgement fault"
    MESSAGE_FAULT = "fault that refuses one message"
    OTHER_FAULT = "any other fault"
    UNSENDABLE = "what is to be sent cannot be written", OURS
    SILENT = "no sign of life for too long", OURS
    RESUMED = "somebody decides that it goes on", OURS
    ALL_ACKNOWLEDGED = "all is acknowledged, and its end wanted", OURS
    ALL_NUMBERS_ACKNOWLEDGED = "the same, and no number is left", OURS
    CLOSE_SEQUENCE_RESPONSE = "CloseSequenceResponse"
    CLOSE_SEQUENCE = "CloseSequence from the destination"
    TERMINATE_SEQUENCE_RESPONSE = "TerminateSequenceResponse, or TerminateSequence arrived where it is one-way"
    TERMINATE_SEQUENCE = "TerminateSequence from the destination"
    UNANSWERED = "its end was told often enough", OURS
    EXPIRED = "Expires elapsed", OURS
    EXPIRED_WHEN_DONE = "Expires elapsed for the first time, all acknowledged", OURS


class SourceAction(_Name):
    """What an RM Source does about it."""

    SEND_CREATE = "send CreateSequence"
    KEEP = "save the grant"
    BEGIN = "begin to send"
    REPORT_REFUSED = "report the refusal, try another way"
    TRANSMIT = "transmit what is due, and new messages as the window allows"
    NUMBER = "assign the next number"
    MARK = "mark the ranges"
    MARK_AND_REPORT = "mark the ranges, report the rest"
    REPORT_REST = "report what is not acknowledged"
    RETRANSMIT_NACKED = "retransmit what is named"
    RAISE_INVALID_ACKNOWLEDGEMENT = "raise InvalidAcknowledgement"
    STOP_NUMBERING = "start no new numbers, ask what arrived"
    REPORT_ACKNOWLEDGEMENT = "report it"
    RETRY = "try again soon"
    STOP = "stop until somebody decides"
    GO_ON = "be patient anew"
    MOVE_REST = "leave what it has not to the next Sequence"
    SEND_LAST_MESSAGE = "send LastMessage"
    SEND_CLOSE = "send CloseSequence"
    SAVE = "save"
    ANSWER_CLOSE = "report what is not acknowledged, send CloseSequenceResponse"
    SEND_TERMINATE = "send TerminateSequence"
    ANSWER_TERMINATE = "report what is not acknowledged, send TerminateSequenceResponse"
    TELL_END = "live on to tell its end"
    FINISH = "finish"
    LOSE = "report what is lost"
    NOTHING = "nothing"


_S, _V, _T = SourceState, SourceEvent, SourceAction

SourceTable = dict[tuple[SourceState, SourceEvent], tuple[SourceAction, SourceState]]

_KNOWN = (_S.GRANTED, _S.CREATED, _S.ROLLOVER, _S.CLOSING, _S.CLOSED, _S.TERMINATING)
"""States in which the destination knows it."""
_OPEN = (_S.CREATED, _S.ROLLOVER)
_UNENDED = (_S.GRANTED, _S.CREATED, _S.ROLLOVER, _S.CLOSING)
_FAULTS = (
    _V.CREATE_SEQUENCE_REFUSED,
    _V.ROLLOVER_FAULT,
    _V.CLOSED_FAULT,
    _V.ENDING_FAULT,
    _V.ACKNOWLEDGEMENT_FAULT,
    _V.MESSAGE_FAULT,
    _V.OTHER_FAULT,
)


def _way(can: Capabilities) -> SourceTable:
    """The way of a Sequence from state to state, if nothing comes between."""
    first_step = (_T.SEND_CLOSE, _S.CLOSING) if can.closes else (_T.SEND_TERMINATE, _S.TERMINATING)
    return {
        (_S.NONE, _V.WANT_SEQUENCE): (_T.SEND_CREATE, _S.CREATING),
        (_S.NONE, _V.CREATE_SEQUENCE_RESPONSE): (_T.NOTHING, _S.NONE),
        (_S.CREATING, _V.TURN): (_T.SEND_CREATE, _S.CREATING),
        (_S.CREATING, _V.CREATE_SEQUENCE_RESPONSE): (_T.KEEP, _S.GRANTED),
        (_S.CREATING, _V.SILENT): (_T.STOP, _S.CREATING),
        (_S.GRANTED, _V.GRANT_DURABLE): (_T.BEGIN, _S.CREATED),
        (_S.GRANTED, _V.MESSAGE_FAULT): (_T.NOTHING, _S.GRANTED),
        (_S.CREATED, _V.SEND_MESSAGE): (_T.NUMBER, _S.CREATED),
        (_S.CREATED, _V.SEND_LAST_NUMBER): (_T.NUMBER, _S.ROLLOVER),
        # After a restart the numbers before the highest one are assigned once more.
        (_S.ROLLOVER, _V.SEND_MESSAGE): (_T.NUMBER, _S.ROLLOVER),
        (_S.ROLLOVER, _V.SEND_LAST_NUMBER): (_T.NUMBER, _S.ROLLOVER),
        (_S.ROLLOVER, _V.TAKES_NO_NUMBER): (_T.STOP, _S.ROLLOVER),
        (_S.ROLLOVER, _V.DOUBT_STAYS): (_T.LOSE, _S.TERMINATED),
        (_S.CREATED, _V.ALL_ACKNOWLEDGED): (_T.SEND_LAST_MESSAGE, _S.ROLLOVER) if can.has_last_message else first_step,
        (_S.CREATED, _V.ALL_NUMBERS_ACKNOWLEDGED): first_step,
        (_S.ROLLOVER, _V.ALL_ACKNOWLEDGED): first_step,
        (_S.ROLLOVER, _V.ALL_NUMBERS_ACKNOWLEDGED): first_step,
        (_S.CLOSING, _V.TURN): (_T.SEND_CLOSE, _S.CLOSING),
        (_S.CLOSING, _V.CLOSE_SEQUENCE_RESPONSE): (_T.SAVE, _S.CLOSED),
        (_S.CLOSED, _V.ALL_ACKNOWLEDGED): (_T.SEND_TERMINATE, _S.TERMINATING),
        (_S.CLOSED, _V.ALL_NUMBERS_ACKNOWLEDGED): (_T.SEND_TERMINATE, _S.TERMINATING),
        (_S.CLOSED, _V.CLOSE_SEQUENCE): (_T.ANSWER_CLOSE, _S.CLOSED),
        (_S.CLOSED, _V.FINAL_ACKNOWLEDGEMENT): (_T.MARK, _S.CLOSED),
        (_S.CLOSED, _V.CLOSED_FAULT): (_T.NOTHING, _S.CLOSED),
        (_S.CLOSED, _V.RESUMED): (_T.MOVE_REST, _S.CLOSED),
        (_S.TERMINATING, _V.TURN): (_T.SEND_TERMINATE, _S.TERMINATING),
        (_S.TERMINATING, _V.TERMINATE_SEQUENCE_RESPONSE): (_T.FINISH, _S.TERMINATED),
        (_S.TERMINATING, _V.CLOSE_SEQUENCE): (_T.ANSWER_CLOSE, _S.TERMINATING),
        (_S.TERMINATING, _V.FINAL_ACKNOWLEDGEMENT): (_T.MARK, _S.TERMINATING),
        (_S.TERMINATING, _V.CLOSED_FAULT): (_T.NOTHING, _S.TERMINATING),
        # The peer may have ended it before we know that its grant is durable. What it says later is of nobody.
        (_S.CLOSED, _V.GRANT_DURABLE): (_T.NOTHING, _S.CLOSED),
        (_S.TERMINATING, _V.GRANT_DURABLE): (_T.NOTHING, _S.TERMINATING),
        (_S.TERMINATED, _V.GRANT_DURABLE): (_T.NOTHING, _S.TERMINATED),
    }


def _source_table(can: Capabilities) -> SourceTable:
    # WS-RM appendix D, the RM Source's
    table = _way(can)
    for fault in _FAULTS:
        table[_S.CREATING, fault] = (_T.REPORT_REFUSED, _S.NONE)
    for state in _OPEN:
        table[state, _V.TURN] = (_T.TRANSMIT, state)
        table[state, _V.NACK] = (_T.RETRANSMIT_NACKED, state)
        table[state, _V.ROLLOVER_FAULT] = (_T.STOP_NUMBERING, _S.ROLLOVER)
        table[state, _V.SILENT] = (_T.STOP, state)
        # Those answers say which messages the peer refused, too. What is sent meanwhile is refused as well.
        table[state, _V.ENDING_FAULT_EARLY] = (_T.RETRY, state)
    for state in _UNENDED:
        table[state, _V.FINAL_ACKNOWLEDGEMENT] = (_T.MARK_AND_REPORT, _S.CLOSED)
        table[state, _V.CLOSED_FAULT] = (_T.REPORT_REST, _S.CLOSED)
        table[state, _V.CLOSE_SEQUENCE] = (_T.ANSWER_CLOSE, _S.CLOSED)
        table[state, _V.ENDING_FAULT] = (_T.LOSE, _S.TERMINATED)
        table[state, _V.EXPIRED] = (_T.LOSE, _S.TERMINATED)
    for state in (_S.CLOSED, _S.TERMINATING):
        table[state, _V.ENDING_FAULT] = (_T.FINISH, _S.TERMINATED)
        table[state, _V.EXPIRED] = (_T.FINISH, _S.TERMINATED)
    for state in (_S.CLOSING, _S.TERMINATING):
        table[state, _V.UNANSWERED] = (_T.FINISH, _S.TERMINATED)
    for state in _KNOWN:
        table[state, _V.INVALID_ACKNOWLEDGEMENT] = (_T.RAISE_INVALID_ACKNOWLEDGEMENT, state)
        answer = _T.ANSWER_TERMINATE if can.answers_terminate else table[state, _V.ENDING_FAULT][0]
        table[state, _V.TERMINATE_SEQUENCE] = (answer, _S.TERMINATED)
        table.setdefault((state, _V.ACKNOWLEDGEMENT), (_T.MARK, state))
        table.setdefault((state, _V.ACKNOWLEDGEMENT_FAULT), (_T.REPORT_ACKNOWLEDGEMENT, state))
        table.setdefault((state, _V.MESSAGE_FAULT), (_T.STOP, state))
        table.setdefault((state, _V.OTHER_FAULT), (_T.RETRY, state))
        # What comes late, or twice, says nothing new.
        for late in (_V.CREATE_SEQUENCE_RESPONSE, _V.CREATE_SEQUENCE_REFUSED, _V.ROLLOVER_FAULT, _V.NACK):
            table.setdefault((state, late), (_T.NOTHING, state))
        for late in (_V.CLOSE_SEQUENCE_RESPONSE, _V.TERMINATE_SEQUENCE_RESPONSE):
            table.setdefault((state, late), (_T.NOTHING, state))
        if state is not _S.GRANTED:
            table[state, _V.EXPIRED_WHEN_DONE] = (_T.TELL_END, state)
    for state in (_S.NONE, _S.CREATING, *_KNOWN):
        table.setdefault((state, _V.TURN), (_T.NOTHING, state))
        table.setdefault((state, _V.ALL_ACKNOWLEDGED), (_T.NOTHING, state))
        table.setdefault((state, _V.ALL_NUMBERS_ACKNOWLEDGED), (_T.NOTHING, state))
        table.setdefault((state, _V.RESUMED), (_T.GO_ON, state))
    for state in (_S.CREATING, *_KNOWN):
        table[state, _V.UNSENDABLE] = (_T.STOP, state)
    absent_states = () if can.closes else (_S.CLOSING,)
    absent_events = (_V.ROLLOVER_FAULT, _V.TAKES_NO_NUMBER, _V.DOUBT_STAYS) if can.rollover_ends else ()
    return {cell: table[cell] for cell in table if cell[0] not in absent_states and cell[1] not in absent_events}


SOURCE_TABLES: dict[RM, SourceTable] = {rm: _source_table(rm.can) for rm in RM}


class Request(Enum):
    """What a Sequence wants to send besides messages; one at a time, repeated until it is answered."""

    CREATE = "CreateSequence"
    CLOSE = "CloseSequence"
    TERMINATE = "TerminateSequence"
    ACK_REQUESTED = "AckRequested"


_REQUEST_OF = {
    SourceAction.SEND_CREATE: Request.CREATE,
    SourceAction.SEND_CLOSE: Request.CLOSE,
    SourceAction.SEND_TERMINATE: Request.TERMINATE,
}
REQUESTS = {
    state: _REQUEST_OF[action]
    for table in SOURCE_TABLES.values()
    for (state, event), (action, _) in table.items()
    if event is SourceEvent.TURN and action in _REQUEST_OF
}
"""What is sent, when it is its turn, in the states in which that is a request."""


class EndState(_Name):
    """How far the end of an outbound Sequence has come, beside its state. DURABLE: nothing is told yet."""

    OPEN = "open"
    WANTED = "wanted"
    SAVING = "being saved"
    DURABLE = "durable"
    TELLING = "being told"


class EndEvent(Event):
    """What can happen to the end of an outbound Sequence."""

    WANT = "nothing more is to be sent", OURS
    USED_UP = "every number it can have is acknowledged", OURS
    STEP = "a step towards the end is decided", OURS
    SAVED = "the decision is durable", OURS
    REPLIES_DURABLE = "every reply so far is durable", OURS


class EndAction(_Name):
    """What is done about it."""

    SAVE = "save the decision"
    TELL = "tell it"
    NOTHING = "nothing"


_N, _NE, _NA = EndState, EndEvent, EndAction

END_TABLE: dict[tuple[EndState, EndEvent], tuple[EndAction, EndState]] = {
    (_N.OPEN, _NE.WANT): (_NA.NOTHING, _N.WANTED),
    (_N.OPEN, _NE.USED_UP): (_NA.NOTHING, _N.WANTED),
    (_N.WANTED, _NE.WANT): (_NA.NOTHING, _N.WANTED),
    (_N.WANTED, _NE.STEP): (_NA.SAVE, _N.SAVING),
    (_N.SAVING, _NE.WANT): (_NA.NOTHING, _N.SAVING),
    (_N.SAVING, _NE.STEP): (_NA.NOTHING, _N.SAVING),
    (_N.SAVING, _NE.SAVED): (_NA.NOTHING, _N.DURABLE),
    (_N.DURABLE, _NE.WANT): (_NA.NOTHING, _N.DURABLE),
    (_N.DURABLE, _NE.STEP): (_NA.NOTHING, _N.DURABLE),
    (_N.DURABLE, _NE.REPLIES_DURABLE): (_NA.TELL, _N.TELLING),
    (_N.TELLING, _NE.WANT): (_NA.NOTHING, _N.TELLING),
    # The last word on the requests acknowledges every reply, also those that came since the step before.
    (_N.TELLING, _NE.STEP): (_NA.NOTHING, _N.DURABLE),
}
"""The decision is durable before the peer hears of it: after a crash nothing may be added to what the peer knows to be
closed, and no message may get the number of a LastMessage."""


class DoubtState(_Name):
    """Whether a destination that refused a number is asked which of those above its limit it took before it had one."""

    NONE = "none"
    ASKING = "asking what arrived"
    ASKING_FOR_LIMIT = "asking what arrived, to know the limit"
    ASKING_BESIDE = "asking what arrived beside a message that is refused for good"


class DoubtEvent(Event):
    """What can happen to a doubt."""

    LEFT_BEHIND = "numbers above its limit were transmitted", OURS
    LIMIT_UNKNOWN = "nobody knows which number it refused", OURS
    REFUSED_FOR_GOOD = "one message is given up, and others were transmitted", OURS
    SAID = "SequenceAcknowledgement since it was asked, or with Final"
    SAYS_NOTHING = "it was asked often enough, and answers with nothing", OURS
    MOVED = "what it has not goes to the next Sequence in any case", OURS


class DoubtAction(_Name):
    """What is done about it."""

    ASK = "send AckRequested"
    MOVE = "let what is above the limit go to the next Sequence"
    TAKE_FOR_LIMIT = "take what it has for its limit"
    LOSE = "report what is lost"
    NOTHING = "nothing"


_B, _BE, _BA = DoubtState, DoubtEvent, DoubtAction

DOUBT_TABLE: dict[tuple[DoubtState, DoubtEvent], tuple[DoubtAction, DoubtState]] = {
    (_B.NONE, _BE.LEFT_BEHIND): (_BA.ASK, _B.ASKING),
    (_B.NONE, _BE.LIMIT_UNKNOWN): (_BA.ASK, _B.ASKING_FOR_LIMIT),
    (_B.NONE, _BE.REFUSED_FOR_GOOD): (_BA.ASK, _B.ASKING_BESIDE),
    (_B.NONE, _BE.SAID): (_BA.NOTHING, _B.NONE),
    (_B.NONE, _BE.MOVED): (_BA.NOTHING, _B.NONE),
    (_B.ASKING, _BE.LEFT_BEHIND): (_BA.NOTHING, _B.ASKING),
    (_B.ASKING, _BE.LIMIT_UNKNOWN): (_BA.NOTHING, _B.ASKING),
    (_B.ASKING, _BE.SAID): (_BA.MOVE, _B.NONE),
    # It was told which number was refused, and every higher one is refused for the same reason.
    (_B.ASKING, _BE.SAYS_NOTHING): (_BA.MOVE, _B.NONE),
    (_B.ASKING, _BE.MOVED): (_BA.MOVE, _B.NONE),
    (_B.ASKING_FOR_LIMIT, _BE.LEFT_BEHIND): (_BA.NOTHING, _B.ASKING_FOR_LIMIT),
    (_B.ASKING_FOR_LIMIT, _BE.LIMIT_UNKNOWN): (_BA.NOTHING, _B.ASKING_FOR_LIMIT),
    (_B.ASKING_FOR_LIMIT, _BE.SAID): (_BA.TAKE_FOR_LIMIT, _B.NONE),
    (_B.ASKING_FOR_LIMIT, _BE.SAYS_NOTHING): (_BA.LOSE, _B.ASKING_FOR_LIMIT),
    (_B.ASKING_FOR_LIMIT, _BE.MOVED): (_BA.MOVE, _B.NONE),
    (_B.ASKING_BESIDE, _BE.LEFT_BEHIND): (_BA.NOTHING, _B.ASKING_BESIDE),
    (_B.ASKING_BESIDE, _BE.LIMIT_UNKNOWN): (_BA.NOTHING, _B.ASKING_BESIDE),
    (_B.ASKING_BESIDE, _BE.SAID): (_BA.MOVE, _B.NONE),
    (_B.ASKING_BESIDE, _BE.SAYS_NOTHING): (_BA.LOSE, _B.ASKING_BESIDE),
    (_B.ASKING_BESIDE, _BE.MOVED): (_BA.MOVE, _B.NONE),
}
"""Until the peer has said what it has, numbers above its limit do not go to the next Sequence: they would arrive once
more."""


# --- an outbox -------------------------------------------------------------------------------------------------------


class OutboxState(_Name):
    """Whether an outbox sends, and whether its end is wanted."""

    OPEN = "open"
    ENDING = "ending"
    SUSPENDED = "suspended"
    SUSPENDED_ENDING = "suspended, ending"
    STOPPED = "stopped"
    STOPPED_ENDING = "stopped, ending"


class OutboxEvent(Event):
    """What can happen to an outbox."""

    TURN = "its turn to send", OURS
    WANT_END = "nothing more will be put in", OURS
    EMPTIED = "it is empty, and no Sequence carries it", OURS
    SUSPEND = "somebody holds it back", OURS
    STOP = "it cannot go on by itself", OURS
    RESUME = "somebody decides that it goes on", OURS


class OutboxAction(_Name):
    """What is done about it."""

    SEND = "send"
    END = "end its Sequence once all is acknowledged"
    TELL_ENDED = "report that it has ended"
    HOLD_BACK = "save why, and send nothing"
    TELL_STOPPED = "save and report why"
    GO_ON = "save, and go on"
    NOTHING = "nothing"


_O, _OE, _OA = OutboxState, OutboxEvent, OutboxAction

OUTBOX_TABLE: dict[tuple[OutboxState, OutboxEvent], tuple[OutboxAction, OutboxState]] = {
    (_O.OPEN, _OE.TURN): (_OA.SEND, _O.OPEN),
    (_O.OPEN, _OE.WANT_END): (_OA.END, _O.ENDING),
    (_O.OPEN, _OE.EMPTIED): (_OA.NOTHING, _O.OPEN),
    (_O.OPEN, _OE.SUSPEND): (_OA.HOLD_BACK, _O.SUSPENDED),
    (_O.OPEN, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED),
    (_O.ENDING, _OE.TURN): (_OA.SEND, _O.ENDING),
    (_O.ENDING, _OE.WANT_END): (_OA.NOTHING, _O.ENDING),
    (_O.ENDING, _OE.EMPTIED): (_OA.TELL_ENDED, _O.OPEN),
    (_O.ENDING, _OE.SUSPEND): (_OA.HOLD_BACK, _O.SUSPENDED_ENDING),
    (_O.ENDING, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED_ENDING),
    (_O.SUSPENDED, _OE.TURN): (_OA.NOTHING, _O.SUSPENDED),
    (_O.SUSPENDED, _OE.WANT_END): (_OA.END, _O.SUSPENDED_ENDING),
    (_O.SUSPENDED, _OE.SUSPEND): (_OA.HOLD_BACK, _O.SUSPENDED),
    # What the peer says meanwhile may need a decision, which is another than to let it go on.
    (_O.SUSPENDED, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED),
    (_O.SUSPENDED, _OE.RESUME): (_OA.GO_ON, _O.OPEN),
    (_O.SUSPENDED_ENDING, _OE.TURN): (_OA.NOTHING, _O.SUSPENDED_ENDING),
    (_O.SUSPENDED_ENDING, _OE.WANT_END): (_OA.NOTHING, _O.SUSPENDED_ENDING),
    (_O.SUSPENDED_ENDING, _OE.SUSPEND): (_OA.HOLD_BACK, _O.SUSPENDED_ENDING),
    (_O.SUSPENDED_ENDING, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED_ENDING),
    (_O.SUSPENDED_ENDING, _OE.RESUME): (_OA.GO_ON, _O.ENDING),
    (_O.STOPPED, _OE.TURN): (_OA.NOTHING, _O.STOPPED),
    (_O.STOPPED, _OE.WANT_END): (_OA.END, _O.STOPPED_ENDING),
    (_O.STOPPED, _OE.SUSPEND): (_OA.NOTHING, _O.STOPPED),
    (_O.STOPPED, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED),
    (_O.STOPPED, _OE.RESUME): (_OA.GO_ON, _O.OPEN),
    (_O.STOPPED_ENDING, _OE.TURN): (_OA.NOTHING, _O.STOPPED_ENDING),
    (_O.STOPPED_ENDING, _OE.WANT_END): (_OA.NOTHING, _O.STOPPED_ENDING),
    (_O.STOPPED_ENDING, _OE.SUSPEND): (_OA.NOTHING, _O.STOPPED_ENDING),
    (_O.STOPPED_ENDING, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED_ENDING),
    (_O.STOPPED_ENDING, _OE.RESUME): (_OA.GO_ON, _O.ENDING),
}


# --- an address ------------------------------------------------------------------------------------------------------


class CircuitState(_Name):
    """Whether forwarders send to an address."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    RAMPING = "ramping"


class CircuitEvent(Event):
    """What can happen at an address."""

    ANSWERED = "it answers"
    FAILED = "an attempt brings no answer"
    FAILED_OFTEN = "as many attempts in a row bring no answer as may"
    ASKS_FOR_PAUSE = "it asks to be left alone"
    PROBE_DUE = "somebody has something to send, and it is time to try", OURS
    PROBE_UNUSED = "who was to try had nothing to send", OURS
    ALL_LET_IN = "nobody waits any more to be let in", OURS


class CircuitAction(_Name):
    """What is done about it."""

    COUNT = "count it"
    FORGET = "forget what was counted"
    OPEN = "send nothing there, and tell it"
    POSTPONE = "try again later"
    PROBE = "send one message"
    LET_IN = "let in who waits, one after the other, and tell it"
    LET_IN_MORE = "let in two more for each answer"
    NOTHING = "nothing"


_C, _CE, _CA = CircuitState, CircuitEvent, CircuitAction

CIRCUIT_TABLE: dict[tuple[CircuitState, CircuitEvent], tuple[CircuitAction, CircuitState]] = {
    (_C.CLOSED, _CE.ANSWERED): (_CA.FORGET, _C.CLOSED),
    (_C.CLOSED, _CE.FAILED): (_CA.COUNT, _C.CLOSED),
    (_C.CLOSED, _CE.FAILED_OFTEN): (_CA.OPEN, _C.OPEN),
    (_C.CLOSED, _CE.ASKS_FOR_PAUSE): (_CA.OPEN, _C.OPEN),
    # What was on its way when it opened says nothing new; the next that is tried will.
    (_C.OPEN, _CE.ANSWERED): (_CA.NOTHING, _C.OPEN),
    (_C.OPEN, _CE.FAILED): (_CA.NOTHING, _C.OPEN),
    (_C.OPEN, _CE.FAILED_OFTEN): (_CA.NOTHING, _C.OPEN),
    (_C.OPEN, _CE.ASKS_FOR_PAUSE): (_CA.POSTPONE, _C.OPEN),
    (_C.OPEN, _CE.PROBE_DUE): (_CA.PROBE, _C.PROBING),
    (_C.PROBING, _CE.ANSWERED): (_CA.LET_IN, _C.RAMPING),
    (_C.PROBING, _CE.FAILED): (_CA.POSTPONE, _C.OPEN),
    (_C.PROBING, _CE.FAILED_OFTEN): (_CA.POSTPONE, _C.OPEN),
    (_C.PROBING, _CE.ASKS_FOR_PAUSE): (_CA.POSTPONE, _C.OPEN),
    (_C.PROBING, _CE.PROBE_DUE): (_CA.PROBE, _C.PROBING),
    (_C.PROBING, _CE.PROBE_UNUSED): (_CA.NOTHING, _C.OPEN),
    (_C.RAMPING, _CE.ANSWERED): (_CA.LET_IN_MORE, _C.RAMPING),
    (_C.RAMPING, _CE.FAILED): (_CA.COUNT, _C.RAMPING),
    (_C.RAMPING, _CE.FAILED_OFTEN): (_CA.OPEN, _C.OPEN),
    (_C.RAMPING, _CE.ASKS_FOR_PAUSE): (_CA.OPEN, _C.OPEN),
    (_C.RAMPING, _CE.ALL_LET_IN): (_CA.FORGET, _C.CLOSED),
}
"""A destination that is away gets one message at a time, however many wait for it; one that is back is not run over.
Nothing that waits is looked at meanwhile."""


# --- drawing ---------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A table, and in which order its rows are told."""

    cells: Mapping[tuple[Any, Any], tuple[Any, Any]]
    states: type[Enum]
    events: type[Event]
    actions: type[Enum]


TABLES: dict[str, Drawn] = {
    **{
        f"destination-{rm.value}": Drawn(DESTINATION_TABLES[rm], DestinationState, DestinationEvent, DestinationAction)
        for rm in reversed(RM)
    },
    "settling": Drawn(SETTLING_TABLE, SettlingState, SettlingEvent, SettlingAction),
    **{f"source-{rm.value}": Drawn(SOURCE_TABLES[rm], SourceState, SourceEvent, SourceAction) for rm in reversed(RM)},
    "end": Drawn(END_TABLE, EndState, EndEvent, EndAction),
    "doubt": Drawn(DOUBT_TABLE, DoubtState, DoubtEvent, DoubtAction),
    "outbox": Drawn(OUTBOX_TABLE, OutboxState, OutboxEvent, OutboxAction),
    "circuit": Drawn(CIRCUIT_TABLE, CircuitState, CircuitEvent, CircuitAction),
}
"""Every table there is, by the name it is drawn under."""


def diagram(name: str) -> str:
    """The Mermaid state diagram of one of :data:`TABLES`."""
    aliases = {state: state.value.replace(",", "").replace(" ", "_") for state in TABLES[name].states}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {alias}' for state, alias in aliases.items() if alias != state.value]
    for (state, event), (action, after) in TABLES[name].cells.items():
        if state is not after:
            lines.append(f"    {aliases[state]} --> {aliases[after]}: {event.value} / {action.value}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for drawn in TABLES:
        print(f"%% {drawn}\n{diagram(drawn)}")
