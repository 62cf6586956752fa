"""Records, states and keys as bytes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.records import Record
from holdfast.exceptions import StoreFormatError
from holdfast.store import records as layout

texts = st.text(max_size=20)
maybe = st.none() | texts
any_record = st.builds(
    Record,
    texts,
    st.integers(0, 2**63 - 1),
    texts,
    st.binary(max_size=200),
    st.floats(0, 1e11),
    maybe,
    maybe,
    maybe,
    maybe,
    st.sampled_from(["1.1", "1.2"]),
    st.binary(max_size=50),
    st.booleans(),
    st.none() | st.floats(0, 1e11),
    st.binary(max_size=50),
)
with_attachments = st.builds(lambda record, data: replace(record, attachments=data), any_record, st.binary(min_size=1))
with_references = st.builds(
    lambda record, parameters, fault_to: replace(record, reference_parameters=tuple(parameters), fault_to=fault_to),
    any_record | with_attachments,
    st.lists(st.binary(max_size=20), max_size=3),
    st.none() | st.tuples(texts, st.lists(st.binary(max_size=20), max_size=2).map(tuple)),
)
numbers = st.integers(0, 2**64 - 1)


@given(any_record | with_attachments | with_references)
def test_a_record_comes_back_as_it_was(record):
    assert layout.decode_record(layout.encode_record(record)) == record


def test_a_record_starts_with_its_format():
    data = layout.encode_record(Record("urn:s", 1, "a", b"", 0.0))
    assert msgspec.msgpack.decode(data)[0] == layout.RECORD_FORMAT


@given(with_attachments, st.frozensets(st.sampled_from(sorted(layout.LARGE_FIELDS))))
def test_attachments_are_emptied_with_the_body_and_a_record_with_both_stays_whole(record, names):
    (emptied,) = layout.emptied([layout.encode_record(record)], names)
    without = replace(record, attachments=b"", **dict.fromkeys(names, b""))
    assert layout.decode_record(emptied) == (without if "body" in names else record)


@given(with_references)
def test_a_record_with_references_stays_whole(record):
    data = layout.encode_record(record)
    if record.reference_parameters or record.fault_to is not None:
        assert layout.emptied([data], layout.LARGE_FIELDS) == [data]


@given(any_record, st.floats(0, 1e11))
def test_a_released_record_says_when_it_was_delivered_and_is_else_the_same(record, now):
    released = layout.decode_record(layout.release_record(layout.encode_record(record), now))
    assert released.delivered_at == now
    assert replace(released, released_at=record.released_at) == record


@given(st.lists(any_record, max_size=4), st.frozensets(st.sampled_from(sorted(layout.LARGE_FIELDS))))
def test_fields_that_are_emptied_are_empty_and_all_else_is_as_it_was(records, names):
    emptied = layout.emptied([layout.encode_record(record) for record in records], names)
    assert emptied == [layout.encode_record(replace(record, **dict.fromkeys(names, b""))) for record in records]


@given(any_record, st.binary(max_size=30), st.integers(0, 60))
def test_what_is_no_record_as_they_are_written_now_is_not_emptied(record, garbage, at):
    data = layout.encode_record(record)
    older = msgspec.msgpack.encode([1, *msgspec.msgpack.decode(data)[1:13]])
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(data), None])
    no_text = data.replace(data[2:3], b"\xa1\xff", 1) if data[2] == 0xA0 else data[:-1]
    deep = data[:2] + b"\x91" * 100_000
    odd = [garbage, older, longer, no_text, deep, data[: at % len(data)], data + b"\0"]
    assert layout.emptied(odd, layout.LARGE_FIELDS) == odd


def test_a_record_of_a_newer_format_is_refused_by_name():
    data = msgspec.msgpack.encode([layout.REFERENCES_FORMAT + 1, "urn:s", "new field"])
    with pytest.raises(StoreFormatError, match="format 5"):
        layout.decode_record(data)


DEEP = b"\x91" * 100_000
"""A list in a list in a list: deeper than any decoder goes."""


@pytest.mark.parametrize("data", [b"", b"\x01", b"\xc1", b"\x92\x01", msgspec.msgpack.encode([1, 2]), b"\x90", DEEP])
def test_bytes_that_are_no_record_are_refused(data):
    with pytest.raises(StoreFormatError):
        layout.decode_record(data)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", b"\x90", b"\xa1\xff", DEEP])
def test_bytes_that_are_no_state_are_refused(data):
    with pytest.raises(StoreFormatError):
        layout.decode_state(data)


def test_a_partition_entry_comes_back_and_damage_is_refused():
    assert layout.decode_entry(layout.encode_entry(7, 2**64 - 1)) == (7, 2**64 - 1)
    with pytest.raises(StoreFormatError):
        layout.decode_entry(b"short")


@given(texts, numbers, numbers, numbers)
def test_keys_of_one_partition_sort_by_offset_and_end_before_the_prefix_end(queue, partition, a, b):
    prefix = layout.partition_key(layout.RECORD, queue, partition)
    first, second = prefix + layout.number(a), prefix + layout.number(b)
    assert (first < second) == (a < b)
    assert max(first, second) < prefix + layout.PREFIX_END
    assert layout.last_number(first) == a


@given(texts, numbers, texts)
def test_a_key_gives_back_what_it_was_made_of(queue, partition, name):
    key = layout.partition_key(layout.CURSOR, queue, partition) + name.encode()
    assert layout.split_partition_key(key) == (queue, partition, name.encode())
    assert layout.key_name(layout.name_key(layout.SEQUENCE, name)) == name


@given(texts, texts, numbers)
def test_no_prefix_of_one_name_is_one_of_another(one, other, number):
    if one != other:
        key = layout.name_key(layout.HELD, other) + layout.number(number)
        assert not key.startswith(layout.name_key(layout.HELD, one))
