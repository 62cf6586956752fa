"""When one destination is polled: every cell of the table, and the pauses."""

from __future__ import annotations

import pytest

from holdfast.core.messages import MC_ANONYMOUS
from holdfast.core.policy import PollingPolicy, SourcePolicy
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.polling.poller import GROWTH, Poller
from holdfast.core.states.outbound import SourceState
from holdfast.core.states.poller import POLLER_TABLE, PollerAction, PollerEvent, PollerState
from holdfast.core.states.table import NoSuchMove
from holdfast.core.versions import Versions
from holdfast.exceptions import ConfigurationError

POLICY = PollingPolicy(first=1.0, cap=10.0, jitter=0.0)


def a_poller(state: PollerState = PollerState.WAITING) -> Poller:
    poller = Poller("http://d/", MC_ANONYMOUS + "a")
    poller.state, poller.policy, poller.pause = state, POLICY, POLICY.first
    return poller


def a_source(state: SourceState = SourceState.CREATED) -> RMSource:
    source = RMSource("urn:s", "key", Versions("1.1"), SourcePolicy(polling=POLICY), 0.0)
    source.state = state
    source.identifier = "urn:granted" if state is not SourceState.CREATING else None
    return source


@pytest.mark.parametrize("state", PollerState)
def test_a_poller_moves_as_its_cell_says(state: PollerState) -> None:
    for event in PollerEvent:
        poller = a_poller(state)
        cell = POLLER_TABLE.get((state, event))
        if cell is None:
            assert event.is_ours, "whatever a destination answers, there is a cell for it"
            with pytest.raises(NoSuchMove):
                poller.handle(event)
        else:
            assert (poller.handle(event), poller.state) == cell
    assert {action for action, _ in POLLER_TABLE.values()} == set(PollerAction)


def test_pauses_grow_to_the_cap_while_nothing_comes() -> None:
    poller, now, pauses = a_poller(), 0.0, []
    for _ in range(9):
        poller.happen(PollerEvent.DUE, 0.0, now)
        poller.happen(PollerEvent.EMPTY, 0.0, now)
        pauses.append(poller.due - now)
        now = poller.due
    assert pauses[:3] == [1.0, GROWTH, GROWTH**2]
    assert pauses[-2:] == [10.0, 10.0] and pauses == sorted(pauses)


def test_jitter_is_a_share_of_the_pause() -> None:
    poller = a_poller()
    poller.policy = PollingPolicy(first=1.0, cap=10.0, jitter=0.5)
    poller.happen(PollerEvent.DUE, 0.0, 0.0)
    poller.happen(PollerEvent.FAILED, 0.5, 100.0)
    assert poller.due == 101.25


def test_a_message_and_a_new_request_begin_with_the_shortest_pause_again() -> None:
    for event in (PollerEvent.MESSAGE, PollerEvent.EXPECTED):
        poller = a_poller()
        poller.pause, poller.due = 10.0, 50.0
        if event is PollerEvent.MESSAGE:
            poller.happen(PollerEvent.DUE, 0.0, 20.0)
        poller.happen(event, 0.0, 20.0)
        assert (poller.due, poller.pause) == (21.0, 1.0)


def test_a_request_never_postpones_a_poll() -> None:
    poller = a_poller()
    poller.due = 20.5
    poller.happen(PollerEvent.EXPECTED, 0.0, 20.0)
    assert poller.due == 20.5


def test_a_request_during_a_poll_shortens_the_pause_after_it() -> None:
    poller = a_poller()
    poller.pause = 10.0
    poller.happen(PollerEvent.DUE, 0.0, 0.0)
    poller.happen(PollerEvent.EXPECTED, 0.0, 0.1)
    poller.happen(PollerEvent.EMPTY, 0.0, 0.2)
    assert poller.due == 1.2


def test_while_more_messages_wait_the_next_poll_leaves_at_once_whatever_is_expected() -> None:
    poller = a_poller()
    poller.add(a_source())
    poller.happen(PollerEvent.DUE, 0.0, 5.0)
    poller.happen(PollerEvent.MORE, 0.0, 6.0)
    assert poller.due == 6.0
    assert poller.due_event(6.0) is PollerEvent.DUE
    poller.happen(PollerEvent.DUE, 0.0, 6.0)
    poller.happen(PollerEvent.MESSAGE, 0.0, 6.0)
    assert poller.due_event(7.0) is PollerEvent.NOTHING_EXPECTED


