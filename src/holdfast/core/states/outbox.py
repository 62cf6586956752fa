"""The tables of objects that outlive a Sequence: an outbox, a forwarding address, and a withdrawal of messages."""

from __future__ import annotations

from holdfast.core.states.table import OURS, Event, Name


class OutboxState(Name):
    """Whether an outbox sends, and whether its end is requested."""

    OPEN = "open"
    ENDING = "ending"
    SUSPENDED = "suspended"
    SUSPENDED_ENDING = "suspended, ending"
    STOPPED = "stopped"
    STOPPED_ENDING = "stopped, ending"


class OutboxEvent(Event):
    TURN = "turn to send", OURS
    WANT_END = "no further message follows", OURS
    EMPTIED = "it is empty, and no Sequence carries it", OURS
    SUSPEND = "the operator suspends it", OURS
    STOP = "it cannot continue without a decision", OURS
    RESUME = "the operator resumes it", OURS


class OutboxAction(Name):
    SEND = "send"
    END = "end its Sequence once all messages are acknowledged"
    TELL_ENDED = "report that it has ended"
    HOLD_BACK = "save the reason, and send nothing"
    TELL_STOPPED = "save and report the reason"
    GO_ON = "save, and resume"
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
    # Open again: a later message begins another Sequence.
    (_O.ENDING, _OE.EMPTIED): (_OA.TELL_ENDED, _O.OPEN),
    (_O.ENDING, _OE.SUSPEND): (_OA.HOLD_BACK, _O.SUSPENDED_ENDING),
    (_O.ENDING, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED_ENDING),
    (_O.SUSPENDED, _OE.TURN): (_OA.NOTHING, _O.SUSPENDED),
    (_O.SUSPENDED, _OE.WANT_END): (_OA.END, _O.SUSPENDED_ENDING),
    (_O.SUSPENDED, _OE.SUSPEND): (_OA.HOLD_BACK, _O.SUSPENDED),
    # An answer of the peer may meanwhile require a decision, which is not the same as to resume.
    (_O.SUSPENDED, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED),
    (_O.SUSPENDED, _OE.RESUME): (_OA.GO_ON, _O.OPEN),
    (_O.SUSPENDED_ENDING, _OE.TURN): (_OA.NOTHING, _O.SUSPENDED_ENDING),
    (_O.SUSPENDED_ENDING, _OE.WANT_END): (_OA.NOTHING, _O.SUSPENDED_ENDING),
    (_O.SUSPENDED_ENDING, _OE.SUSPEND): (_OA.HOLD_BACK, _O.SUSPENDED_ENDING),
    (_O.SUSPENDED_ENDING, _OE.STOP): (_OA.TELL_STOPPED, _O.STOPPED_ENDING),
    (_O.SUSPENDED_ENDING, _OE.RESUME): (_OA.GO_ON, _O.ENDING),
    (_O.STOPPED, _OE.TURN): (_OA.NOTHING, _O.STOPPED),
    (_O.STOPPED, _OE.WANT_END): (_OA.END, _O.STOPPED_ENDING),
    # A suspension must not hide that a decision is needed.
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


