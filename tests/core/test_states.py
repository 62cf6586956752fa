"""The state tables: every cell moves as it says, and where there is none, only a peer may ask for it.

Covers core/states/drawing.py, core/states/inbound.py, core/states/outbound.py and core/states/table.py.
"""

from __future__ import annotations

import itertools
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import holdfast.core
from holdfast.core.commit import GroupCommit
from holdfast.core.messages import ANONYMOUS, ANONYMOUS_EPR, Fault
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.context import NO_HOOKS, SendingContext
from holdfast.core.sending.outboxes.forwarder_state import Withdrawal
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.polling.mailboxes import Mailboxes
from holdfast.core.states.drawing import TABLES, diagram
from holdfast.core.states.inbound import (
    DESTINATION_TABLES,
    SETTLING_TABLE,
    DestinationAction,
    DestinationEvent,
    DestinationState,
    SettlingEvent,
    SettlingState,
)
from holdfast.core.states.outbound import (
    DOUBT_TABLE,
    END_TABLE,
    SOURCE_TABLES,
    DoubtEvent,
    DoubtState,
    EndEvent,
    EndState,
    SourceEvent,
    SourceState,
)
from holdfast.core.states.outbox import (
    OUTBOX_TABLE,
    WITHDRAWAL_TABLE,
    OutboxEvent,
    OutboxState,
    WithdrawalEvent,
    WithdrawalState,
)
from holdfast.core.states.table import Event, NoSuchMove
from holdfast.core.versions import RM, Versions


def destination(rm: RM, state: DestinationState = DestinationState.CREATED) -> RMDestination:
    made = RMDestination("urn:d", Versions(rm.value), ANONYMOUS_EPR, DestinationPolicy(max_message_number=9), 0.0)
    made.state = state
    return made


def source(rm: RM, state: SourceState = SourceState.NONE) -> RMSource:
    made = RMSource("urn:s", "key", Versions(rm.value), SourcePolicy(), 0.0)
    made.state = state
    return made


def outbox() -> Outbox:
    queue = Queue("outbox/key")
    context = SendingContext(GroupCommit(), [], str, float, ANONYMOUS, None, Mailboxes())
    queue.follow("outbound/key", 0, None, lambda *_: None)
    return Outbox("key", queue, 0, "http://d/", SourcePolicy(), context, NO_HOOKS)


def check(cell: Any, state: Enum, event: Event, handle: Any, now: Any) -> None:
    """That ``handle`` moves as the cell says; where there is none, it is an error of ours, or nothing for a peer."""
    if cell is not None:
        assert (handle(event), now()) == cell
        return
    if event.is_ours:
        with pytest.raises(NoSuchMove, match="which has no cell for"):
            handle(event)
    else:
        assert handle(event) is None
    assert now() is state


@pytest.mark.parametrize(("rm", "state"), list(itertools.product(RM, DestinationState)))
def test_a_destination_moves_as_its_cell_says_and_not_at_all_where_there_is_none(
    rm: RM, state: DestinationState
) -> None:
    for event in DestinationEvent:
        made = destination(rm, state)
        check(DESTINATION_TABLES[rm].get((state, event)), state, event, made.handle, lambda made=made: made.state)


@pytest.mark.parametrize("state", SettlingState)
def test_the_end_of_an_inbound_sequence_moves_as_its_cell_says(state: SettlingState) -> None:
    for event in SettlingEvent:
        made = destination(RM.V1_1)
        made.settling = state
        check(SETTLING_TABLE.get((state, event)), state, event, made.handle_end, lambda made=made: made.settling)


@pytest.mark.parametrize(("rm", "state"), list(itertools.product(RM, SourceState)))
def test_a_source_moves_as_its_cell_says_and_not_at_all_where_there_is_none(rm: RM, state: SourceState) -> None:
    for event in SourceEvent:
        made = source(rm, state)
        made.control.due, made.control.attempts = 5.0, 3
        check(SOURCE_TABLES[rm].get((state, event)), state, event, made.handle, lambda made=made: made.state)
        assert (made.control.due, made.control.attempts) == ((5.0, 3) if made.state is state else (None, 0))


@pytest.mark.parametrize("state", EndState)
def test_the_end_of_an_outbound_sequence_moves_as_its_cell_says(state: EndState) -> None:
    for event in EndEvent:
        made = source(RM.V1_1)
        made.end = state
        check(END_TABLE.get((state, event)), state, event, made._end, lambda made=made: made.end)


@pytest.mark.parametrize("state", DoubtState)
def test_a_doubt_moves_as_its_cell_says(state: DoubtState) -> None:
    for event in DoubtEvent:
        made = source(RM.V1_1)
        made.doubt.state = state
        check(DOUBT_TABLE.get((state, event)), state, event, made.doubt.handle, lambda made=made: made.doubt.state)


@pytest.mark.parametrize("state", OutboxState)
def test_an_outbox_moves_as_its_cell_says(state: OutboxState) -> None:
    for event in OutboxEvent:
        made = outbox()
        made.lifecycle.state = state
        check(
            OUTBOX_TABLE.get((state, event)),
            state,
            event,
            made.lifecycle.handle,
            lambda made=made: made.lifecycle.state,
        )


@pytest.mark.parametrize("state", WithdrawalState)
def test_a_withdrawal_moves_as_its_cell_says(state: WithdrawalState) -> None:
    for event in WithdrawalEvent:
        made = Withdrawal(source(RM.V1_1), 60.0, state=state)
        check(WITHDRAWAL_TABLE.get((state, event)), state, event, made.handle, lambda made=made: made.state)


