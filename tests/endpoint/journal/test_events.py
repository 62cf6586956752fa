"""What the collector tells of batches and of what leaves."""

from __future__ import annotations

import io
from typing import Any

from growth import entries

from holdfast.core.events import Acknowledged, BackChannel, Incident, NotQueued, Respond, Transmit
from holdfast.core.messages import SOAP, Envelope, Fault, Sequence, SequenceAcknowledgement
from holdfast.core.policy import DestinationPolicy
from holdfast.core.records import Batch, Record, Snapshot
from holdfast.endpoint.journal.columns import COLUMNS, DAMAGED, EVENTS, LIFE
from holdfast.endpoint.journal.events import Collector
from holdfast.endpoint.journal.files import HEADER, frames_of
from holdfast.endpoint.journal.files import rows_of as all_of

ONE = "urn:one"


class Watch:
    """A clock that goes on by a second each time."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def collector() -> Collector:
    return Collector(Watch(), DestinationPolicy())


def rows_of(one: Collector) -> list[dict[str, Any]]:
    """What was told, without what is null."""
    data, _ = frames_of("run", None, 0, one.take())
    rows = all_of(io.BytesIO(HEADER + data))
    hidden = ("run", "ordinal", "at")
    return [{name: v for name, v in row.items() if v is not None and name not in hidden} for row in rows]


def state(accepted: list[int], **more: Any) -> dict[str, Any]:
    usual = {"role": "destination", "identifier": ONE, "state": "created", "accepted": accepted, "party": "address ::1"}
    return {**usual, "acks_to": ["anonymous", []], "behavior": "NoDiscard", "partition": 1, **more}


def delivered(number: int, offset: int, queue: str = "inbox", sequence: str = ONE) -> Batch:
    record = Record(sequence, number, "urn:x", b"<a/>", 5.0)
    return Batch(appends=[(queue, 1, offset, record)], sequences={ONE: state([1, number])}, homes={ONE: ("inbox", 1)})


def answer(*ranges: tuple[int, int], nacks: tuple[int, ...] = ()) -> Respond:
    acknowledgement = SequenceAcknowledgement(ONE, ranges, nacks)
    return Respond(BackChannel(object()), Envelope(SOAP.V1_2, acknowledgements=(acknowledgement,)))


def test_a_batch_tells_of_a_new_sequence_and_of_each_message_in_its_queue():
    one = collector()
    one.durable(delivered(1, 0))
    assert rows_of(one) == [
        {"event": "delivered", "sequence": ONE, "number": 1, "count": 1, "queue": "inbox", "partition": 1, "offset": 0}
        | {"since": 5.0},
        {"event": "created", "sequence": ONE, "partition": 1, "peer": "address ::1"}
        | {"detail": "exactly-once in-order, NoDiscard"},
    ]


def test_acknowledgements_are_told_as_what_is_new_in_them():
    one = collector()
    one.durable(delivered(1, 0))
    one.told(answer((1, 1)))
    one.durable(delivered(2, 1))
    one.told(answer((1, 2)))
    one.told(answer((1, 3), (5, 7)))
    one.told(answer((1, 3), (5, 7)))
    told = [row for row in rows_of(one) if row["event"] == "acknowledged"]
    assert [(row["number"], row["count"]) for row in told] == [(1, 1), (2, 2), (5, 3)]
    one.told(answer((1, 7)))
    assert [(row["number"], row["count"]) for row in rows_of(one)] == [(4, 1)]
    one.told(answer(nacks=(9,)))
    assert rows_of(one) == []


def test_what_is_acknowledged_before_it_is_durable_is_told_before_it():
    one = collector()
    one.told(answer((1, 1)))
    one.durable(delivered(1, 0))
    assert [row["event"] for row in rows_of(one)] == ["acknowledged", "delivered", "created"]


def test_held_messages_are_told_and_released_and_dropped():
    one = collector()
    record = Record(ONE, 2, "urn:x", b"<a/>", 5.0)
    one.durable(Batch(holds=[(ONE, 2, record), (ONE, 3, record)]))
    one.durable(Batch(releases=[(ONE, 2, "inbox", 1, 7, 9.0), (ONE, 2, "copy", 1, 8, 9.0)], drops=[(ONE, 3)]))
    assert [(row["event"], row["number"], row.get("offset"), row.get("since")) for row in rows_of(one)] == [
        ("held", 2, None, 5.0),
        ("held", 3, None, 5.0),
        ("delivered", 2, 7, 5.0),
        ("delivered", 2, 8, 5.0),
        ("discarded", 3, None, None),
    ]


def test_what_goes_into_no_queue_is_told_once_it_is_durable_that_it_is_accepted():
    """Else a file may begin between the two, and what is acknowledged in it would seem to be nowhere."""
    one = collector()
    one.told(NotQueued(ONE, 9, "marker"))
    one.durable(Batch(sequences={ONE: state([1, 8])}, homes={ONE: ("inbox", 1)}))
    assert [row["event"] for row in rows_of(one)] == ["created"]
    one.durable(Batch(sequences={ONE: state([1, 9])}))
    one.told(NotQueued(ONE, 9, "marker"))
    one.told(NotQueued(ONE, 10, "for no queue"))
    one.durable(Batch(sequences={ONE: None}))
    told = [(row["event"], row.get("number")) for row in rows_of(one)]
    assert told == [("not queued", 9), ("not queued", 9), ("not queued", 10), ("forgotten", None)]


def test_a_record_is_called_by_the_queue_that_it_comes_into():
    one = collector()
    for queue in ("dead-letters", "outbox/orders", "replies/urn:offer", "staging/7", "orders"):
        one.durable(Batch(appends=[(queue, 0, 4, Record("orders", 3, "urn:x", b"", 5.0))]))
    rows = rows_of(one)
    assert [row["count"] for row in rows] == [1, 1, 1, 3, 1]  # a block of rows says how many these are
    told = [(row["event"], row.get("key"), row.get("sequence"), row.get("number")) for row in rows]
    assert told == [
        ("given up", None, "orders", 3),
        ("submitted", "orders", None, None),
        ("submitted", "urn:offer", None, None),
        ("staged", None, "orders", None),
        ("delivered", None, "orders", 3),
    ]


def test_the_life_of_a_sequence_is_told_by_what_is_saved_of_it():
    one = collector()
    for saved in (
        state([]),
        state([1, 5]),
        state([1, 5], state="closed"),
        state([1, 5], state="terminated", gaps=[6, 8], last_fault="SequenceTerminated"),
        None,
    ):
        one.durable(Batch(sequences={ONE: saved}, homes={ONE: ("inbox", 1)}))
    assert [(row["event"], row.get("detail")) for row in rows_of(one)] == [
        ("created", "exactly-once in-order, NoDiscard"),
        ("closed", None),
        ("terminated", "missing 6-8, SequenceTerminated"),
        ("forgotten", None),
    ]
    one.durable(Batch(sequences={ONE: state([], state="terminated", last_fault="time is up")}))
    assert [row["event"] for row in rows_of(one)] == ["created", "expired"]


def test_handled_records_are_reported_as_ranges_and_so_is_a_new_beginning():
    one = collector()

    def done(*ranges: int) -> None:
        one.durable(Batch(cursors={("inbox", 1, "handler"): {"done": list(ranges)}}))

    done(1, 3)
    done(1, 3, 5, 5)
    done(1, 7)
    done(1, 2)
    done(1, 4)
    told = [(row["event"], row["offset"], row.get("count")) for row in rows_of(one)]
    assert told == [
        ("handled", 0, 3),
        ("handled", 4, 1),
        ("handled", 3, 1),
        ("handled", 5, 2),
        ("rewound", 2, None),
        ("handled", 2, 2),
    ]


def test_transmissions_in_a_row_are_one_event_and_each_repeat_is_one():
    one = collector()
    for number, attempt in ((1, 1), (2, 1), (3, 1), (2, 2), (4, 1)):
        envelope = Envelope(SOAP.V1_2, sequence=Sequence(ONE, number))
        one.told(Transmit("http://next/", envelope, "local", number, attempt))
    one.told(Acknowledged("forwarder/f/0", 10, 13, ONE, 1))
    told = [(row["event"], row["number"], row["count"], row.get("attempt")) for row in rows_of(one)]
    assert told == [
        ("transmitted", 1, 3, 1),
        ("retransmitted", 2, 1, 2),
        ("transmitted", 4, 1, 1),
        ("arrived", 1, 4, None),
    ]


def test_what_stands_is_what_was_durable_last():
    one = collector()
    one.recover(
        Snapshot(
            sequences={ONE: state([1, 4, 6, 6])},
            held={ONE: [6]},
            cursors={("inbox", 1, "handler"): {"done": [1, 2]}},
            homes={ONE: ("inbox", 1)},
        )
    )
    one.durable(delivered(7, 4))
    one.durable(Batch(releases=[(ONE, 6, "inbox", 1, 5, 9.0)]))
    rows_of(one)
    one.stand([])
    told = [(row["event"], row.get("number"), row.get("offset"), row["count"]) for row in rows_of(one)]
    assert told == [("handled stands", None, 0, 2), ("stands", 1, None, 7)]


def test_nothing_is_kept_of_an_outbox_after_its_queue_was_deleted():
    one = collector()
    before = entries(one)
    for key in ("to/http://client/", "urn:offer"):
        queue = f"replies/{key}"
        one.durable(Batch(cursors={(queue, 0, f"outbound/{key}"): {"to": "http://client/"}}))
        one.durable(Batch(deletes=[(queue, 0)]))
    assert entries(one) == before


def test_faults_and_incidents_are_told_in_a_few_words():
    one = collector()
    fault = Fault("SequenceClosed", "x" * 1_000, is_rm=True, identifier=ONE)
    one.told(Respond(BackChannel(object()), Envelope(SOAP.V1_2, fault=fault)))
    one.told(Incident("message.duplicate_dropped", ONE, 3, "debug"))
    one.told(Incident("gap", ONE, 3, "debug"))
    one.told(Incident("circuit open", level="warning", detail={"to": "http://next/"}))
    told = rows_of(one)
    assert [row["event"] for row in told] == ["fault sent", "duplicate", "incident"]
    assert told[0]["detail"].startswith("SequenceClosed: xxx")
    assert len(told[0]["detail"]) == 400
    assert told[2]["detail"] == 'circuit open {"to": "http://next/"}'


def test_every_event_that_is_told_is_described():
    import ast
    from pathlib import Path

    import holdfast.endpoint.journal.events as room

    tree = ast.parse(Path(room.__file__).read_text())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    texts |= set(LIFE.values())
    elsewhere = {"delivered", "given up", "staged", "submitted", "acknowledged", DAMAGED}
    assert EVENTS.keys() - elsewhere <= texts
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    given = [arg for call in calls if call.func.attr == "_row" for arg in call.args]
    said = {arg.value for arg in given if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    assert said <= EVENTS.keys()
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)
