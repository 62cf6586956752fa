"""Every cell of an RM Source's table, on a real one with its outbox: what comes of an event is what its cell says.

Covers core/retransmission.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from holdfast.core.events import Ended, Incident, Respond, Stopped, Transmit
from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    Fault,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.origin import Origin
from holdfast.core.policy import SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.sending.reasons import Why
from holdfast.core.states.outbound import SOURCE_TABLES, EndState, SourceAction, SourceEvent, SourceState
from holdfast.core.states.outbox import OUTBOX_TABLE, OutboxAction, OutboxEvent, OutboxState
from holdfast.core.steering import NotSteered, Steering
from holdfast.core.versions import RM, Versions
from holdfast.store import MemoryStore

EVERY_RECORD = dict.fromkeys(range(10_000), Record("key", 0, "urn:a", b"<x/>", 0.0))
"""All are in memory."""

S, V, A = SourceState, SourceEvent, SourceAction
TO, NAME = "http://d/", "urn:s"
IN_DOUBT = (S.CREATED, S.ROLLOVER)
"""Here 1 and 2 were sent, of which 1 is acknowledged, and 3 was not."""

FAULTS = {
    V.CREATE_SEQUENCE_REFUSED: Fault("CreateSequenceRefused", "no", is_rm=True),
    V.ROLLOVER_FAULT: Fault("MessageNumberRollover", "no", is_rm=True, identifier=NAME, max_message_number=1),
    V.CLOSED_FAULT: Fault("SequenceClosed", "no", is_rm=True, identifier=NAME),
    V.ENDING_FAULT: Fault("SequenceTerminated", "no", is_rm=True, identifier=NAME),
    V.ENDING_FAULT_EARLY: Fault("SequenceTerminated", "no", is_rm=True, identifier=NAME),
    V.ACKNOWLEDGEMENT_FAULT: Fault("InvalidAcknowledgement", "no", is_rm=True, identifier=NAME),
    V.MESSAGE_FAULT: Fault("ActionNotSupported", "no", is_addressing=True),
    V.COPY_FAULT: Fault("SequenceClosed", "no"),
    V.OTHER_FAULT: Fault("Busy", "no", sender=False),
}
SAID: dict[V, Any] = {
    V.CREATE_SEQUENCE_RESPONSE: CreateSequenceResponse,
    V.CLOSE_SEQUENCE_RESPONSE: CloseSequenceResponse,
    V.CLOSE_SEQUENCE: CloseSequence,
    V.TERMINATE_SEQUENCE_RESPONSE: TerminateSequenceResponse,
    V.TERMINATE_SEQUENCE: TerminateSequence,
}


class Outbound:
    """A protocol with one outbox, in which there are three messages."""

    def __init__(self, rm: RM) -> None:
        self.versions = Versions(rm.value)
        self.store = MemoryStore()
        self.now = 1000.0
        self.effects: list[Any] = []
        # Without CreateSequence, the source makes the Identifier: its first.
        identifiers = itertools.chain(() if rm.can.creates else (NAME,), (f"urn:{n}" for n in itertools.count()))
        self.protocol = RMProtocol(
            Queue("inbox"),
            Environment(self.store.read, lambda: next(identifiers), lambda: 0.0),
            policies=Policies(
                source=SourcePolicy(
                    initial_window=2,
                    window=2,
                    retransmission=RetransmissionPolicy(initial=9.0, floor=1.0, cap=9.0, jitter=0.0),
                )
            ),
        )
        self.outbound = self.protocol.outbound
        self.outbox = self.outbound.open("a", TO, [(self.versions, False)])
        for number in (1, 2, 3):
            record = Record("a", 0, "urn:a", b"<m/>", self.now, f"urn:m:{number}")
            self.protocol.submit(self.outbox, record, self.now)
        self.commit()

    def commit(self) -> None:
        """One batch; what is decided when it is durable waits for the next."""
        if self.protocol.wants_commit:
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)
        self.effects += self.protocol.take_effects()

    def hear(self, *, is_asked: bool = False, number: int = 0, **fields: Any) -> None:
        versions, source = self.versions, self.source
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, **fields)
        sent = Transmit(TO, envelope, source.local_id, number)
        back_channel = object() if is_asked else None
        self.protocol.receive(envelope, back_channel, self.now, None if is_asked else sent, Origin(TO))

    def bring_to(self, state: S) -> None:
        """Up to CREATED on the way that all go; then as if it had gone on."""
        self.source = self.outbox.source
        assert self.source.state is S.NONE
        if state is S.NONE:
            return self.rest()
        self.commit()
        if state is S.CREATING:
            return self.rest()
        if self.versions.rm.can.creates:
            self.hear(control=CreateSequenceResponse(NAME, 500.0), relates_to=self.source.local_id)
            if state is S.GRANTED:
                return self.rest()
            self.commit()
        acknowledged = 1 if state in IN_DOUBT else 3
        while self.source.acknowledged.highest < acknowledged:
            upper = min(self.source.numbers.highest_sent, acknowledged)
            self.acknowledge((1, upper))
            if state not in IN_DOUBT:
                self.protocol.pump(self.now)
        self.source.state = state
        if state in IN_DOUBT:
            self.source.flight[2].due = self.now + 9.0
        return self.rest()

    def rest(self) -> None:
        """Nothing happens by itself from now on."""
        self.outbound.pause(TO, 10.0, self.now)
        self.protocol.take_effects()
        self.effects.clear()

    def acknowledge(self, *ranges: tuple[int, int], final: bool = False, nacks: tuple[int, ...] = ()) -> None:
        ack = SequenceAcknowledgement(NAME, ranges, nacks, final)
        self.hear(is_asked=True, control=Acknowledge(), acknowledgements=(ack,))

    def happen(self, event: V) -> None:
        """An event of the peer's comes from outside; one of ours by the way that all go."""
        source, highest = self.source, self.source.numbers.highest_sent
        for entry in source.flight.values():
            is_early = event is V.ENDING_FAULT_EARLY
            entry.attempts, entry.exchanges = 1 + is_early, int(is_early)
        if event in FAULTS:
            number = 2 if event in (V.MESSAGE_FAULT, V.OTHER_FAULT, V.ENDING_FAULT_EARLY) else 0
            if number and number in source.acknowledged:
                source.waiting.unreplied[number] = "urn:m:2"  # otherwise it would be refused as a copy
            number = 1 if event is V.COPY_FAULT else number
            self.hear(number=number, fault=FAULTS[event], relates_to=source.local_id)
        elif event in SAID:
            relates_to = source.local_id if event is V.CREATE_SEQUENCE_RESPONSE else None
            self.hear(is_asked=True, control=SAID[event](NAME), relates_to=relates_to)
        elif event is V.INVALID_ACKNOWLEDGEMENT:
            self.acknowledge((1, 99))
        elif event is V.OUTDATED or (event is V.OUTDATED_LATE and highest):
            source.numbers.known = 3 if event is V.OUTDATED else highest - 1
            self.acknowledge((1, 99))
        elif event is V.NACK:
            self.acknowledge(nacks=(highest,) if highest else ())
        elif event in (V.ACKNOWLEDGEMENT, V.FINAL_ACKNOWLEDGEMENT):
            self.acknowledge(*(((1, 1),) if highest else ()), final=event is V.FINAL_ACKNOWLEDGEMENT)
        elif event in (V.WANT_SEQUENCE, V.GRANT_DURABLE) and source.state in (S.NONE, S.GRANTED):
            self.commit()  # that is what it waited for
        elif event in (V.SEND_MESSAGE, V.SEND_LAST_NUMBER):
            source.numbers.limit = 3 if event is V.SEND_LAST_NUMBER else 99
            self.acknowledge((1, 2))
            self.effects.clear()
            source.numbers_to_send(self.now, EVERY_RECORD)
        elif event in (V.ALL_ACKNOWLEDGED, V.ALL_NUMBERS_ACKNOWLEDGED):
            source.numbers.available = 1 if source.state in IN_DOUBT else source.acknowledged.highest
            source.numbers.limit = source.numbers.available if event is V.ALL_NUMBERS_ACKNOWLEDGED else 99
            source.want_end()
            self.outbox._proceed(source, self.now)
        elif event is V.RESUMED:
            self.outbox.lifecycle.stop("in this test")
            self.now += 1.0
            self.outbox.resume(self.outbox.lifecycle.choices, self.now)
        else:
            self.outbox.happen(source, event, self.now, Why("code", "reason", limit=1))


