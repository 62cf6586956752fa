"""The tables of an RM Destination: the states of an inbound Sequence, and how its end is settled."""

from __future__ import annotations

from holdfast.core.states.table import OURS, Event, Name
from holdfast.core.versions import RM, Capabilities
from holdfast.exceptions import LastMessageNumberExceeded, SequenceClosed


class DestinationState(Name):
    """States of one inbound Sequence. TERMINATED is remembered for a while, to answer repeats in kind."""

    CREATED = "created"
    CLOSED = "closed"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


class DestinationEvent(Event):
    """Events of an inbound Sequence."""

    NEW_MESSAGE = "new message"
    MESSAGE_WITHOUT_ROOM = "new message without room for it"
    MESSAGE_WHILE_SUSPENDED = "new message of a suspended Sequence"
    DUPLICATE_MESSAGE = "duplicate message"
    MESSAGE_ABOVE_LIMIT = "message number above the limit"
    MESSAGE_AFTER_LAST = "message number after LastMessage"
    ACK_REQUESTED = "AckRequested"
    ACK_REQUESTED_BEFORE_END_IS_TOLD = "AckRequested before the end may be reported"
    CLOSE_SEQUENCE = "CloseSequence"
    TERMINATE_SEQUENCE = "TerminateSequence"
    CLOSE_SEQUENCE_RESPONSE = "CloseSequenceResponse"
    TERMINATE_SEQUENCE_RESPONSE = "TerminateSequenceResponse"
    ENDING_FAULT = "SequenceTerminated or UnknownSequence fault"
    OTHER_FAULT = "InvalidAcknowledgement fault"
    DECIDE_TO_CLOSE = "decide to close", OURS
    DECIDE_TO_TERMINATE = "decide to terminate", OURS
    EXPIRED = "Expires or inactivity elapsed", OURS


class DestinationAction(Name):
    """Actions of an RM Destination."""

    ACCEPT = "accept"
    LEAVE = "do not accept: the source retransmits"
    ACKNOWLEDGE = "acknowledge"
    RAISE_SEQUENCE_CLOSED = "raise SequenceClosed"
    RAISE_SEQUENCE_TERMINATED = "raise SequenceTerminated"
    RAISE_MESSAGE_NUMBER_ROLLOVER = "raise MessageNumberRollover"
    RAISE_LAST_MESSAGE_NUMBER_EXCEEDED = "raise LastMessageNumberExceeded"
    ANSWER_CLOSE = "send CloseSequenceResponse"
    ANSWER_TERMINATE = "send TerminateSequenceResponse"
    TERMINATE_OFFERED = "send TerminateSequence of an answered offered Sequence"
    SEND_CLOSE = "send CloseSequence"
    SEND_TERMINATE = "send TerminateSequence"
    SEND_FAULT = "send SequenceTerminated"
    STOP_TELLING = "stop notifying the source"
    END = "end the Sequence"
    END_FOR_SOURCE = "end the Sequence, acknowledge requests that await replies, then disown it"
    DISOWN = "disown: no longer acknowledge to the source"
    NOTHING = "nothing"


_D, _E, _A = DestinationState, DestinationEvent, DestinationAction

DestinationTable = dict[tuple[DestinationState, DestinationEvent], tuple[DestinationAction, DestinationState]]