class CircuitState(Name):
    """Whether forwarders send to an address."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    RAMPING = "ramping"


class CircuitEvent(Event):
    ANSWERED = "it answers"
    FAILED = "an attempt gets no answer"
    FAILED_OFTEN = "the limit of consecutive attempts without an answer is reached"
    ASKS_FOR_PAUSE = "it asks for a pause"
    PROBE_DUE = "an outbox has a message to send, and a probe is due", OURS
    PROBE_UNUSED = "the probing outbox had nothing to send", OURS
    ALL_LET_IN = "no outbox waits for admission", OURS


class CircuitAction(Name):
    FORGET = "reset the count"
    OPEN = "send nothing there, and report it"
    POSTPONE = "retry later"
    PROBE = "send one message"
    LET_IN = "admit waiting outboxes one after the other, and report it"
    LET_IN_MORE = "admit two more for each answer"
    NOTHING = "nothing"


_C, _CE, _CA = CircuitState, CircuitEvent, CircuitAction

CIRCUIT_TABLE: dict[tuple[CircuitState, CircuitEvent], tuple[CircuitAction, CircuitState]] = {
    (_C.CLOSED, _CE.ANSWERED): (_CA.FORGET, _C.CLOSED),
    # Every state counts attempts without an answer, to compare them with the limit.
    (_C.CLOSED, _CE.FAILED): (_CA.NOTHING, _C.CLOSED),
    (_C.CLOSED, _CE.FAILED_OFTEN): (_CA.OPEN, _C.OPEN),
    # Retry-After says more than any number of attempts without an answer.
    (_C.CLOSED, _CE.ASKS_FOR_PAUSE): (_CA.OPEN, _C.OPEN),
    # Answers to requests from before the circuit opened say nothing about the address now; the next probe will.
    (_C.OPEN, _CE.ANSWERED): (_CA.NOTHING, _C.OPEN),
    (_C.OPEN, _CE.FAILED): (_CA.NOTHING, _C.OPEN),
    (_C.OPEN, _CE.FAILED_OFTEN): (_CA.NOTHING, _C.OPEN),
    (_C.OPEN, _CE.ASKS_FOR_PAUSE): (_CA.POSTPONE, _C.OPEN),
    (_C.OPEN, _CE.PROBE_DUE): (_CA.PROBE, _C.PROBING),
    (_C.PROBING, _CE.ANSWERED): (_CA.LET_IN, _C.RAMPING),
    (_C.PROBING, _CE.FAILED): (_CA.POSTPONE, _C.OPEN),
    (_C.PROBING, _CE.FAILED_OFTEN): (_CA.POSTPONE, _C.OPEN),
    (_C.PROBING, _CE.ASKS_FOR_PAUSE): (_CA.POSTPONE, _C.OPEN),
    # The earlier probe had neither an answer nor a failure in time: another outbox probes.
    (_C.PROBING, _CE.PROBE_DUE): (_CA.PROBE, _C.PROBING),
    (_C.PROBING, _CE.PROBE_UNUSED): (_CA.NOTHING, _C.OPEN),
    (_C.RAMPING, _CE.ANSWERED): (_CA.LET_IN_MORE, _C.RAMPING),
    # A single failure is usual on a bad network.
    (_C.RAMPING, _CE.FAILED): (_CA.NOTHING, _C.RAMPING),
    (_C.RAMPING, _CE.FAILED_OFTEN): (_CA.OPEN, _C.OPEN),
    (_C.RAMPING, _CE.ASKS_FOR_PAUSE): (_CA.OPEN, _C.OPEN),
    (_C.RAMPING, _CE.ALL_LET_IN): (_CA.FORGET, _C.CLOSED),
}
"""A destination that is down gets one message at a time, however many outboxes wait for it. A destination that is back
is not flooded. Waiting outboxes cost no processing meanwhile."""


# --- a withdrawal ----------------------------------------------------------------------------------------------------


class WithdrawalState(Name):
    """Progress of a forwarder that takes permanently refused messages out of their Sequence."""

    NONE = "none"
    DRAINING = "waiting for answers"
    ASKED = "asked what arrived"


class WithdrawalEvent(Event):
    """Events of a withdrawal. In each turn of the outbox, exactly one of the events marked OURS occurs."""

    REFUSED = "one more message is refused permanently", OURS
    REFUSED_AGAIN = "a withdrawn message is refused again"
    ACKNOWLEDGEMENT = "SequenceAcknowledgement"
    SILENT = "the destination does not say what arrived, and duplicates are not allowed"
    SEQUENCE_OVER = "the Sequence is over, or ends", OURS
    PENDING = "an exchange is open, or the answer to AckRequested or the reply to a withdrawn request is awaited", OURS
    UNANSWERED = "another message has no answer yet", OURS
    UNCERTAIN = "all is answered, other messages may have arrived, and the destination was not asked", OURS
    UNREPLIED = "requests that may have arrived have no reply yet", OURS
    UNREPLIED_TOO_LONG = "requests have no reply for longer than the policy waits, and duplicates are not allowed", OURS
    UNREAD = "it is known what else arrived, and a withdrawn message must be read", OURS
    CERTAIN = "it is known what else arrived", OURS


class WithdrawalAction(Name):
    HOLD = "send nothing new, and do not retransmit the message"
    WITHHOLD = "do not retransmit the message"
    NOTE = "note what arrived"
    NOTHING = "nothing"
    HURRY = "retransmit now what waited for a withdrawn message"
    ASK = "send AckRequested, and retransmit no other message"
    AWAIT_REPLIES = "leave what did not arrive to the next Sequence, and repeat the requests"
    STOP_UNREPLIED = "retransmit everything, and stop until an operator decides about the requests"
    STOP = "retransmit everything, and stop until an operator decides"
    READ = "leave what did not arrive to the next Sequence, and read the message"
    DEAD_LETTER = "make dead letters, end the Sequence before them, and leave the rest to the next one"


_W, _WE, _WA = WithdrawalState, WithdrawalEvent, WithdrawalAction

WITHDRAWAL_TABLE: dict[tuple[WithdrawalState, WithdrawalEvent], tuple[WithdrawalAction, WithdrawalState]] = {
    (_W.NONE, _WE.REFUSED): (_WA.HOLD, _W.DRAINING),
    (_W.DRAINING, _WE.REFUSED): (_WA.WITHHOLD, _W.DRAINING),
    (_W.DRAINING, _WE.REFUSED_AGAIN): (_WA.WITHHOLD, _W.DRAINING),
    (_W.DRAINING, _WE.ACKNOWLEDGEMENT): (_WA.NOTE, _W.DRAINING),
    (_W.DRAINING, _WE.SILENT): (_WA.STOP, _W.NONE),
    (_W.DRAINING, _WE.SEQUENCE_OVER): (_WA.NOTHING, _W.NONE),
    (_W.DRAINING, _WE.PENDING): (_WA.NOTHING, _W.DRAINING),
    (_W.DRAINING, _WE.UNANSWERED): (_WA.HURRY, _W.DRAINING),
    (_W.DRAINING, _WE.UNCERTAIN): (_WA.ASK, _W.ASKED),
    (_W.DRAINING, _WE.UNREPLIED): (_WA.AWAIT_REPLIES, _W.DRAINING),
    (_W.DRAINING, _WE.UNREPLIED_TOO_LONG): (_WA.STOP_UNREPLIED, _W.NONE),
    (_W.DRAINING, _WE.UNREAD): (_WA.READ, _W.DRAINING),
    # Nothing else was in flight, or all of it is acknowledged: no question is needed.
    (_W.DRAINING, _WE.CERTAIN): (_WA.DEAD_LETTER, _W.NONE),
    # The destination's latest acknowledgement did not cover this message.
    (_W.ASKED, _WE.REFUSED): (_WA.WITHHOLD, _W.DRAINING),
    (_W.ASKED, _WE.REFUSED_AGAIN): (_WA.WITHHOLD, _W.ASKED),
    (_W.ASKED, _WE.ACKNOWLEDGEMENT): (_WA.NOTE, _W.ASKED),
    (_W.ASKED, _WE.SILENT): (_WA.STOP, _W.NONE),
    (_W.ASKED, _WE.SEQUENCE_OVER): (_WA.NOTHING, _W.NONE),
    (_W.ASKED, _WE.PENDING): (_WA.NOTHING, _W.ASKED),
    (_W.ASKED, _WE.UNANSWERED): (_WA.HURRY, _W.ASKED),
    # A message that the destination did not acknowledge when asked did not arrive, except a request without a reply.
    (_W.ASKED, _WE.UNREPLIED): (_WA.AWAIT_REPLIES, _W.ASKED),
    (_W.ASKED, _WE.UNREPLIED_TOO_LONG): (_WA.STOP_UNREPLIED, _W.NONE),
    (_W.ASKED, _WE.UNREAD): (_WA.READ, _W.ASKED),
    (_W.ASKED, _WE.CERTAIN): (_WA.DEAD_LETTER, _W.NONE),
}
"""A Sequence cannot skip a number, so it ends before a refused message. Messages transmitted after that one must not
arrive again in the next Sequence. If the last event of the Sequence has no action, the forwarder retries the refused
messages in the next one."""
