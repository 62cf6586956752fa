"""Columns of many records at once are those of each record by itself: that decoder is the model.

Covers pipeline/reader/block_decoder.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from fake_server import block, record
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.client.errors import PipelineError
from holdfast.core.records import Record
from holdfast.pipeline.reader import block_decoder as decoding
from holdfast.pipeline.reader import columns
from holdfast.pipeline.reader.columns import BatchBuilder
from holdfast.store.records import decode_record, encode_record

CUTS = [0, 1, 31, 32, 255, 256, 65_535, 65_536]
"""Lengths at which MessagePack begins to write another way."""

texts = st.one_of(
    st.text(max_size=40),
    st.builds(lambda size, letter: letter * size, st.sampled_from(CUTS), st.sampled_from("aé€😀\0")),
)
optional = st.none() | texts
octets = st.builds(str.encode, texts)
times = st.floats(-1e11, 1e11) | st.sampled_from([0.0, -0.0, 1.7e9, 0.0000005])
numbers = st.integers(0, 2**63 - 1) | st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32])
records = st.builds(
    Record,
    sequence=texts,
    message_number=numbers,
    action=texts,
    body=octets,
    received_at=times,
    message_id=optional,
    to=optional,
    reply_to=optional,
    relates_to=optional,
    soap=texts,
    headers=octets,
    wants_reply=st.booleans(),
    released_at=st.none() | times,
    transport=st.binary(max_size=300),
)
ALL = frozenset(name for name, *_ in columns.COLUMNS)
OF_RECORDS = sorted(ALL - {"queue", "partition", "offset"})
subsets = st.just(ALL) | st.builds(
    lambda some: ALL & {*some, "offset"}, st.sets(st.sampled_from(OF_RECORDS), min_size=1)
)
LARGE_OR_NOT = [ALL, ALL - {"headers"}, ALL - {"body"}, ALL - {"headers", "body"}]
"""With these all texts of a record are columns, or octets to both ways: so damage is the same to both."""
damages = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3)


def built(first: int, encoded: list[bytes], names: frozenset[str]) -> pa.RecordBatch | str:
    """What these records come to: rows, or the error's text."""
    builder = BatchBuilder("orders", 3, names)
    try:
        (batch,) = builder.batches([block(first, encoded)])
    except PipelineError as error:
        return str(error)
    batch.validate(full=True)
    return batch


def compare(first: int, encoded: list[bytes], names: frozenset[str]) -> bool:
    """See that both ways give the same; whether all went at once."""
    went: list[bool] = []

    def watched(*asked: Any) -> Any:
        found = decoding_columns(*asked)
        went.append(found is not None)
        return found

    decoding_columns = decoding.columns_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "columns_of", watched)
        at_once = built(first, encoded, names)
        patch.setattr(decoding, "columns_of", lambda *_: None)
        one_by_one = built(first, encoded, names)
    assert type(at_once) is type(one_by_one)
    assert at_once == one_by_one
    if isinstance(at_once, pa.RecordBatch):
        assert at_once.schema.equals(columns.arrow_struct(columns.chosen(columns.COLUMNS, names)))
    return went == [True]


def test_the_fields_are_those_of_a_record_in_their_order():
    *usual, attachments, parameters, fault_to = [one.name for one in fields(Record)]
    assert [name for name, _ in decoding.FIELDS] == usual
    assert (attachments, parameters, fault_to) == ("attachments", "reference_parameters", "fault_to")
    encoded = encode_record(record(1))
    assert tuple(encoded[:2]) == decoding.BEGINNING
    assert len(msgspec.msgpack.decode(encoded)) == 1 + len(decoding.FIELDS)


@given(st.lists(records, min_size=1, max_size=8), subsets, st.integers(0, 2**40))
def test_whatever_records_there_are_all_go_at_once_and_give_the_same(
    some: list[Record], names: frozenset[str], first: int
):
    assert compare(first, [encode_record(one) for one in some], names)


def _of_format_1(one: Record) -> bytes:
    values = [getattr(one, field.name) for field in fields(Record)]
    return msgspec.msgpack.encode((1, *values[:12]))


def _with(name: str, value: Any) -> Callable[[Record], bytes]:
    """A record that holds something else in one field than records hold."""
    place = 1 + [field.name for field in fields(Record)].index(name)

    def encode(one: Record) -> bytes:
        values = msgspec.msgpack.decode(encode_record(one))
        values[place] = value
        return msgspec.msgpack.encode(values)

    return encode


NOT_UTF_8 = [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"a\x80"]
"""Never an octet, too long for what it says, half of a pair, beyond Unicode, cut short, a second without a first."""


