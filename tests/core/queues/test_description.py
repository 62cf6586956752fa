"""The saved description of a queue."""

from __future__ import annotations

import pytest

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect, Incident
from holdfast.core.queues.cursors import ASIDE
from holdfast.core.queues.description import OUTBOX, QueueDescription, divided, fingerprint_of
from holdfast.core.queues.queue_records import QueueRecords
from holdfast.core.records import Record


class Parts:
    """The description of a queue with partitions, and where its changes go."""

    def __init__(self, count: int = 2, sessions: int = 0, kind: str = "inbox") -> None:
        self.commit, self.effects = GroupCommit(), list[Effect]()
        self.records = QueueRecords("orders", count)
        self.records.join(self.commit, self.effects, lambda *_: [])
        self.description = QueueDescription(self.records, kind)
        self.description.sessions = sessions


def test_an_outbox_has_no_epoch_and_no_fingerprints_in_its_description() -> None:
    assert Parts(kind=OUTBOX).description.to_state() == {"kind": OUTBOX, "partitions": 2, "read": False}
    assert [*Parts(sessions=1).description.to_state()] == ["kind", "partitions", "sessions", "epoch", "before", "read"]


def test_the_first_reader_saves_the_description_and_no_other_reader_does() -> None:
    parts = Parts()
    parts.description.read_now()
    assert parts.commit.take().queues["orders"]["read"] is True
    parts.description.read_now()
    assert not parts.commit.is_wanted


def test_more_partitions_for_sessions_are_added_and_any_other_difference_is_not() -> None:
    grown = Parts(4, sessions=2)
    grown.description.recover({"kind": "inbox", "partitions": 3, "sessions": 1, "epoch": "e", "before": {}})
    assert (grown.description.stored_partitions, grown.description.is_grown) == (4, True)
    other = Parts(4, sessions=1)
    other.description.recover({"kind": "inbox", "partitions": 3, "sessions": 1, "epoch": "e", "before": {}})
    assert (other.description.stored_partitions, other.description.is_grown) == (3, False)


@pytest.mark.parametrize("state", [{"partitions": 0}, {"partitions": 2, "epoch": 5}, {"partitions": 2, "before": []}])
def test_an_unreadable_description_is_set_aside_and_reported(state: dict[str, object]) -> None:
    parts = Parts()
    parts.description.recover(state)
    assert parts.description.stored_partitions is None
    assert parts.commit.batch.queues == {ASIDE + "orders": state}
    (incident,) = parts.effects
    assert isinstance(incident, Incident) and incident.name == "state.unreadable"


def test_the_fingerprint_below_the_first_record_is_that_of_the_last_deleted_one() -> None:
    parts, record = Parts(), Record("urn:s", 1, "urn:a", b"m", 1.0)
    one = parts.records.partitions[0]
    one.first, one.durable_end = 3, 5
    assert [parts.description.fingerprint(0, position) for position in (2, 3, 4, 6)] == ["", "", None, ""]
    parts.description.deleted(0, record)
    assert parts.description.fingerprint(0, 3) == fingerprint_of(record)
    parts.description.deleted(0, None)
    assert parts.description.fingerprint(0, 3) == ""


def test_partitions_are_divided_by_a_description_that_makes_sense() -> None:
    assert divided({"partitions": 5, "sessions": 2}) == (3, 2)
    assert divided({"partitions": 2, "sessions": 2}) == (2, 0)
    assert divided({"partitions": "2"}) == (0, 0)
