"""Rows as writers send them: read, and each looked at: whatever passes can be sent."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged import unpacked

from holdfast.core.messages import Envelope, Sequence
from holdfast.core.records import Record
from holdfast.core.versions import Versions
from holdfast.endpoint.admin.data_plane.rows import COLUMNS, MOST_ROWS, CutOff, RowReader, RowRefused, rows_of
from holdfast.wire import DEFAULT, decode, encode

ACTION = "urn:test:submit"
READER = RowReader(["inbox", "other"], {"http://partner.example/rm": "other"}, DEFAULT, "")


def row(body: Any = b"<a/>", key: Any = None, **other: Any) -> list[Any]:
    return [({"key": key, "action": ACTION, "body": body, "queue": "inbox"} | other).get(name) for name in COLUMNS]


def framed(rows: list[Any]) -> bytes:
    encoded = [one if isinstance(one, bytes) else msgspec.msgpack.encode(one) for one in rows]
    return b"".join(struct.pack(">I", len(one)) + one for one in encoded) + struct.pack(">IQ", 2**32 - 1, len(rows))


@dataclass
class Row:
    """A row that is taken, as it will be."""

    queue: str
    key_hash: int
    record: Record


def read(*rows: Any, reader: RowReader = READER) -> list[Row | RowRefused]:
    part = reader.read(framed(list(rows)), 5.0)
    taken, refused = (Row(*one) for one in unpacked(part.blocks)), dict(part.refused)
    found = [refused[number] if number in refused else next(taken) for number in range(len(rows))]
    assert not list(taken) and part.rows == len(rows) - len(refused)
    return found


def test_a_row_becomes_the_record_that_is_staged() -> None:
    given = row(b"<a/>", "k", headers=b"<h xmlns='urn:h'/>", message_id="urn:m", relates_to="urn:r", reply_to="urn:t")
    (one,) = read(given)
    assert isinstance(one, Row)
    record = one.record
    assert (one.queue, one.key_hash, record.action, record.body) == ("inbox", crc32(b"k"), ACTION, b"<a/>")
    assert (record.headers, record.message_id, record.relates_to) == (b"<h xmlns='urn:h'/>", "urn:m", "urn:r")
    assert (record.reply_to, record.received_at, record.wants_reply, record.to) == ("urn:t", 5.0, False, None)


def test_an_address_stands_for_the_queue_of_its_forwarder_and_a_queue_goes_before_it() -> None:
    address = "http://partner.example/rm"
    first, second = read(row(queue=None, to=address), row(queue="inbox", to="urn:anything"))
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert (first.queue, first.record.to, second.queue, second.record.to) == ("other", address, "inbox", "urn:anything")


def test_text_is_taken_for_bytes_and_a_row_without_a_queue_is_for_the_default_one() -> None:
    reader = RowReader(["inbox"], {}, DEFAULT, "inbox")
    (one,) = read(row("<a>\u00e9</a>", queue=None, headers="<h xmlns='urn:h'/>"), reader=reader)
    assert isinstance(one, Row)
    assert (one.record.body, one.record.headers) == ("<a>\u00e9</a>".encode(), b"<h xmlns='urn:h'/>")


def test_a_row_may_repeat_a_peers_message_id_and_the_addresses_of_a_record() -> None:
    for relates_to, reply_to in (("order 7", "anonymous"), ("7", "none"), ("urn:a", "http://reply.example/")):
        (one,) = read(row(relates_to=relates_to, reply_to=reply_to))
        assert isinstance(one, Row)
        assert (one.record.relates_to, one.record.reply_to) == (relates_to, reply_to)


BAD: list[tuple[Any, str, str]] = [
    (row(b"<a>"), "body", "one well-formed XML element"),
    (row(b"<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>"), "body", "document type"),
    (row(b"<a/><b/>"), "body", "one well-formed XML element"),
    (row("caf\u00e9"), "body", "one well-formed XML element"),
    (row(None), "body", "no body"),
    (row(b""), "body", "the body is empty"),
    (row(""), "body", "the body is empty"),
    (row(" \n"), "body", "the body is empty"),
    (row(7), "body", "a body must be text, bytes"),  # type: ignore[arg-type]
    (row(action=None), "action", "no action"),
    (row(action=""), "action", "empty"),
    (row(action="urn:a\nb"), "action", "not allowed in a URI"),
    (row(action="http://docs.oasis-open.org/ws-rx/wsrm/200702/CreateSequence"), "action", "WS-ReliableMessaging"),
    (row(headers=b"<h/>"), "headers", "no namespace"),
    (row(headers=b"<h"), "headers", "well-formed"),
    (row(headers=[1]), "headers", "not list"),
    (row(headers=b"<h xmlns='urn:h'>" + b"x" * 200_000 + b"</h>"), "headers", "room for"),
    (row(message_id=""), "message_id", "empty"),
    (row(message_id="order 7"), "message_id", "not an absolute IRI: it contains ' '"),
    (row(message_id="order-7"), "message_id", "not an absolute IRI: it has no scheme"),
    (row(reply_to="billing"), "reply_to", "not an absolute IRI"),
    (row(to="billing"), "to", "not an absolute IRI"),
    (row(action="Sub mit"), "action", "not an absolute IRI"),
    (row(relates_to=" urn:a"), "relates_to", "white space"),
    (row(queue="nowhere"), "queue", "the queue 'nowhere' does not exist"),
    (row(queue=None), "queue", "names neither a queue"),
    (row(queue=None, to="http://evil.example/"), "to", "no forwarder sends to http://evil.example/"),
    (row(key="k" * 2000), "key", "characters"),
    (row(key=3), "key", "cannot be read"),  # type: ignore[arg-type]
    (row(msgspec.Raw(b"\x91" * 100_000 + b"\x90")), "", "cannot be read"),  # type: ignore[arg-type]
    (row()[:5], "", "cannot be read"),
    ([*row(), 1], "", "cannot be read"),
    ("a row", "", "cannot be read"),
    ({"body": "<a/>"}, "", "cannot be read"),
]


@pytest.mark.parametrize(("bad", "column", "why"), BAD)
def test_a_row_that_cannot_be_sent_says_which_column_is_to_blame(bad: Any, column: str, why: str) -> None:
    before, one, behind = read(row(), bad, row())
    assert isinstance(before, Row)
    assert isinstance(behind, Row)
    assert isinstance(one, RowRefused)
    assert one.column == column
    assert why in one.message


def test_what_may_not_be_sent_anywhere_names_where_it_may() -> None:
    (one,) = read(row(queue=None, to="http://evil.example/"))
    assert isinstance(one, RowRefused)
    assert "http://partner.example/rm" in one.message


def test_rows_are_bounded_by_number_too_and_a_refused_one_keeps_nothing() -> None:
    """16 MB of empty rows took 3 GB of memory."""
    most = rows_of(framed([b""] * MOST_ROWS))
    assert len(most) == MOST_ROWS
    with pytest.raises(CutOff, match="more than 300,000 rows"):
        rows_of(framed([b""] * (MOST_ROWS + 1)))
    assert MOST_ROWS * len(framed([row(b"", queue=None, action="a")])[:-12]) > 4 << 20  # what our writers send
    refused = READER.read(framed([b"", row(None), row(b"no")]), 5.0).refused
    assert [error.__traceback__ for _, error in refused] == [None] * 3
    assert refused[0][1].remedy is READER.read(framed([b""]), 5.0).refused[0][1].remedy


def test_a_part_is_read_whole_or_not_at_all() -> None:
    whole = framed([row(), row()])
    assert len(rows_of(whole)) == 2
    assert rows_of(framed([])) == []
    for data in (*(whole[:end] for end in range(len(whole))), whole + b"\0", whole + whole, whole[:-1] + b"\x03"):
        with pytest.raises(CutOff):
            rows_of(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_refused(data: bytes) -> None:
    try:
        READER.read(data, 0.0)
    except CutOff:
        pass
    for one in read(data):
        assert isinstance(one, Row | RowRefused)


values = st.one_of(st.none(), st.text(max_size=30), st.binary(max_size=30), st.integers(), st.just(b"<a/>"))


@given(st.lists(values, min_size=9, max_size=9), st.sampled_from(range(9)))
def test_whatever_passes_can_be_written_into_an_envelope_and_read_from_it(wild: list[Any], place: int) -> None:
    tame = row(key="k", headers=b"<h xmlns='urn:h'/>", message_id="urn:m", relates_to="urn:r")
    tame[place] = wild[place]
    (one,) = read(tame)
    if isinstance(one, RowRefused):
        return
    versions, record = Versions(), one.record
    envelope = Envelope(versions.soap, versions.addressing, versions.rm, to="http://a.example/")
    envelope.sequence, envelope.action = Sequence("urn:s", 1), record.action
    envelope.message_id, envelope.relates_to = record.message_id, record.relates_to
    envelope.body, envelope.headers = record.body, (record.headers,) if record.headers else ()
    found = decode(encode(envelope))
    assert (found.action, found.message_id, found.relates_to) == (record.action, record.message_id, record.relates_to)
    assert found.body == record.body


def test_a_row_that_receivers_would_refuse_is_refused_when_it_is_staged() -> None:
    deep = b"<a>" * 63 + b"</a>" * 63
    uri = "urn:" + "a" * 2_045
    rows = [row(), row(deep), row(b"<a>" + deep.replace(b"a", b"b") + b"</a>"), row(action=uri), row(message_id=uri)]
    rows += [row(to=uri, queue=None), row(headers=b"<h:a xmlns:h='urn:h'>" + deep + b"</h:a>")]
    for _ in range(2):
        first, *found = read(*rows)
        assert isinstance(first, Row)
        columns = [one.column if isinstance(one, RowRefused) else None for one in found]
        assert columns == ["body", "body", "action", "message_id", "to", "headers"]
