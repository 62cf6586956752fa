"""The state tables of both sides as data. Everything that moves a Sequence from state to state stands here.

Rows and columns follow the non-normative state tables of WS-RM 1.2 (appendix D). A cell is (what to do, next state);
an absent cell is a fault: the message is answered with UnknownSequence, a call is a mistake of ours.
The docs' diagrams are drawn from these tables (``python -m holdfast.core.states``).
"""

from __future__ import annotations

from enum import Enum

from holdfast.core.versions import RM, RM_OF_NAME, Capabilities
from holdfast.exceptions import LastMessageNumberExceeded

# --- RM Destination --------------------------------------------------------------------------------------------------


class _Name(Enum):
    """An enum hashed by identity: the tables are looked up for every message, and Enum's own hash is slow."""

    __hash__ = object.__hash__


class DestinationState(_Name):
    """States of one inbound Sequence. TERMINATED is a memory kept for a while, to answer repeats in kind."""

    CREATED = "created"
    CLOSED = "closed"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


class DestinationEvent(_Name):
    """What can happen to an inbound Sequence."""

    NEW_MESSAGE = "new message"
    DUPLICATE_MESSAGE = "duplicate message"
    MESSAGE_ABOVE_LIMIT = "message number above the limit"
    MESSAGE_AFTER_LAST = "message number after LastMessage"
    ACK_REQUESTED = "AckRequested"
    CLOSE_SEQUENCE = "CloseSequence"
    TERMINATE_SEQUENCE = "TerminateSequence"
    DECIDE_TO_CLOSE = "decide to close"
    DECIDE_TO_TERMINATE = "decide to terminate"
    CLOSE_SEQUENCE_RESPONSE = "CloseSequenceResponse"
    TERMINATE_SEQUENCE_RESPONSE = "TerminateSequenceResponse"
    ENDING_FAULT = "SequenceTerminated or UnknownSequence fault"
    OTHER_FAULT = "InvalidAcknowledgement fault"
    EXPIRED = "Expires or inactivity elapsed"


class DestinationAction(Enum):
    """What an RM Destination does about it."""

    ACCEPT = "accept"
    ACKNOWLEDGE = "acknowledge"
    RAISE_SEQUENCE_CLOSED = "raise SequenceClosed"
    RAISE_SEQUENCE_TERMINATED = "raise SequenceTerminated"
    RAISE_MESSAGE_NUMBER_ROLLOVER = "raise MessageNumberRollover"
    RAISE_LAST_MESSAGE_NUMBER_EXCEEDED = "raise LastMessageNumberExceeded"
    ANSWER_CLOSE = "send CloseSequenceResponse"
    ANSWER_TERMINATE = "send TerminateSequenceResponse"
    SEND_CLOSE = "send CloseSequence"
    SEND_TERMINATE = "send TerminateSequence"
    END = "end it"
    NOTHING = "nothing"


_D, _E, _A = DestinationState, DestinationEvent, DestinationAction

DestinationTable = dict[tuple[DestinationState, DestinationEvent], tuple[DestinationAction, DestinationState]]