INCIDENTS = {
    "sequence.created": A.KEEP,
    "sequence.refused": A.REPORT_REFUSED,
    "sequence.lost": A.LOSE,
    "sequence.terminated": A.FINISH,
    "acknowledgement.rejected": A.REPORT_ACKNOWLEDGEMENT,
}
TRANSMITTED: dict[type, A] = {
    CreateSequence: A.SEND_CREATE,
    CloseSequence: A.SEND_CLOSE,
    TerminateSequence: A.SEND_TERMINATE,
}
ANSWERED: dict[type, A] = {CloseSequenceResponse: A.ANSWER_CLOSE, TerminateSequenceResponse: A.ANSWER_TERMINATE}


class Seen:
    """What a Sequence did, told from what came out of it and from what it remembers."""

    def __init__(self, one: Outbound) -> None:
        self.one = one
        self.before = self._facts()

    def _facts(self) -> dict[A, Any]:
        source = self.one.source
        return {
            A.NUMBER: source.numbers.next,
            A.SEND_LAST_MESSAGE: source.numbers.last,
            A.STOP_NUMBERING: source.doubt.is_open,
            A.LEAVE_NEW: source.numbers.is_restored,
            A.TELL_END: source.life.outlives,
            A.GO_ON: source.life.last_heard,
            A.RETRY: min((entry.due for entry in source.flight.values()), default=None),
        }

    def done(self) -> set[A]:
        done: set[A] = set()
        for effect in self.one.effects:
            if isinstance(effect, Incident) and effect.name in INCIDENTS:
                done.add(INCIDENTS[effect.name])
            elif isinstance(effect, Stopped):
                done.add(A.STOP)
            elif isinstance(effect, Transmit):
                done.add(A.TRANSMIT if effect.number else TRANSMITTED[type(effect.envelope.control)])
            elif isinstance(effect, Respond) and effect.envelope is not None:
                fault, control = effect.envelope.fault, effect.envelope.control
                done.add(A(f"raise {fault.code}") if fault is not None else ANSWERED[type(control)])
        return done | {action for action, fact in self._facts().items() if fact != self.before[action]}


