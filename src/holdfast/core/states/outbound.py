"""The tables of an RM Source: states of an outbound Sequence, the course of its end, and questions to its peer."""

from __future__ import annotations

from enum import Enum

from holdfast.core.states.table import OURS, Event, Name
from holdfast.core.versions import RM, Capabilities


class SourceState(Name):
    """States of one outbound Sequence. NONE: not begun. TERMINATED: ended, and forgotten immediately."""

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
    """Events of an outbound Sequence."""

    WANT_SEQUENCE = "want a Sequence", OURS
    TURN = "turn to send", OURS
    CREATE_SEQUENCE_RESPONSE = "CreateSequenceResponse"
    CREATE_SEQUENCE_REFUSED = "CreateSequenceRefused fault"
    CREATE_SEQUENCE_NOT_ACCEPTED = "enough answers to CreateSequence are not accepted", OURS
    GRANT_DURABLE = "the grant is durable", OURS
    SEND_MESSAGE = "send a message", OURS
    SEND_LAST_NUMBER = "send the highest number", OURS
    ACKNOWLEDGEMENT = "SequenceAcknowledgement"
    FINAL_ACKNOWLEDGEMENT = "SequenceAcknowledgement with Final"
    NACK = "Nack"
    INVALID_ACKNOWLEDGEMENT = "illegal acknowledgement"
    OUTDATED = "acknowledgement of numbers from a lost run"
    OUTDATED_LATE = "acknowledgement of numbers from a lost run, after new numbers were sent"
    ROLLOVER_FAULT = "MessageNumberRollover fault"
    TAKES_NO_NUMBER = "the destination accepts no number at all", OURS
    DOUBT_STAYS = "the destination does not report what arrived", OURS
    CLOSED_FAULT = "SequenceClosed fault"
    ENDING_FAULT = "fault that ends the Sequence"
    ENDING_FAULT_EARLY = "fault that ends the Sequence, with other answers in flight"
    ACKNOWLEDGEMENT_FAULT = "InvalidAcknowledgement fault"
    MESSAGE_FAULT = "fault that refuses one message"
    COPY_FAULT = "fault that refuses a copy of an acknowledged message"
    OTHER_FAULT = "any other fault"
    UNSENDABLE = "the next message cannot be written", OURS
    SILENT = "the destination was silent too long", OURS
    RESUMED = "the operator resumes the Sequence", OURS
    ADDRESS_CHANGED = "acknowledgements go to an earlier address", OURS
    ALL_ACKNOWLEDGED = "all messages are acknowledged, and the end is wanted", OURS
    ALL_NUMBERS_ACKNOWLEDGED = "all messages are acknowledged, and no number is left", OURS
    CLOSE_SEQUENCE_RESPONSE = "CloseSequenceResponse"
    CLOSE_SEQUENCE = "CloseSequence from the destination"
    TERMINATE_SEQUENCE_RESPONSE = "TerminateSequenceResponse, or TerminateSequence sent where it is one-way"
    TERMINATE_SEQUENCE = "TerminateSequence from the destination"
    UNANSWERED = "the end was sent often enough", OURS
    EXPIRED = "Expires elapsed", OURS
    EXPIRED_WHEN_DONE = "Expires elapsed for the first time, with all messages acknowledged", OURS


class SourceAction(Name):
    """Actions of an RM Source."""

    SEND_CREATE = "send CreateSequence"
    KEEP = "save the grant"
    BEGIN = "start to send"
    REPORT_REFUSED = "report the refusal, try the next choice"
    TRANSMIT = "transmit due messages, and new ones as the window allows"
    NUMBER = "assign the next number"
    MARK = "mark the ranges"
    MARK_AND_REPORT = "mark the ranges, report the unacknowledged messages"
    REPORT_REST = "report unacknowledged messages"
    RETRANSMIT_NACKED = "retransmit the named messages"
    RAISE_INVALID_ACKNOWLEDGEMENT = "raise InvalidAcknowledgement"
    LEAVE_NEW = "leave new messages to the next Sequence"
    STOP_NUMBERING = "assign no new numbers, ask which messages arrived"
    REPORT_ACKNOWLEDGEMENT = "report the acknowledgement"
    RETRY = "retry soon"
    STOP = "stop until the operator decides"
    GO_ON = "restart the timeout"
    MOVE_REST = "move unaccepted messages to the next Sequence"
    SEND_LAST_MESSAGE = "send LastMessage"
    SEND_CLOSE = "send CloseSequence"
    ANSWER_CLOSE = "report unacknowledged messages, send CloseSequenceResponse"
    SEND_TERMINATE = "send TerminateSequence"
    ANSWER_TERMINATE = "report unacknowledged messages, send TerminateSequenceResponse"
    TELL_END = "keep the Sequence to report its end"
    FINISH = "finish"
    LOSE = "report lost messages"
    NOTHING = "nothing"


