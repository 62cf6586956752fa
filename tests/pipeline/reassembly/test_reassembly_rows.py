"""What the envelopes of a capture are, one by one.

Covers pipeline/reassembly/rows.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from captured import outcomes, wild_capture

from holdfast.core.messages import (
    CreateSequence,
    EndpointReference,
    Envelope,
    Fault,
    Offer,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.pipeline.reassembly import rows as reassembly_rows
from holdfast.pipeline.reassembly.rows import (
    CAPTURE,
    DECODED,
    MESSAGES,
    PLAIN,
    REFUSED,
    UNREADABLE,
    WHYS,
    Reader,
    decode_batches,
    first_of,
)
from holdfast.pipeline.reassembly.sequence import Heard
from holdfast.pipeline.spark.ddl import arrow_schema, record_batch
from holdfast.wire.encoding.envelopes import encode


def envelope(**values: Any) -> Envelope:
    return Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, to="http://x/", **{"action": "urn:a", **values})


def read(one: Envelope | bytes) -> Reader:
    reader = Reader()
    reader.read(one if isinstance(one, bytes) else encode(one), "here", 7, 9)
    return reader


@pytest.mark.parametrize("seed", range(10))
def test_every_envelope_of_a_wild_capture_is_a_message_a_report_or_unplaced(seed: int) -> None:
    capture = wild_capture(seed)
    reader = Reader()
    for one in capture:
        before = len(reader.messages), len(reader.unplaced)
        reader.read(*(one.content, one.source, one.position, one.captured_at))
        messages, unplaced = reader.messages[before[0] :], reader.unplaced[before[1] :]
        assert [(*message[:3], message[10], message[14]) for message in messages] == (
            [(*one.key, one.number, one.body, one.marker)] if one.key and one.number else []
        )
        assert [row[0] for row in unplaced] == ([one.why] if one.why else [])
    expected = outcomes(capture)
    assert reader.heard.keys() == expected.keys()
    for key, outcome in expected.items():
        heard = reader.heard[key]
        assert (heard.seen, heard.highest_last) == (outcome.seen, outcome.last)
        told = {number for lower, upper in heard.acknowledged for number in range(lower, upper + 1)}
        assert told == outcome.acknowledged


@pytest.mark.parametrize("beside", [True, False])
def test_a_header_of_2003_03_ends_a_sequence_alone_or_beside_a_message(beside: bool) -> None:
    message = Envelope(SOAP.V1_1, Addressing.V2003_03, RM.V2003_03, action="urn:a", sequence=Sequence("urn:s", 1))
    message.body = b"<x/>"
    header = b"<wsrm:SequenceTerminate><wsu:Identifier>urn:s</wsu:Identifier></wsrm:SequenceTerminate></s:Header>"
    reader = read(encode(message).replace(b"</s:Header>", header))
    if not beside:
        ending = Envelope(SOAP.V1_1, Addressing.V2003_03, RM.V2003_03, control=TerminateSequence("urn:s"))
        reader = read(encode(ending))
    heard = reader.heard["urn:s", "2003/03"]
    assert heard.terminated
    assert (heard.seen, len(reader.messages), len(reader.unplaced)) == (int(beside), int(beside), 0)


def test_batches_for_spark_hold_all_of_it_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly_rows, "BATCH_ROWS", 7)
    monkeypatch.setattr(reassembly_rows, "_MOST_HEARD", 2)
    capture = wild_capture(3)
    schema = arrow_schema(CAPTURE)
    batches = [record_batch([one.row for one in capture[at : at + 10]], schema) for at in range(0, len(capture), 10)]
    table = pa.Table.from_batches(decode_batches(iter(batches)))
    assert table.schema == arrow_schema(DECODED)
    assert all(batch.num_rows < 30 for batch in table.to_batches())
    reader = Reader()
    for one in capture:
        reader.read(one.content, one.source, one.position, one.captured_at)
    rows = table.to_pylist()
    assert Counter(row["kind"] for row in rows if row["kind"] != "heard") == Counter(
        {"message": len(reader.messages), **Counter(row[0] for row in reader.unplaced)}
    )
    messages = [row for row in rows if row["kind"] == "message"]
    names = arrow_schema(MESSAGES).names
    for row, message in zip(messages, reader.messages, strict=True):
        values = [row[name] for name in names]
        expected = [value.decode() if isinstance(value, bytes) else value for value in message[:13]]
        assert values[:13] == expected and row["digest"] == message[15]
    total: dict[tuple[str, str], Heard] = {}
    for row in rows:
        if row["kind"] == "heard":
            part = Heard.from_state(msgspec.msgpack.decode(row["packed"]))
            total.setdefault((row["sequence"], row["rm"]), Heard()).update(part)
    assert {key: one.to_state() for key, one in total.items()} == {
        key: one.to_state() for key, one in reader.heard.items()
    }


def test_a_number_that_no_sequence_can_have_is_refused_as_an_rm_destination_would() -> None:
    reader = read(
        encode(envelope(sequence=Sequence("urn:s", 7), body=b"<x/>")).replace(b">7<", b">9223372036854775808<")
    )
    assert not reader.messages
    assert reader.unplaced[0][0] == REFUSED and "MessageNumberRollover" in reader.unplaced[0][1]
    assert reader.unplaced[0][2:5] == ("urn:s", "1.1", None)


def test_a_message_whose_action_and_body_contradict_each_other_is_refused() -> None:
    odd = envelope(sequence=Sequence("urn:s", 7), body=b"<x/>")
    odd.action = "http://docs.oasis-open.org/ws-rx/wsrm/200702/CreateSequence"
    assert read(odd).unplaced[0][0] == REFUSED


def test_what_is_not_understood_and_mandatory_does_not_keep_a_message_out() -> None:
    header = b'<x:sec xmlns:x="urn:x" xmlns:s="http://www.w3.org/2003/05/soap-envelope" s:mustUnderstand="1"/>'
    reader = read(envelope(sequence=Sequence("urn:s", 7), body=b"<x/>", headers=(header,)))
    assert reader.messages[0][9] == header


def test_faults_say_what_became_of_a_sequence_and_other_faults_are_plain() -> None:
    told = read(envelope(action="", fault=Fault("SequenceTerminated", "over", is_rm=True, identifier="urn:s")))
    assert told.heard["urn:s", "1.1"].faults == {"SequenceTerminated"} and not told.unplaced
    plain = read(envelope(action="", fault=Fault("Sender", "no")))
    assert plain.unplaced[0][0] == PLAIN and "Sender" in plain.unplaced[0][1]


def test_an_offer_is_a_sequence_and_an_acknowledgement_says_what_is_final() -> None:
    asked = envelope(action="", control=CreateSequence(EndpointReference("anonymous"), None, Offer("urn:o")))
    assert read(asked).heard["urn:o", "1.1"].created
    final = envelope(acknowledgements=(SequenceAcknowledgement("urn:s", ((1, 3),), (), True),))
    heard = read(final).heard["urn:s", "1.1"]
    assert heard.final and heard.acknowledged.as_pairs() == ((1, 3),)


def test_what_cannot_be_read_has_its_place_and_reason() -> None:
    ((why, problem, _, _, _, source, position, at, raw),) = read(b"<a>").unplaced
    assert (why, source, position, at, raw) == (UNREADABLE, "here", 7, 9, b"<a>") and problem
    assert why in WHYS


def test_of_several_the_first_is_the_one_that_was_captured_first_then_by_its_place() -> None:
    def at(time: int | None, source: str, position: int) -> tuple[Any, ...]:
        return (*[None] * 11, source, position, time, False, b"")

    rows = [at(2, "a", 1), at(1, "b", 1), at(1, "a", 2), at(1, "a", 1), at(None, "z", 9)]
    assert sorted(rows, key=first_of) == [rows[4], rows[3], rows[2], rows[1], rows[0]]