def expected(state: S, event: V, action: A) -> set[A]:
    """What is to be seen of an action; nothing that another one would show."""
    rest = {A.LOSE, A.STOP} if state in IN_DOUBT else set[A]()
    seen: dict[A, set[A]] = {
        A.NOTHING: set(),
        A.MARK: set(),  # which numbers is shown where acknowledgements are tested
        A.BEGIN: set(),
        A.MOVE_REST: set(),
        A.MARK_AND_REPORT: rest,
        A.REPORT_REST: rest,
        A.RETRANSMIT_NACKED: {A.RETRY},
        A.STOP_NUMBERING: {A.STOP_NUMBERING, A.NUMBER, A.RETRY},
        A.RETRY: {A.RETRY} if state in IN_DOUBT else set(),  # elsewhere nothing is in flight
        A.ANSWER_CLOSE: {A.ANSWER_CLOSE} | rest,
        A.ANSWER_TERMINATE: {A.ANSWER_TERMINATE} | (rest or {A.FINISH}),
        A.LOSE: rest or {A.FINISH},
        # There is no other way to try here. A Receiver fault may pass, so the same way is tried again.
        A.REPORT_REFUSED: {A.REPORT_REFUSED} | ({A.STOP} if event is not V.OTHER_FAULT else set()),
    }
    return seen.get(action, {action})


SHOWN_BY_ITS_STATE = (A.SEND_CREATE, A.SEND_CLOSE, A.SEND_TERMINATE)
CELLS = [
    (rm, *cell, *outcome) for rm in RM for cell, outcome in SOURCE_TABLES[rm].items() if cell[0] is not S.TERMINATED
]