_S, _V, _T = SourceState, SourceEvent, SourceAction

SourceTable = dict[tuple[SourceState, SourceEvent], tuple[SourceAction, SourceState]]

_KNOWN = (_S.GRANTED, _S.CREATED, _S.ROLLOVER, _S.CLOSING, _S.CLOSED, _S.TERMINATING)
"""States in which the destination knows the Sequence."""
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
    """Return the regular course of a Sequence, without faults and interruptions."""
    first_step = (_T.SEND_CLOSE, _S.CLOSING) if can.closes else (_T.SEND_TERMINATE, _S.TERMINATING)
    return {
        # Without CreateSequence, the source makes the Identifier itself.
        (_S.NONE, _V.WANT_SEQUENCE): (_T.SEND_CREATE, _S.CREATING) if can.creates else (_T.BEGIN, _S.CREATED),
        # The grant of an abandoned CreateSequence: that Sequence expires at the destination.
        (_S.NONE, _V.CREATE_SEQUENCE_RESPONSE): (_T.NOTHING, _S.NONE),
        (_S.CREATING, _V.TURN): (_T.SEND_CREATE, _S.CREATING),
        # Nothing leaves in it before the grant is durable, or a crash would orphan what was sent.
        (_S.CREATING, _V.CREATE_SEQUENCE_RESPONSE): (_T.KEEP, _S.GRANTED),
        (_S.CREATING, _V.CREATE_SEQUENCE_NOT_ACCEPTED): (_T.REPORT_REFUSED, _S.NONE),
        (_S.CREATING, _V.SILENT): (_T.STOP, _S.CREATING),
        (_S.GRANTED, _V.GRANT_DURABLE): (_T.BEGIN, _S.CREATED),
        (_S.GRANTED, _V.MESSAGE_FAULT): (_T.NOTHING, _S.GRANTED),
        (_S.CREATED, _V.SEND_MESSAGE): (_T.NUMBER, _S.CREATED),
        (_S.CREATED, _V.SEND_LAST_NUMBER): (_T.NUMBER, _S.ROLLOVER),
        # After a restart, the numbers below the highest one are assigned again.
        (_S.ROLLOVER, _V.SEND_MESSAGE): (_T.NUMBER, _S.ROLLOVER),
        (_S.ROLLOVER, _V.SEND_LAST_NUMBER): (_T.NUMBER, _S.ROLLOVER),
        (_S.ROLLOVER, _V.TAKES_NO_NUMBER): (_T.STOP, _S.ROLLOVER),
        (_S.ROLLOVER, _V.DOUBT_STAYS): (_T.LOSE, _S.TERMINATED),
        # WS-RM 1.0 3.2: LastMessage marks the end. 1.1 closes (3.5), then terminates (3.6).
        (_S.CREATED, _V.ALL_ACKNOWLEDGED): (_T.SEND_LAST_MESSAGE, _S.ROLLOVER) if can.has_last_message else first_step,
        (_S.CREATED, _V.ALL_NUMBERS_ACKNOWLEDGED): first_step,
        (_S.ROLLOVER, _V.ALL_ACKNOWLEDGED): first_step,
        (_S.ROLLOVER, _V.ALL_NUMBERS_ACKNOWLEDGED): first_step,
        (_S.CLOSING, _V.TURN): (_T.SEND_CLOSE, _S.CLOSING),
        # Saved: after a restart the source terminates, and sends nothing more in it. The final acknowledgement comes
        # before, or with it.
        (_S.CLOSING, _V.CLOSE_SEQUENCE_RESPONSE): (_T.REPORT_REST, _S.CLOSED),
        (_S.CLOSED, _V.ALL_ACKNOWLEDGED): (_T.SEND_TERMINATE, _S.TERMINATING),
        (_S.CLOSED, _V.ALL_NUMBERS_ACKNOWLEDGED): (_T.SEND_TERMINATE, _S.TERMINATING),
        # WS-RM 3.5: the destination repeats it until it is answered.
        (_S.CLOSED, _V.CLOSE_SEQUENCE): (_T.ANSWER_CLOSE, _S.CLOSED),
        (_S.CLOSED, _V.FINAL_ACKNOWLEDGEMENT): (_T.MARK, _S.CLOSED),
        (_S.CLOSED, _V.CLOSED_FAULT): (_T.NOTHING, _S.CLOSED),
        (_S.CLOSED, _V.RESUMED): (_T.MOVE_REST, _S.CLOSED),
        (_S.TERMINATING, _V.TURN): (_T.SEND_TERMINATE, _S.TERMINATING),
        # WS-RM 3.6
        (_S.TERMINATING, _V.TERMINATE_SEQUENCE_RESPONSE): (_T.FINISH, _S.TERMINATED),
        (_S.TERMINATING, _V.CLOSE_SEQUENCE): (_T.ANSWER_CLOSE, _S.TERMINATING),
        (_S.TERMINATING, _V.FINAL_ACKNOWLEDGEMENT): (_T.MARK, _S.TERMINATING),
        (_S.TERMINATING, _V.CLOSED_FAULT): (_T.NOTHING, _S.TERMINATING),
        # The peer may end the Sequence before we know that its grant is durable. The late event then changes nothing.
        (_S.CLOSED, _V.GRANT_DURABLE): (_T.NOTHING, _S.CLOSED),
        (_S.TERMINATING, _V.GRANT_DURABLE): (_T.NOTHING, _S.TERMINATING),
        (_S.TERMINATED, _V.GRANT_DURABLE): (_T.NOTHING, _S.TERMINATED),
    }