@pytest.mark.parametrize(
    "odd",
    [
        _of_format_1,
        lambda one: encode_record(replace(one, attachments=b"parts")),
        lambda one: encode_record(one)[:-1],
        lambda one: encode_record(one) + b"\0",
        lambda one: encode_record(one).replace(b"\x9f\x02", b"\x9f\x03", 1),
        lambda one: b"\xdc\x00\x0f" + encode_record(one)[1:],
        lambda one: b"",
        lambda one: b"\x9f\x02",
        lambda one: b"\x9f\x02" + b"\xdb\xff\xff\xff\xff" * 20,
        lambda one: bytes(40),
        _with("sequence", None),
        _with("sequence", b"octets"),
        _with("message_number", -1),
        _with("message_number", 2**63),
        _with("message_number", "1"),
        _with("action", None),
        _with("body", "text"),
        _with("body", None),
        _with("received_at", 1_700_000_000),
        _with("received_at", None),
        _with("received_at", float("nan")),
        _with("received_at", float("inf")),
        _with("received_at", 9.22e12),
        _with("released_at", float("nan")),
        _with("released_at", -1e300),
        _with("message_id", 7),
        _with("soap", None),
        _with("headers", "text"),
        _with("wants_reply", None),
        _with("wants_reply", 1),
        _with("transport", "text"),
        *(_with("body", octets) for octets in NOT_UTF_8),
        *(_with("headers", octets) for octets in NOT_UTF_8),
        *((lambda one, odd=odd: encode_record(one).replace(b"urn:uuid", (odd * 8)[:8])) for odd in NOT_UTF_8),
        *((lambda one, odd=odd: encode_record(one).replace(b"urn:m:", (odd * 6)[:6])) for odd in NOT_UTF_8),
    ],
)
@pytest.mark.parametrize("names", [LARGE_OR_NOT[0], LARGE_OR_NOT[-1]])
def test_an_unusual_record_decodes_as_it_does_alone(odd: Callable[[Record], bytes], names: frozenset[str]):
    usual = [record(number, message_id=f"urn:m:{number}") for number in range(5)]
    encoded = [encode_record(one) for one in usual]
    for place in (0, 2, 4):
        compare(40, [*encoded[:place], odd(usual[place]), *encoded[place + 1 :]], names)


def test_a_text_that_claims_to_be_longer_than_its_record_is_not_read_beyond_it():
    whole = encode_record(record(1, "x" * 300))
    at = whole.index(b"\xc5\x01\x2c")  # bin 16 of 300 octets
    for claimed in (301, 0x7FFFFFFF, 0xFFFFFFFF):
        lies = whole[:at] + b"\xc6" + claimed.to_bytes(4, "big") + whole[at + 3 :]
        compare(0, [whole, lies], ALL)
        compare(0, [lies, whole], ALL)


def test_a_text_that_became_lists_in_lists_is_told_of_with_its_place():
    whole = encode_record(record(1))
    encoded = [whole, whole[:2] + b"\x91" * 100_000]
    for names in LARGE_OR_NOT:
        compare(40, encoded, names)
    assert "offset 41 cannot be read" in str(built(40, encoded, ALL))


@given(st.lists(records, min_size=1, max_size=4), damages, st.sampled_from(LARGE_OR_NOT))
@example([replace(record(1), sequence="")], [(0, 0)], ALL)
def test_of_records_with_octets_changed_both_ways_give_the_same(
    some: list[Record], damage: list[tuple[int, int]], names: frozenset[str]
):
    encoded = [bytearray(encode_record(one)) for one in some]
    for at, octet in damage:
        one = encoded[at % len(encoded)]
        # Mostly where a record begins, which is what tells how the rest of it lies.
        one[(at // 7) % min(len(one), 120)] = octet
    compare(0, [bytes(one) for one in encoded], names)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.sampled_from(LARGE_OR_NOT))
def test_of_garbage_both_ways_say_the_same(garbage: list[bytes], names: frozenset[str]):
    compare(0, [b"\x9f\x02" + one for one in garbage], names)
    compare(0, garbage, names)


def test_many_records_cut_into_blocks_anywhere_give_the_same_rows():
    chance = random.Random(5)
    encoded = [
        encode_record(record(number, "x" * chance.choice([0, 30, 300]), to=chance.choice([None, "http://b"])))
        for number in range(3000)
    ]
    whole = pa.Table.from_batches(BatchBuilder("q", 0, ALL).batches([block(0, encoded)]))
    for _ in range(3):
        cuts = sorted({0, 3000, *chance.sample(range(3000), 40)})
        blocks = [block(begin, encoded[begin:end]) for begin, end in pairwise(cuts)]
        table = pa.Table.from_batches(BatchBuilder("q", 0, ALL).batches(blocks))
        assert table.combine_chunks() == whole.combine_chunks()
    assert whole["message_number"].to_pylist() == [decode_record(one).message_number for one in encoded]


@given(st.lists(records, min_size=1, max_size=8), subsets)
def test_any_columns_are_the_same_columns_of_the_whole(some: list[Record], names: frozenset[str]):
    encoded = [encode_record(one) for one in some]
    whole, part = built(7, encoded, ALL), built(7, encoded, names)
    assert isinstance(whole, pa.RecordBatch)
    assert part == whole.select([name for name in whole.schema.names if name in names])


def test_a_text_that_is_no_column_is_not_even_looked_at():
    encoded = [encode_record(record(1)).replace(b"urn:uuid", b"\xffrn:uuid")]
    assert isinstance(built(0, encoded, frozenset({"message_number", "action"})), pa.RecordBatch)
    assert isinstance(built(0, encoded, frozenset({"sequence"})), str)
