"""Every cell of the state tables, exercised on the real objects; every absent cell answered as the tables say."""

from __future__ import annotations

import itertools

import pytest

from holdfast.core.destination import RMDestination
from holdfast.core.messages import ANONYMOUS_EPR, Fault
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.source import RMSource
from holdfast.core.states import (
    DESTINATION_TABLES,
    SOURCE_TABLE,
    DestinationAction,
    DestinationEvent,
    DestinationState,
    SourceAction,
    SourceEvent,
    SourceState,
    diagram,
)
from holdfast.core.versions import RM, Versions

DESTINATION_CELLS = list(itertools.product(RM, DestinationState, DestinationEvent))
SOURCE_CELLS = list(itertools.product(SourceState, SourceEvent))


def destination(rm: RM, state: DestinationState) -> RMDestination:
    made = RMDestination("urn:d", Versions(rm.value), ANONYMOUS_EPR, DestinationPolicy(max_message_number=9), 0.0)
    made.state = state
    return made


def source(state: SourceState) -> RMSource:
    made = RMSource("urn:s", "key", Versions(), SourcePolicy(), 0.0)
    made.state = state
    return made


@pytest.mark.parametrize(("rm", "state", "event"), DESTINATION_CELLS)
def test_a_destination_moves_as_its_cell_says_and_not_at_all_where_there_is_none(
    rm: RM, state: DestinationState, event: DestinationEvent
) -> None:
    made = destination(rm, state)
    cell = DESTINATION_TABLES[rm].get((state, event))
    action = made.handle(event)
    if cell is None:
        assert action is None
        assert made.state is state
    else:
        assert (action, made.state) == cell


@pytest.mark.parametrize(("state", "event"), SOURCE_CELLS)
def test_a_source_moves_as_its_cell_says_and_not_at_all_where_there_is_none(
    state: SourceState, event: SourceEvent
) -> None:
    made = source(state)
    cell = SOURCE_TABLE.get((state, event))
    action = made.handle(event)
    if cell is None:
        assert action is SourceAction.NOTHING
        assert made.state is state
    else:
        assert (action, made.state) == cell


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


def test_an_ended_sequence_answers_repeats_in_kind_and_ack_requested_with_unknown_sequence() -> None:
    for rm in RM:
        table = DESTINATION_TABLES[rm]
        ended = DestinationState.TERMINATED
        assert table[ended, DestinationEvent.TERMINATE_SEQUENCE] == (DestinationAction.ANSWER_TERMINATE, ended)
        assert table[ended, DestinationEvent.DUPLICATE_MESSAGE] == (DestinationAction.ACKNOWLEDGE, ended)
        assert (ended, DestinationEvent.ACK_REQUESTED) not in table


def test_1_0_knows_no_closing_and_ends_at_a_number_too_high() -> None:
    table = DESTINATION_TABLES[RM.V1_0]
    assert not any(event is DestinationEvent.CLOSE_SEQUENCE for _, event in table)
    cell = table[DestinationState.CREATED, DestinationEvent.MESSAGE_ABOVE_LIMIT]
    assert cell == (DestinationAction.RAISE_MESSAGE_NUMBER_ROLLOVER, DestinationState.TERMINATED)


def test_nothing_leaves_the_state_terminated() -> None:
    for table in (*DESTINATION_TABLES.values(), SOURCE_TABLE):
        assert all(cell[1].value == "terminated" for (state, _), cell in table.items() if state.value == "terminated")


@pytest.mark.parametrize("side", ["destination-1.0", "destination-1.1", "source"])
def test_the_diagram_shows_every_change_of_state(side: str) -> None:
    table = SOURCE_TABLE if side == "source" else DESTINATION_TABLES[RM(side[-3:])]
    changes = sum(state is not cell[1] for (state, _), cell in table.items())
    assert len(diagram(side).splitlines()) == changes + 1


@pytest.mark.parametrize("rm", RM)
def test_a_version_raises_only_faults_that_it_has(rm: RM) -> None:
    raised = {action for action, _ in DESTINATION_TABLES[rm].values() if action.name.startswith("RAISE_")}
    codes = {action.value.removeprefix("raise ") for action in raised}
    assert codes <= rm.can.faults
    assert ("SequenceClosed" in codes) == rm.can.closes