@pytest.mark.parametrize(("rm", "state", "event", "action", "after"), CELLS)
def test_what_comes_of_an_event_is_what_its_cell_says(rm: RM, state: S, event: V, action: A, after: S) -> None:
    one = Outbound(rm)
    one.bring_to(state)
    source = one.source
    if event is V.TURN and action in SHOWN_BY_ITS_STATE:
        source.control.begin(one.now)
        source.control.open_creations = 0  # what brought it here left it without an answer
    if event is V.TURN and state in IN_DOUBT:
        source.flight[2].due = one.now
        source.flight.hurry(source.flight[2], one.now)
    seen = Seen(one)
    one.happen(event)
    assert source.state is after
    if action is not A.KEEP:
        one.commit()
    else:
        one.effects += one.protocol.take_effects()
    done = seen.done()
    if event is V.TURN and state in IN_DOUBT:
        done -= {A.NUMBER, A.RETRY}  # of what is transmitted
    if action is A.LEAVE_NEW:
        done -= {A.NUMBER, A.RETRY}  # what else the acknowledgement and the lower limit mean
    if action is A.NUMBER:
        done -= {A.RETRY}  # it is in flight now, and 2 is not
    if event is not V.TURN and action in SHOWN_BY_ITS_STATE:
        # It is sent at the next turn, by the state it is in now.
        done |= {action}
        assert SOURCE_TABLES[rm][after, V.TURN] == (action, after)
    assert done == expected(state, event, action)


# --- the outbox -------------------------------------------------------------------------------------------------------

OS, OV, OA = OutboxState, OutboxEvent, OutboxAction


@pytest.mark.parametrize(("cell", "outcome"), OUTBOX_TABLE.items())
def test_what_an_outbox_does_is_what_its_cell_says(cell: tuple[OS, OV], outcome: tuple[OA, OS]) -> None:
    (state, event), (action, after) = cell, outcome
    one = Outbound(RM.V1_1)
    outbound, outbox = one.outbound, one.outbox
    one.bring_to(S.CREATED)
    one.now += 20.0  # beyond the pause, and 2 is due again
    if state in (OS.ENDING, OS.SUSPENDED_ENDING, OS.STOPPED_ENDING):
        outbox.want_end(one.now)
    if state in (OS.STOPPED, OS.STOPPED_ENDING):
        outbox.stop("before", "in this test", one.now)
    elif state in (OS.SUSPENDED, OS.SUSPENDED_ENDING):
        outbox.lifecycle.suspend("before")
        outbox.save()
    if event is OV.EMPTIED:
        outbox.records.first = outbox.records.end
        outbox.drop(one.now)
    while one.protocol.wants_commit:
        one.store.commit(one.protocol.take_batch())
        one.protocol.commit.durable(one.now)
    one.protocol.take_effects()
    assert outbox.lifecycle.state is state

    if event in (OV.TURN, OV.EMPTIED):
        outbox.ready()
        outbound.pump(one.now)
    elif event is OV.WANT_END:
        outbox.want_end(one.now)
    elif event is OV.STOP:
        outbox.stop("now", "in this test", one.now)
    elif event is OV.SUSPEND and action is OA.HOLD_BACK:
        Steering(one.protocol).suspend(outbox, "now")
        assert [effect.name for effect in one.protocol.take_effects()] == ["sending.suspended"]
    elif event is OV.SUSPEND:
        with pytest.raises(NotSteered, match="already stopped"):
            Steering(one.protocol).suspend(outbox, "now")
        assert outbox.lifecycle.suspend("now") is action
    else:
        outbox.resume(outbox.lifecycle.choices, one.now)
    assert outbox.lifecycle.state is after
    is_saved = one.protocol.wants_commit
    while one.protocol.wants_commit:
        one.store.commit(one.protocol.take_batch())
        one.protocol.commit.durable(one.now)
    kinds = {type(effect) for effect in one.protocol.take_effects()}
    shown: dict[OA, tuple[set[type], bool, str]] = {
        OA.SEND: ({Transmit}, False, ""),
        OA.END: (set(), True, outbox.lifecycle.stopped),
        OA.TELL_ENDED: ({Ended}, False, ""),
        OA.HOLD_BACK: (set(), True, ""),
        OA.TELL_STOPPED: ({Stopped}, True, "now"),
        OA.GO_ON: (set(), True, ""),
        OA.NOTHING: (set(), False, outbox.lifecycle.stopped),
    }
    assert (kinds, is_saved, outbox.lifecycle.stopped) == shown[action]
    is_held = after in (OS.SUSPENDED, OS.SUSPENDED_ENDING)
    assert outbox.lifecycle.suspended == (("now" if action is OA.HOLD_BACK else "before") if is_held else None)
    if action is OA.END:
        assert one.source.end is EndState.WANTED
