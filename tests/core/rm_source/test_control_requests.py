"""When a lifecycle request or AckRequested leaves."""

from __future__ import annotations

from holdfast.core.rm_source.control_requests import ControlRequests


def test_a_request_is_due_from_its_time_on_and_never_without_one() -> None:
    control = ControlRequests()
    assert not control.is_due(1e9)
    control.begin(5.0)
    assert not control.is_due(4.9) and control.is_due(5.0)
    control.stop()
    assert not control.is_due(5.0)


def test_only_a_scheduled_request_is_hurried_and_only_forward() -> None:
    control = ControlRequests()
    control.hurry(1.0)
    assert control.due is None
    control.begin(5.0)
    control.hurry(9.0)
    assert control.due == 5.0
    control.hurry(2.0)
    assert control.due == 2.0


def test_create_sequence_with_an_offer_is_held_until_its_time_or_its_exchanges_end() -> None:
    control = ControlRequests()
    control.begin(1.0)
    control.hold_creation(9.0)
    assert control.deadline == 9.0 and control.is_due(9.0) and not control.is_due(8.9)
    control.hold_creation(17.0)
    control.creation_ended(3.0)
    assert control.deadline == 17.0 and not control.is_due(16.0)
    control.creation_ended(4.0)
    assert control.deadline == 4.0 and control.is_due(4.0) and not control.is_due(3.9)
    control.creation_ended(2.0)
    assert control.deadline == 4.0, "one that ends late changes nothing"


def test_an_open_exchange_of_create_sequence_holds_no_later_request_back() -> None:
    control = ControlRequests()
    control.begin(1.0)
    control.hold_creation(9.0)
    control.stop()
    control.begin(2.0)
    assert control.is_due(2.0)


def test_a_repeat_measures_no_round_trip_unless_its_answer_is_its_own() -> None:
    control = ControlRequests()
    assert control.left(1.0, is_timed=False) == 1 and control.request_sent_at == 1.0
    assert control.left(2.0, is_timed=False) == 2 and control.request_sent_at is None
    assert control.left(3.0, is_timed=True) == 3 and control.request_sent_at == 3.0
