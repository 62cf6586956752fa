"""What an outbox has in memory: bounded in number and in bytes, whatever the sizes of the messages."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.policy import SourcePolicy
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.read_ahead_buffer import Buffers, Here, size_of
from holdfast.core.states.outbound import SourceEvent
from holdfast.core.versions import Versions


def record(size: int) -> Record:
    return Record("key", 0, "urn:a", b"x" * size, 0.0)


def opened(sizes: list[int], **policy: Any) -> tuple[RMSource, dict[int, Record]]:
    """A granted Sequence with a message of each size, and their records by offset."""
    source = RMSource("urn:local", "key", Versions("1.1"), SourcePolicy(initial_window=64, window=64, **policy), 0.0)
    source.create(0.0)
    source.request_to_send(0.0, 0.0)
    assert source.created("urn:s", None, 0.0)
    source.handle(SourceEvent.GRANT_DURABLE)
    source.numbers.available = len(sizes)
    source.numbers.mark = source.numbers.durable_mark = len(sizes) + 1
    return source, {offset: record(size) for offset, size in enumerate(sizes)}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50), st.booleans())))
def test_its_bytes_are_those_of_what_is_there(steps):
    here = Here("k", Buffers())
    for offset, size, is_put in steps:
        if is_put:
            here.put(offset, record(size))
        else:
            here.drop(offset)
        assert here.bytes == sum(size_of(one) for one in here.values())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 20), st.integers(1, 400))
def test_of_what_it_is_told_to_keep_it_keeps_the_first_that_there_is_room_for(monkeypatch, sizes, most, room):
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_BYTES", room)
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.RECORD_BYTES", 0)
    here = Here("k", Buffers())
    for offset, size in enumerate(sizes):
        here.put(offset, record(size))
    here.keep(range(len(sizes)), most)
    assert list(here) == list(range(len(here)))
    assert len(here) <= most
    assert here.bytes == sum(sizes[: len(here)]) <= room
    full = len(here) == min(most, len(sizes)) or here.bytes + sizes[len(here)] > room
    assert full, "there was room for one more"


@given(st.lists(st.integers(0, 100), min_size=1, max_size=64), st.integers(1, 300))
def test_what_is_in_flight_is_bounded_in_bytes_and_one_message_always_goes(sizes, window_bytes):
    source, here = opened(sizes, window_bytes=window_bytes)
    sent = 0
    while sent < len(sizes):
        numbers = source.numbers_to_send(0.0, here)
        assert numbers, "it stands still"
        assert source.flight.bytes == sum(sizes[number - 1] for number in numbers)
        assert source.flight.bytes <= window_bytes or len(numbers) == 1
        for number in numbers:
            source.flight.left(number, 1.0)
            source.flight.remove(number)
        sent += len(numbers)
    assert source.flight.bytes == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 50))), st.integers(1, 100))
def test_outboxes_that_read_longest_ago_make_room_for_others(monkeypatch, steps, most):
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_OF_ALL", most)
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.RECORD_BYTES", 0)
    buffers = Buffers()
    heres = [Here(f"k{n}", buffers) for n in range(6)]
    by_age: list[int] = []
    for which, offset, size in steps:
        before = [dict(here) for here in heres]
        heres[which].put(offset, record(size))
        heres[which].has_read()
        by_age = [one for one in by_age if one != which] + [which]
        assert buffers.bytes == sum(here.bytes for here in heres)
        assert buffers.bytes <= most or [here for here in heres if here.bytes] == [heres[which]]
        lost = [one for one in by_age if one != which and before[one] and not heres[one]]
        assert lost == [one for one in by_age if before[one] and one != which][: len(lost)], "the oldest first"


def test_what_comes_just_now_takes_no_room_from_what_was_read(monkeypatch):
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_OF_ALL", 10_000)
    buffers = Buffers()
    first, second = Here("a", buffers), Here("b", buffers)
    first.put(0, record(10_000))
    assert first.is_full
    assert second.is_full
    first.release()
    assert buffers.bytes == 0
    assert not second.is_full