def _outdated_copy() -> SourceTable:
    """Return the cells for a store that is an older copy: a lost run has used the numbers of new messages."""
    cells: SourceTable = {}
    for state in _KNOWN:
        cells[state, _V.OUTDATED] = (_T.LEAVE_NEW, state)
        # The destination dropped new messages as duplicates, or has them: it acknowledges them in any case.
        cells[state, _V.OUTDATED_LATE] = (_T.LOSE, _S.TERMINATED) if state in _OPEN else (_T.LEAVE_NEW, state)
    return cells


def _source_table(can: Capabilities) -> SourceTable:
    # Complete the table of WS-RM appendix D for the RM Source.
    table = _way(can) | _outdated_copy()
    for fault in _FAULTS:
        # Any fault refuses the Sequence: a peer may not know CreateSequence at all (WS-RM 4.6).
        table[_S.CREATING, fault] = (_T.REPORT_REFUSED, _S.NONE)
    for state in _OPEN:
        table[state, _V.TURN] = (_T.TRANSMIT, state)
        # WS-RM 3.9
        table[state, _V.NACK] = (_T.RETRANSMIT_NACKED, state)
        if can.closes:
            # The response says which messages arrived (WS-RM 3.5), and it goes to the present address.
            table[state, _V.ADDRESS_CHANGED] = (_T.SEND_CLOSE, _S.CLOSING)
        # WS-RM 4.5: no new number, but lower ones are retransmitted.
        table[state, _V.ROLLOVER_FAULT] = (_T.STOP_NUMBERING, _S.ROLLOVER)
        table[state, _V.SILENT] = (_T.STOP, state)
        # Those answers also say which messages the peer refused. It refuses messages sent meanwhile, too.
        table[state, _V.ENDING_FAULT_EARLY] = (_T.RETRY, state)
    for state in _UNENDED:
        # WS-RM 3.9: Final says that the ranges never change again, so the rest is not accepted any more.
        table[state, _V.FINAL_ACKNOWLEDGEMENT] = (_T.MARK_AND_REPORT, _S.CLOSED)
        # WS-RM 4.7
        table[state, _V.CLOSED_FAULT] = (_T.REPORT_REST, _S.CLOSED)
        # WS-RM 3.5: the destination may close the Sequence itself.
        table[state, _V.CLOSE_SEQUENCE] = (_T.ANSWER_CLOSE, _S.CLOSED)
        # WS-RM 4.2, 4.3: unacknowledged messages may have arrived, or not.
        table[state, _V.ENDING_FAULT] = (_T.LOSE, _S.TERMINATED)
        table[state, _V.EXPIRED] = (_T.LOSE, _S.TERMINATED)
    for state in (_S.CLOSED, _S.TERMINATING):
        # The final state is known, and UnknownSequence is a legal answer to TerminateSequence (WS-RM 3.6).
        table[state, _V.ENDING_FAULT] = (_T.FINISH, _S.TERMINATED)
        table[state, _V.EXPIRED] = (_T.FINISH, _S.TERMINATED)
    for state in (_S.CLOSING, _S.TERMINATING):
        # Everything is acknowledged, so nothing depends on the answer.
        table[state, _V.UNANSWERED] = (_T.FINISH, _S.TERMINATED)
    for state in _KNOWN:
        # WS-RM 4.4
        table[state, _V.INVALID_ACKNOWLEDGEMENT] = (_T.RAISE_INVALID_ACKNOWLEDGEMENT, state)
        # WS-RM 3.6: the destination may terminate it. In 1.0 it may not, so there it means a fault.
        answer = _T.ANSWER_TERMINATE if can.answers_terminate else table[state, _V.ENDING_FAULT][0]
        table[state, _V.TERMINATE_SEQUENCE] = (answer, _S.TERMINATED)
        table.setdefault((state, _V.ACKNOWLEDGEMENT), (_T.MARK, state))
        table.setdefault((state, _V.ACKNOWLEDGEMENT_FAULT), (_T.REPORT_ACKNOWLEDGEMENT, state))
        # Every retry would get the same fault, and the number cannot be skipped.
        table.setdefault((state, _V.MESSAGE_FAULT), (_T.STOP, state))
        table.setdefault((state, _V.OTHER_FAULT), (_T.RETRY, state))
        # Late and repeated messages carry no new information.
        for late in (_V.CREATE_SEQUENCE_RESPONSE, _V.CREATE_SEQUENCE_REFUSED, _V.ROLLOVER_FAULT, _V.NACK):
            table.setdefault((state, late), (_T.NOTHING, state))
        for late in (_V.CLOSE_SEQUENCE_RESPONSE, _V.TERMINATE_SEQUENCE_RESPONSE):
            table.setdefault((state, late), (_T.NOTHING, state))
        if state is not _S.GRANTED:
            table[state, _V.COPY_FAULT] = (_T.NOTHING, state)
            table[state, _V.EXPIRED_WHEN_DONE] = (_T.TELL_END, state)
    for state in (_S.NONE, _S.CREATING, *_KNOWN):
        table.setdefault((state, _V.TURN), (_T.NOTHING, state))
        table.setdefault((state, _V.ALL_ACKNOWLEDGED), (_T.NOTHING, state))
        table.setdefault((state, _V.ALL_NUMBERS_ACKNOWLEDGED), (_T.NOTHING, state))
        table.setdefault((state, _V.RESUMED), (_T.GO_ON, state))
    for state in (_S.CREATING, *_KNOWN):
        table[state, _V.UNSENDABLE] = (_T.STOP, state)
    absent_states = {*(() if can.closes else (_S.CLOSING,)), *(() if can.creates else (_S.CREATING, _S.GRANTED))}
    absent_events = {
        *((_V.ROLLOVER_FAULT, _V.TAKES_NO_NUMBER, _V.DOUBT_STAYS) if can.rollover_ends else ()),
        *(() if can.creates else (_V.EXPIRED, _V.EXPIRED_WHEN_DONE)),  # no grant says how long it lives
    }
    return {cell: table[cell] for cell in table if cell[0] not in absent_states and cell[1] not in absent_events}