_DESTINATION: DestinationTable = {
    (_D.CREATED, _E.NEW_MESSAGE): (_A.ACCEPT, _D.CREATED),
    # Without an acknowledgement the source retransmits it; a fault would end the Sequence.
    (_D.CREATED, _E.MESSAGE_WITHOUT_ROOM): (_A.LEAVE, _D.CREATED),
    (_D.CREATED, _E.MESSAGE_WHILE_SUSPENDED): (_A.LEAVE, _D.CREATED),
    # WS-RM 3.9: a duplicate is no fault. Its acknowledgement may be lost, so it gets another.
    (_D.CREATED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.CREATED),
    # WS-RM 4.5: lower numbers are still accepted. 1.0 ends the Sequence: see below.
    (_D.CREATED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_MESSAGE_NUMBER_ROLLOVER, _D.CREATED),
    (_D.CREATED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_CLOSED, _D.CREATED),
    (_D.CREATED, _E.ACK_REQUESTED): (_A.ACKNOWLEDGE, _D.CREATED),
    # WS-RM 3.5, 3.6: CREATED may be closed first, or terminated at once.
    (_D.CREATED, _E.CLOSE_SEQUENCE): (_A.ANSWER_CLOSE, _D.CLOSED),
    (_D.CREATED, _E.TERMINATE_SEQUENCE): (_A.ANSWER_TERMINATE, _D.TERMINATED),
    (_D.CREATED, _E.CLOSE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CREATED),
    (_D.CREATED, _E.TERMINATE_SEQUENCE_RESPONSE): (_A.NOTHING, _D.CREATED),
    # WS-RM 4.2, 4.3: the receiver of these faults terminates the Sequence.
    (_D.CREATED, _E.ENDING_FAULT): (_A.END_FOR_SOURCE, _D.TERMINATED),
    (_D.CREATED, _E.OTHER_FAULT): (_A.NOTHING, _D.CREATED),
    (_D.CREATED, _E.DECIDE_TO_CLOSE): (_A.SEND_CLOSE, _D.CLOSED),
    (_D.CREATED, _E.DECIDE_TO_TERMINATE): (_A.SEND_TERMINATE, _D.TERMINATING),
    # WS-RM 3.4: both sides forget an expired Sequence without a message.
    (_D.CREATED, _E.EXPIRED): (_A.END, _D.TERMINATED),
    # WS-RM 4.7: a new message, whatever its number is.
    (_D.CLOSED, _E.NEW_MESSAGE): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    (_D.CLOSED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.CLOSED),
    (_D.CLOSED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    (_D.CLOSED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_CLOSED, _D.CLOSED),
    # WS-RM 3.5: a closed Sequence still answers AckRequested, CloseSequence and TerminateSequence.
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
    # WS-RM 3.6: this side has sent TerminateSequence, and accepts nothing new.
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
    # Remembered for a while, so that a repeat gets the answer that its original got.
    (_D.TERMINATED, _E.NEW_MESSAGE): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    (_D.TERMINATED, _E.DUPLICATE_MESSAGE): (_A.ACKNOWLEDGE, _D.TERMINATED),
    (_D.TERMINATED, _E.MESSAGE_ABOVE_LIMIT): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    (_D.TERMINATED, _E.MESSAGE_AFTER_LAST): (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED),
    # AckRequested after the end may be reported has no cell here: the answer is UnknownSequence.
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
    """Return the table of one version, without the cells that the version lacks (WS-RM appendix D)."""
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
    # A version without CloseSequence or a destination's TerminateSequence reports the end by a fault.
    if not can.closes:
        table[_D.CREATED, _E.DECIDE_TO_CLOSE] = (_A.SEND_FAULT, _D.TERMINATED)
    if not can.answers_terminate:
        table[_D.CREATED, _E.DECIDE_TO_TERMINATE] = (_A.SEND_FAULT, _D.TERMINATED)
        for state in {*_D} - absent_states:
            # TerminateSequence is one-way there (WS-RM 1.0); WCF's client waits for that of the offered Sequence.
            table[state, _E.TERMINATE_SEQUENCE] = (_A.TERMINATE_OFFERED, _D.TERMINATED)
    if can.rollover_ends:  # WS-RM 1.0 4
        table[_D.CREATED, _E.MESSAGE_ABOVE_LIMIT] = (_A.RAISE_MESSAGE_NUMBER_ROLLOVER, _D.TERMINATED)
    if LastMessageNumberExceeded.code in can.faults:  # WS-RM 1.0 4
        table[_D.CREATED, _E.MESSAGE_AFTER_LAST] = (_A.RAISE_LAST_MESSAGE_NUMBER_EXCEEDED, _D.TERMINATED)
    elif SequenceClosed.code not in can.faults:
        table[_D.CREATED, _E.MESSAGE_AFTER_LAST] = (_A.RAISE_SEQUENCE_TERMINATED, _D.TERMINATED)
    return table


DESTINATION_TABLES: dict[RM, DestinationTable] = {rm: _destination_table(rm.can) for rm in RM}


class SettlingState(Name):
    """Progress of an inbound Sequence's end, which decides what may be reported. OPEN: the Sequence has not ended."""

    OPEN = "open"
    SETTLING = "settling"
    AWAITING = "awaiting replies"
    SETTLED = "settled"


class SettlingEvent(Event):
    """Events of an inbound Sequence's end."""

    END = "the Sequence accepts no new messages", OURS
    WAIVED = "the source ends the Sequence without replies", OURS
    DURABLE = "the end is durable", OURS
    LAST_REPLY = "no reply is awaited", OURS
    TELL = "notification of the source is due", OURS
    REFUSED = "a message is refused because of the end"
    REFUSED_FOR_ITSELF = "a message is refused because of its number"


class SettlingAction(Name):
    """Actions of an inbound Sequence's end."""

    SETTLE = "release or discard held messages, and save"
    SAVE = "save"
    ACKNOWLEDGE_ALL = "acknowledge all but requests that await replies"
    TELL = "notify the peer"
    TELL_LATER = "notify the source later"
    WAIT = "answer once the end is durable"
    SAY_NOTHING = "send an empty answer"
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
    # Later, because the source would not ask again, and a crash would undo the end.
    (_U.SETTLING, _UE.TELL): (_UA.TELL_LATER, _U.SETTLING),
    (_U.SETTLING, _UE.REFUSED): (_UA.WAIT, _U.SETTLING),
    (_U.SETTLING, _UE.REFUSED_FOR_ITSELF): (_UA.WAIT, _U.SETTLING),
    (_U.AWAITING, _UE.END): (_UA.NOTHING, _U.AWAITING),
    # The source has ended it without waiting, so every request is acknowledged now.
    (_U.AWAITING, _UE.WAIVED): (_UA.SAVE, _U.SETTLING),
    (_U.AWAITING, _UE.LAST_REPLY): (_UA.NOTHING, _U.SETTLED),  # its acknowledgements are final in that state
    (_U.AWAITING, _UE.TELL): (_UA.TELL_LATER, _U.AWAITING),
    # An empty answer: the fault would make the source abandon the request that is being handled.
    (_U.AWAITING, _UE.REFUSED): (_UA.SAY_NOTHING, _U.AWAITING),
    (_U.AWAITING, _UE.REFUSED_FOR_ITSELF): (_UA.ANSWER, _U.AWAITING),
    (_U.SETTLED, _UE.END): (_UA.NOTHING, _U.SETTLED),
    (_U.SETTLED, _UE.WAIVED): (_UA.NOTHING, _U.SETTLED),
    (_U.SETTLED, _UE.TELL): (_UA.TELL, _U.SETTLED),
    (_U.SETTLED, _UE.REFUSED): (_UA.ANSWER, _U.SETTLED),
    (_U.SETTLED, _UE.REFUSED_FOR_ITSELF): (_UA.ANSWER, _U.SETTLED),
}
"""Why the end is reported so late: a source that learns of it before it is durable does not ask again, so a crash would
lose the end. A source that learns of it while a request is being handled gives that request up."""