def test_a_poll_without_an_answer_is_followed_by_another_one() -> None:
    poller = a_poller()
    poller.awaiting.add("urn:s")
    poller.happen(PollerEvent.DUE, 0.0, 5.0)
    assert poller.due == 15.0
    assert poller.due_event(15.0) is PollerEvent.SILENT
    assert poller.happen(PollerEvent.SILENT, 0.0, 15.0) is PollerAction.POLL


def test_an_open_sequence_of_replies_alone_is_polled_with_the_longest_pause() -> None:
    poller = a_poller()
    poller.listening.add("urn:s")
    poller.polled_at = 100.0
    assert poller.due_event(101.0) is PollerEvent.DUE_EARLY
    poller.happen(PollerEvent.DUE_EARLY, 0.0, 101.0)
    assert poller.due == 110.0
    assert poller.due_event(110.0) is PollerEvent.DUE


def test_the_first_poll_after_a_restart_is_not_postponed() -> None:
    poller, source = a_poller(PollerState.IDLE), a_source()
    source.offer = "urn:offer"
    poller.add(source)
    assert poller.see(source, 50.0, is_held_back=False)
    assert poller.due_event(50.0) is PollerEvent.DUE


# --- what a Sequence expects ------------------------------------------------------------------------------------------


def expects(source: RMSource, *, asked: bool = False, is_held_back: bool = False) -> str:
    poller = a_poller(PollerState.IDLE)
    poller.add(source)
    poller.polled_at = 0.0
    if asked:
        poller.asked.add(source.local_id)
    poller.see(source, 1.0, is_held_back=is_held_back)
    return "message" if poller.awaiting else "any" if poller.listening else "nothing"


def test_an_open_request_expects_a_message_even_while_its_exchange_is_open() -> None:
    source = a_source()
    source.flight.begin(1, None, 0.0)
    source.sent(1, "urn:m1", 0.0, 0.0)
    assert expects(source) == "message"


def test_a_request_of_an_earlier_run_expects_a_message() -> None:
    source = a_source()
    source.requests.found_before("urn:m1", source, 1)
    assert expects(source) == "message"


def test_an_unacknowledged_message_expects_a_message_once_its_exchange_is_over() -> None:
    source = a_source()
    source.flight.begin(1, None, 0.0)
    source.sent(1, None, 0.0, 0.0)
    assert expects(source) == "nothing"
    source.flight.ended(1, None)
    assert expects(source) == "message"


@pytest.mark.parametrize("state", [SourceState.CREATING, SourceState.CLOSING, SourceState.TERMINATING])
def test_a_request_of_the_sequence_expects_a_message_once_its_exchange_is_over(state: SourceState) -> None:
    assert expects(a_source(state)) == "nothing"
    assert expects(a_source(state), asked=True) == "message"


def test_the_answer_to_such_a_request_ends_the_wait() -> None:
    poller, source = a_poller(PollerState.IDLE), a_source(SourceState.CREATING)
    poller.add(source)
    poller.asked.add(source.local_id)
    assert poller.see(source, 1.0, is_held_back=False)
    source.state = SourceState.CREATED
    assert not poller.see(source, 2.0, is_held_back=False)
    assert not poller.awaiting


def test_an_offered_sequence_expects_any_message_once_it_is_granted() -> None:
    for state, expected in ((SourceState.CREATING, "nothing"), (SourceState.CREATED, "any")):
        source = a_source(state)
        source.offer = "urn:offer"
        assert expects(source) == expected


def test_a_stopped_outbox_expects_nothing() -> None:
    source = a_source()
    source.offer = "urn:offer"
    source.requests.found_before("urn:m1", source, 1)
    assert expects(source, is_held_back=True) == "nothing"


def test_a_sequence_that_is_over_expects_nothing() -> None:
    poller, source = a_poller(), a_source()
    source.offer = "urn:offer"
    source.requests.found_before("urn:m1", source, 1)
    poller.add(source)
    poller.see(source, 1.0, is_held_back=False)
    poller.remove(source)
    assert not (poller.awaiting or poller.listening or poller.sources)
    assert poller.due_event(2.0) is PollerEvent.NOTHING_EXPECTED


def test_the_shortest_pause_must_not_exceed_the_longest() -> None:
    with pytest.raises(ConfigurationError, match="above cap"):
        PollingPolicy(first=2.0, cap=1.0)