SOURCE_TABLES: dict[RM, SourceTable] = {rm: _source_table(rm.can) for rm in RM}


class Request(Enum):
    """A Sequence's request in addition to messages; one at a time, repeated until it is answered."""

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
"""The request that a Sequence sends at its turn, for the states that have one."""


class EndState(Name):
    """Progress of an outbound Sequence's end, in addition to its state. DURABLE: nothing is reported yet."""

    OPEN = "open"
    WANTED = "wanted"
    SAVING = "being saved"
    DURABLE = "durable"
    TELLING = "being reported"


class EndEvent(Event):
    """Events of an outbound Sequence's end."""

    WANT = "no further message follows", OURS
    USED_UP = "every possible number is acknowledged", OURS
    STEP = "a step towards the end is decided", OURS
    SAVED = "the decision is durable", OURS
    REPLIES_DURABLE = "every reply so far is durable", OURS


class EndAction(Name):
    """Actions of an outbound Sequence's end."""

    SAVE = "save the decision"
    TELL = "notify the peer"
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
    # The final acknowledgement of the requests covers every reply, including those since the previous step.
    (_N.TELLING, _NE.STEP): (_NA.NOTHING, _N.DURABLE),
}
"""The decision is durable before the peer learns of it. Otherwise, after a crash, the source could add messages to a
Sequence that the peer regards as closed, or give a message the number of a LastMessage."""


class DoubtState(Name):
    """Whether the source asks a destination that refused a number which higher numbers it has accepted."""

    NONE = "none"
    ASKING = "asking what arrived"
    ASKING_FOR_LIMIT = "asking what arrived, to learn the limit"
    ASKING_BESIDE = "asking what arrived besides a refused message"


class DoubtEvent(Event):
    LEFT_BEHIND = "numbers above the limit were transmitted", OURS
    LIMIT_UNKNOWN = "the refused number is unknown", OURS
    REFUSED_FOR_GOOD = "one message is given up, and others were transmitted", OURS
    SAID = "SequenceAcknowledgement after the question, or with Final"
    SAYS_NOTHING = "it was asked often enough, and reports nothing", OURS
    MOVED = "the next Sequence carries the unaccepted messages in any case", OURS


class DoubtAction(Name):
    ASK = "send AckRequested"
    MOVE = "move the messages above the limit to the next Sequence"
    TAKE_FOR_LIMIT = "use its highest number as the limit"
    LOSE = "report lost messages"
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
    # The source knows which number was refused; the destination refuses every higher one for the same reason.
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
"""Numbers above the peer's limit move to the next Sequence only after the peer has reported what it accepted. Otherwise
they could arrive twice."""