_DESTINATION: DestinationTable = {
    (_D.CREATED, _E.NEW_MESSAGE): (_A.ACCEPT, _D.CREATED),
    (_D.CREATED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.CREATED),
    (_D.CREATED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_MESSAGE_NUMBER_ROLLOVER, _D.CREATED),
    (_D.CREATED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_CLOSED, _D.CREATED),
    (_D.CREATED, _E.ACK_REQUESTED): (_A.ACKNOWLEDGE, _D.CREATED),
    (_D.CREATED, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.CLOSED),
    (_D.CREATED, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.CREATED, _E.DECIDE_TO_CLOSE): (_A.SEND_CLOSE, _D.CLOSED),
    (_D.CREATED, _E.DECIDE_TO_TERMINATE): (_A.SEND_TERMINATE, _D.TERMINATING),
    (_D.CREATED, _E.CLOSE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CREATED),
    (_D.CREATED, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CREATED),
    (_D.CREATED, _E.ENDING_FAULT): (_A.END, _D.TERMINATED),
    (_D.CREATED, _E.OTHER_FAULT): (_A.NOTHING, _D.CREATED),
    (_D.CREATED, _E.EXPIRED): (_A.END, _D.TERMINATED),
    (_D.CLOSED, _E.NEW_MESSAGE): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    (_D.CLOSED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.CLOSED),
    (_D.CLOSED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    (_D.CLOSED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    (_D.CLOSED, _E.ACK_REQUESTED): (_A.ACKNOWLEDGE, _D.CLOSED),
    (_D.CLOSED, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.CLOSED),
    (_D.CLOSED, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.CLOSED, _E.DECIDE_TO_CLOSE): (_A.NOTHING, _D.CLOSED),
    (_D.CLOSED, _E.DECIDE_TO_TERMINATE): (_A.SEND_TERMINATE, _D.TERMINATING),
    (_D.CLOSED, _E.CLOSE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CLOSED),
    (_D.CLOSED, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CLOSED),
    (_D.CLOSED, _E.ENDING_FAULT): (_A.END, _D.TERMINATED),
    (_D.CLOSED, _E.OTHER_FAULT): (_A.NOTHING, _D.CLOSED),
    (_D.CLOSED, _E.EXPIRED): (_A.END, _D.TERMINATED),
    (_D.TERMINATING, _E.NEW_MESSAGE): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATING),
    (_D.TERMINATING, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.TERMINATING),
    (_D.TERMINATING, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATING),
    (_D.TERMINATING, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATING),
    (_D.TERMINATING, _E.ACK_REQUESTED): (_A.ACKNOWLEDGE, _D.TERMINATING),
    (_D.TERMINATING, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.TERMINATING),
    (_D.TERMINATING, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.TERMINATING, _E.DECIDE_TO_CLOSE): (_A.NOTHING, _D.TERMINATING),
    (_D.TERMINATING, _E.DECIDE_TO_TERMINATE): (_A.NOTHING, _D.TERMINATING),
    (_D.TERMINATING, _E.CLOSE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.TERMINATING),
    (_D.TERMINATING, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.END, _D.TERMINATED),
    (_D.TERMINATING, _E.ENDING_FAULT): (_A.END, _D.TERMINATED),
    (_D.TERMINATING, _E.OTHER_FAULT): (_A.NOTHING, _D.TERMINATING),
    (_D.TERMINATING, _E.EXPIRED): (_A.END, _D.TERMINATED),
    (_D.TERMINATED, _E.NEW_MESSAGE): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    (_D.TERMINATED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.TERMINATED),
    (_D.TERMINATED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    (_D.TERMINATED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    (_D.TERMINATED, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.TERMINATED),
    (_D.TERMINATED, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.TERMINATED, _E.CLOSE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.TERMINATED),
    (_D.TERMINATED, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.TERMINATED),
    (_D.TERMINATED, _E.ENDING_FAULT): (_A.NOTHING, _D.TERMINATED),
    (_D.TERMINATED, _E.OTHER_FAULT): (_A.NOTHING, _D.TERMINATED),
    # AckRequested for an ended Sequence has no cell: UnknownSequence.
}

_CLOSING = (_E.CLOSE_SEQUENCE, _E.CLOSE_SEQUENCE_RESPONSE, _E.DECIDE_TO_CLOSE)
_TERMINATING = (_E.TERMINATE_SEQUENCE_RESPONSE, _E.DECIDE_TO_TERMINATE)


def _destination_table(can: Capabilities) -> DestinationTable:
    """The whole table without what a version cannot do."""
    absent_states = {*(() if can.closes else (_D.CLOSED,)), *(() if can.answers_terminate else (_D.TERMINATING,))}
    absent_events = {*(() if can.closes else _CLOSING), *(() if can.answers_terminate else _TERMINATING)}
    table = {
        (state, event): outcome
        for (state, event), outcome in _DESTINATION.items()
        if state not in absent_states and event not in absent_events
    }
    if can.rollover_ends:  # WS-RM 1.0 section 4
        table[_D.CREATED, _E.MESSAGE_ABOVE_LIMIT] = (_A.RAISE_MESSAGE_NUMBER_ROLLOVER, _D.TERMINATED)
    if LastMessageNumberExceeded.code in can.faults:  # WS-RM 1.0 section 4
        table[_D.CREATED, _E.MESSAGE_AFTER_LAST] = (_A.RAISE_LAST_MESSAGE_NUMBER_EXCEEDED, _D.TERMINATED)
    return table


DESTINATION_TABLES: dict[RM, DestinationTable] = {rm: _destination_table(rm.can) for rm in RM}


# --- RM Source -------------------------------------------------------------------------------------------------------


class SourceState(_Name):
    """States of one outbound Sequence. NONE: not begun; TERMINATED: over, nothing more will be sent."""

    NONE = "none"
    CREATING = "creating"
    CREATED = "created"
    ROLLOVER = "rollover"
    CLOSING = "closing"
    CLOSED = "closed"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


class SourceEvent(_Name):
    """What can happen to an outbound Sequence."""

    WANT_SEQUENCE = "want a sequence"
    CREATE_SEQUENCE_RESPONSE = "CreateSequenceResponse"
    CREATE_SEQUENCE_REFUSED = "CreateSequenceRefused fault"
    SEND_MESSAGE = "send a message"
    SEND_LAST_NUMBER = "send the highest number"
    ACKNOWLEDGEMENT = "SequenceAcknowledgement"
    FINAL_ACKNOWLEDGEMENT = "SequenceAcknowledgement with Final"
    NACK = "Nack"
    INVALID_ACKNOWLEDGEMENT = "illegal acknowledgement"
    ROLLOVER_FAULT = "MessageNumberRollover fault"
    CLOSED_FAULT = "SequenceClosed fault"
    ENDING_FAULT = "UnknownSequence or SequenceTerminated fault"
    DECIDE_TO_CLOSE = "decide to close"
    CLOSE_SEQUENCE_RESPONSE = "CloseSequenceResponse"
    CLOSE_SEQUENCE = "CloseSequence from the destination"
    DECIDE_TO_TERMINATE = "decide to terminate"
    TERMINATE_SEQUENCE_RESPONSE = "TerminateSequenceResponse"
    TERMINATE_SEQUENCE = "TerminateSequence from the destination"
    RETRANSMISSION_DUE = "retransmission timer"
    EXPIRED = "Expires elapsed"


class SourceAction(Enum):
    """What an RM Source does about it."""

    SEND_CREATE = "send CreateSequence"
    OPEN = "open it"
    REPORT_REFUSED = "report the refusal"
    NUMBER = "assign the next number"
    MARK = "mark the ranges"
    MARK_AND_REPORT = "mark the ranges, report the rest"
    RETRANSMIT_NACKED = "retransmit what is named"
    RAISE_INVALID_ACKNOWLEDGEMENT = "raise InvalidAcknowledgement"
    STOP_NUMBERING = "start no new numbers"
    SEND_CLOSE = "send CloseSequence"
    ANSWER_CLOSE = "send CloseSequenceResponse"
    SEND_TERMINATE = "send TerminateSequence"
    ANSWER_TERMINATE = "send TerminateSequenceResponse"
    RETRANSMIT = "retransmit"
    FINISH = "finish"
    LOSE = "report it lost"
    NOTHING = "nothing"


_S, _V, _T = SourceState, SourceEvent, SourceAction

SourceTable = dict[tuple[SourceState, SourceEvent], tuple[SourceAction, SourceState]]


def _source_table() -> SourceTable:
    table: SourceTable = {
        (_S.NONE, _V.WANT_SEQUENCE): (_T.SEND_CREATE, _S.CREATING),
        (_S.NONE, _V.CREATE_SEQUENCE_RESPONSE): (_T.NOTHING, _S.NONE),
        (_S.CREATING, _V.CREATE_SEQUENCE_RESPONSE): (_T.OPEN, _S.CREATED),
        (_S.CREATING, _V.CREATE_SEQUENCE_REFUSED): (_T.REPORT_REFUSED, _S.NONE),
        (_S.CREATING, _V.RETRANSMISSION_DUE): (_T.SEND_CREATE, _S.CREATING),
        (_S.CREATED, _V.SEND_MESSAGE): (_T.NUMBER, _S.CREATED),
        (_S.CREATED, _V.SEND_LAST_NUMBER): (_T.NUMBER, _S.ROLLOVER),
        (_S.CREATED, _V.ROLLOVER_FAULT): (_T.STOP_NUMBERING, _S.ROLLOVER),
        (_S.ROLLOVER, _V.ROLLOVER_FAULT): (_T.STOP_NUMBERING, _S.ROLLOVER),
        (_S.CREATED, _V.RETRANSMISSION_DUE): (_T.RETRANSMIT, _S.CREATED),
        (_S.ROLLOVER, _V.RETRANSMISSION_DUE): (_T.RETRANSMIT, _S.ROLLOVER),
        (_S.CLOSING, _V.RETRANSMISSION_DUE): (_T.SEND_CLOSE, _S.CLOSING),
        (_S.CLOSING, _V.CLOSE_SEQUENCE_RESPONSE): (_T.NOTHING, _S.CLOSED),
        (_S.TERMINATING, _V.RETRANSMISSION_DUE): (_T.SEND_TERMINATE, _S.TERMINATING),
        (_S.TERMINATING, _V.TERMINATE_SEQUENCE_RESPONSE): (_T.FINISH, _S.TERMINATED),
        (_S.TERMINATING, _V.ENDING_FAULT): (_T.FINISH, _S.TERMINATED),
        (_S.TERMINATING, _V.ACKNOWLEDGEMENT): (_T.MARK, _S.TERMINATING),
        (_S.TERMINATING, _V.FINAL_ACKNOWLEDGEMENT): (_T.MARK, _S.TERMINATING),
        (_S.TERMINATING, _V.CLOSE_SEQUENCE): (_T.ANSWER_CLOSE, _S.TERMINATING),
        (_S.TERMINATED, _V.TERMINATE_SEQUENCE): (_T.ANSWER_TERMINATE, _S.TERMINATED),
        (_S.CLOSED, _V.ACKNOWLEDGEMENT): (_T.MARK, _S.CLOSED),
        (_S.CLOSED, _V.FINAL_ACKNOWLEDGEMENT): (_T.MARK_AND_REPORT, _S.CLOSED),
        (_S.CLOSED, _V.CLOSE_SEQUENCE): (_T.ANSWER_CLOSE, _S.CLOSED),
        (_S.CLOSED, _V.DECIDE_TO_TERMINATE): (_T.SEND_TERMINATE, _S.TERMINATING),
    }
    for open_state in (_S.CREATED, _S.ROLLOVER):
        table[open_state, _V.ACKNOWLEDGEMENT] = (_T.MARK, open_state)
        table[open_state, _V.NACK] = (_T.RETRANSMIT_NACKED, open_state)
        table[open_state, _V.DECIDE_TO_CLOSE] = (_T.SEND_CLOSE, _S.CLOSING)
        table[open_state, _V.DECIDE_TO_TERMINATE] = (_T.SEND_TERMINATE, _S.TERMINATING)
    table[_S.CLOSING, _V.ACKNOWLEDGEMENT] = (_T.MARK, _S.CLOSING)
    table[_S.CLOSING, _V.DECIDE_TO_TERMINATE] = (_T.SEND_TERMINATE, _S.TERMINATING)
    for unended in (_S.CREATED, _S.ROLLOVER, _S.CLOSING):
        table[unended, _V.FINAL_ACKNOWLEDGEMENT] = (_T.MARK_AND_REPORT, _S.CLOSED)
        table[unended, _V.CLOSED_FAULT] = (_T.MARK_AND_REPORT, _S.CLOSED)
        table[unended, _V.CLOSE_SEQUENCE] = (_T.ANSWER_CLOSE, _S.CLOSED)
        table[unended, _V.ENDING_FAULT] = (_T.LOSE, _S.TERMINATED)
        table[unended, _V.EXPIRED] = (_T.LOSE, _S.TERMINATED)
    for alive in (_S.CREATED, _S.ROLLOVER, _S.CLOSING, _S.CLOSED, _S.TERMINATING):
        table[alive, _V.INVALID_ACKNOWLEDGEMENT] = (_T.RAISE_INVALID_ACKNOWLEDGEMENT, alive)
        table[alive, _V.TERMINATE_SEQUENCE] = (_T.ANSWER_TERMINATE, _S.TERMINATED)
        table.setdefault((alive, _V.CREATE_SEQUENCE_RESPONSE), (_T.NOTHING, alive))
        table.setdefault((alive, _V.CREATE_SEQUENCE_REFUSED), (_T.NOTHING, alive))
        table.setdefault((alive, _V.CLOSED_FAULT), (_T.NOTHING, alive))
        table.setdefault((alive, _V.ROLLOVER_FAULT), (_T.NOTHING, alive))
        table.setdefault((alive, _V.NACK), (_T.NOTHING, alive))
        table.setdefault((alive, _V.CLOSE_SEQUENCE_RESPONSE), (_T.NOTHING, alive))
        table.setdefault((alive, _V.TERMINATE_SEQUENCE_RESPONSE), (_T.NOTHING, alive))
        table.setdefault((alive, _V.RETRANSMISSION_DUE), (_T.NOTHING, alive))
    table[_S.CLOSED, _V.ENDING_FAULT] = (_T.FINISH, _S.TERMINATED)
    table[_S.CLOSED, _V.EXPIRED] = (_T.FINISH, _S.TERMINATED)
    table[_S.TERMINATING, _V.EXPIRED] = (_T.FINISH, _S.TERMINATED)
    # Whatever comes late for a Sequence that is over says nothing new.
    for event in SourceEvent:
        if event not in (_V.WANT_SEQUENCE, _V.SEND_MESSAGE, _V.SEND_LAST_NUMBER):
            table.setdefault((_S.TERMINATED, event), (_T.NOTHING, _S.TERMINATED))
    return table


SOURCE_TABLE: SourceTable = _source_table()


def diagram(side: str) -> str:
    """The Mermaid state diagram of one side's table.

    Args:
        side: "destination-1.0", "destination-1.1" or "source".
    """
    table: dict[tuple[Enum, Enum], tuple[Enum, Enum]] = dict(
        SOURCE_TABLE if side == "source" else DESTINATION_TABLES[RM_OF_NAME[side.rpartition("-")[2]]]  # type: ignore[arg-type]
    )
    lines = ["stateDiagram-v2"]
    for (state, event), (action, after) in table.items():
        if state is not after:
            lines.append(f"    {state.value} --> {after.value}: {event.value} / {action.value}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for drawn in ("destination-1.0", "destination-1.1", "source"):
        print(f"%% {drawn}\n{diagram(drawn)}")
