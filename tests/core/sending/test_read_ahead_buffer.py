"""What an outbox has in memory: bounded in number and in bytes, whatever the sizes of the messages."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.policy import SourcePolicy
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.read_ahead_buffer import Here
from holdfast.core.states import SourceEvent
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
    source.available = len(sizes)
    source.mark = source.durable_mark = len(sizes) + 1
    return source, {offset: record(size) for offset, size in enumerate(sizes)}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50), st.booleans())))
def test_its_bytes_are_those_of_what_is_there(steps):
    here = Here()
    for offset, size, is_put in steps:
        if is_put:
            here.put(offset, record(size))
        else:
            here.drop(offset)
        assert here.bytes == sum(len(one.body) for one in here.values())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 20), st.integers(1, 400))
def test_of_what_it_is_told_to_keep_it_keeps_the_first_that_there_is_room_for(monkeypatch, sizes, most, room):
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_BYTES", room)
    here = Here()
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