def test_every_state_event_and_action_is_in_a_table() -> None:
    """Of the two versions together: what one cannot do, the other can."""
    for events in (DestinationEvent, SettlingEvent, SourceEvent, EndEvent, DoubtEvent, OutboxEvent, WithdrawalEvent):
        of_kind = [table for table in TABLES.values() if table.events is events]
        cells = [(*cell, *outcome) for table in of_kind for cell, outcome in table.cells.items()]
        assert {state for state, _, _, _ in cells} | {after for *_, after in cells} == set(of_kind[0].states)
        assert {event for _, event, _, _ in cells} == set(events)
        assert {action for _, _, action, _ in cells} == set(of_kind[0].actions)


def test_what_may_happen_in_any_state_has_a_cell_in_each() -> None:
    """A timer, and what an application or an operator may call at any time."""
    for table in SOURCE_TABLES.values():
        alive = {state for state, _ in table} - {SourceState.TERMINATED}
        assert all((state, SourceEvent.TURN) in table for state in alive)
        assert all((state, SourceEvent.RESUMED) in table for state in alive)
        assert all((state, SourceEvent.ALL_ACKNOWLEDGED) in table for state in alive)
    assert all((state, OutboxEvent.STOP) in OUTBOX_TABLE for state in OutboxState)
    assert all((state, OutboxEvent.WANT_END) in OUTBOX_TABLE for state in OutboxState)
    assert all((state, EndEvent.WANT) in END_TABLE for state in EndState)
    assert all((state, SettlingEvent.END) in SETTLING_TABLE for state in SettlingState)


@pytest.mark.parametrize(("rm", "state"), list(itertools.product(RM, DestinationState)))
def test_what_a_message_is_answered_with_follows_from_the_table(rm: RM, state: DestinationState) -> None:
    faults = {
        DestinationAction.RAISE_SEQUENCE_CLOSED: "SequenceClosed",
        DestinationAction.RAISE_SEQUENCE_TERMINATED: "SequenceTerminated",
        DestinationAction.RAISE_MESSAGE_NUMBER_ROLLOVER: "MessageNumberRollover",
        DestinationAction.RAISE_LAST_MESSAGE_NUMBER_EXCEEDED: "LastMessageNumberExceeded",
        None: "UnknownSequence",
    }
    for event, number in (
        (DestinationEvent.NEW_MESSAGE, 3),
        (DestinationEvent.DUPLICATE_MESSAGE, 1),
        (DestinationEvent.MESSAGE_ABOVE_LIMIT, 10),
        (DestinationEvent.MESSAGE_AFTER_LAST, 8),
    ):
        made = destination(rm, state)
        made.accepted.add_range(1, 2)
        made.last_message_number = 7
        cell = DESTINATION_TABLES[rm].get((state, event))
        verdict = made.receive(number, False, 1.0)
        action = cell[0] if cell is not None else None
        if action in faults:
            assert isinstance(verdict, Fault)
            assert verdict.code == faults[action]
            assert verdict.identifier == "urn:d"
        else:
            assert not isinstance(verdict, Fault)


def test_an_ended_sequence_answers_ack_requested_with_unknown_sequence() -> None:
    ended = DestinationState.TERMINATED
    for rm, answer in (
        (RM.V1_0, DestinationAction.TERMINATE_OFFERED),
        (RM.V1_1, DestinationAction.ANSWER_TERMINATE),
    ):
        table = DESTINATION_TABLES[rm]
        assert table[ended, DestinationEvent.TERMINATE_SEQUENCE] == (answer, ended)
        assert table[ended, DestinationEvent.DUPLICATE_MESSAGE] == (DestinationAction.ACKNOWLEDGE, ended)
        assert (ended, DestinationEvent.ACK_REQUESTED) not in table


def test_1_0_knows_no_closing_and_ends_at_a_number_too_high() -> None:
    table = DESTINATION_TABLES[RM.V1_0]
    assert not any(event is DestinationEvent.CLOSE_SEQUENCE for _, event in table)
    cell = table[DestinationState.CREATED, DestinationEvent.MESSAGE_ABOVE_LIMIT]
    assert cell == (DestinationAction.RAISE_MESSAGE_NUMBER_ROLLOVER, DestinationState.TERMINATED)


def test_nothing_leaves_the_state_terminated() -> None:
    for table in (*DESTINATION_TABLES.values(), *SOURCE_TABLES.values()):
        assert all(cell[1].value == "terminated" for (state, _), cell in table.items() if state.value == "terminated")


@pytest.mark.parametrize("name", TABLES)
def test_the_diagram_shows_every_change_of_state(name: str) -> None:
    moves = [line for line in diagram(name).splitlines() if " --> " in line]
    assert len(moves) == sum(state is not after for (state, _), (_, after) in TABLES[name].cells.items())


@pytest.mark.parametrize("rm", RM)
def test_a_version_raises_only_faults_that_it_has(rm: RM) -> None:
    raised = {action for action, _ in DESTINATION_TABLES[rm].values() if action.name.startswith("RAISE_")}
    codes = {action.value.removeprefix("raise ") for action in raised}
    assert codes <= rm.can.faults
    assert ("SequenceClosed" in codes) == rm.can.closes


# In an order of its own, not of a set: each worker of pytest-xdist must collect the same.
@pytest.mark.parametrize(
    "kind", dict.fromkeys(table.actions for table in TABLES.values()), ids=lambda kind: kind.__name__
)
def test_the_code_reads_every_action_of_a_table(kind: type[Enum]) -> None:
    """An action that no code reads is done, or not, whatever the cell says."""
    source = Path(holdfast.core.__file__).parent
    code = "\n".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py") if path.parent.name != "states")
    names = [action.name for action in kind if action.name != "NOTHING"]
    assert [name for name in names if f"{kind.__name__}.{name}" not in code] == []
