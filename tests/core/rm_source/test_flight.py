"""What is in flight is found as if each were looked at, and is not looked at while nothing can have come of it."""

from __future__ import annotations

import math
from collections.abc import ItemsView

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from examples import examples
from holdfast.core.messages import SequenceAcknowledgement
from holdfast.core.policy import SourcePolicy
from holdfast.core.records import Record
from holdfast.core.rm_source.flight import Flight, InFlight
from holdfast.core.rm_source.source import RMSource
from holdfast.core.rm_source.transmissions import Transmissions
from holdfast.core.states.outbound import SourceEvent
from holdfast.core.versions import Versions

EVERY_RECORD = dict.fromkeys(range(10_000), Record("key", 0, "urn:a", b"<x/>", 0.0))
"""All are in memory."""


class Watched(Flight):
    """Counts the entries that are looked at."""

    __slots__ = ("looked_at",)

    def __init__(self) -> None:
        super().__init__()
        self.looked_at = 0

    def items(self) -> ItemsView[int, InFlight]:
        self.looked_at += len(self)
        return super().items()


class Flying(RuleBasedStateMachine):
    """Any order of what may happen, beside the same question answered by looking at every number."""

    def __init__(self) -> None:
        super().__init__()
        self.flight = Flight()
        self.unreplied: set[int] = set()
        self.number = 0
        self.now = 0.0

    @rule(wants_reply=st.booleans(), delay=st.floats(0.1, 3.0))
    def send_another(self, wants_reply: bool, delay: float) -> None:
        self.number += 1
        self.flight.begin(self.number, None, self.now)
        if wants_reply:
            self.unreplied.add(self.number)
        self._leave(self.number, delay)

    def _leave(self, number: int, delay: float) -> None:
        self.flight.left(number, self.now + delay)
        self.flight[number].exchanges += number in self.unreplied

    @precondition(lambda self: self.unreplied)
    @rule(data=st.data(), least=st.floats(0.0, 1.0))
    def an_exchange_ends(self, data: st.DataObject, least: float) -> None:
        number = data.draw(st.sampled_from(sorted(self.unreplied)))
        self.flight.ended(number, self.now + least)
        assert self.flight[number].exchanges >= 0

    @precondition(lambda self: self.flight)
    @rule(data=st.data())
    def something_comes_back(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(list(self.flight)))
        what = data.draw(st.sampled_from(["acknowledged", "refused", "behind a gap"]))
        if what == "acknowledged":
            assert self.flight.remove(number) is not None
            self.unreplied.discard(number)
        elif what == "refused":
            self.flight.hurry(self.flight[number], self.now + data.draw(st.floats(0.0, 1.0)))
        elif self.flight.lowest < number:
            self.flight.wait(number, self.flight.lowest, self.flight[number].due)

    @rule(seconds=st.floats(0.0, 2.0), leaves=st.integers(0, 3), delay=st.floats(0.1, 3.0))
    def time_passes(self, seconds: float, leaves: int, delay: float) -> None:
        self.now += seconds
        expected = self._due_by_looking()
        deadline = self.flight.deadline
        assert self.flight.due(self.now, self.unreplied) == expected
        assert not expected or (deadline is not None and deadline <= self.now)
        for number in expected[:leaves]:
            self.flight[number].waits_for = 0
            self._leave(number, delay)

    def _due_by_looking(self) -> list[int]:
        def due(number: int, entry: InFlight) -> float:
            if number in self.unreplied and entry.exchanges:
                return math.inf
            if not entry.waits_for or number in self.unreplied:
                return -math.inf if entry.waits_for and entry.waits_for not in self.flight else entry.due
            return math.inf if entry.waits_for in self.flight else -math.inf

        return [number for number, entry in sorted(self.flight.items()) if due(number, entry) <= self.now]

    @invariant()
    def lowest_and_oldest(self) -> None:
        assert self.flight.lowest == min(self.flight, default=0)
        assert self.flight.waiting_since == min((one.first_sent_at for one in self.flight.values()), default=None)


Flying.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
TestFlying = Flying.TestCase


def test_a_message_looks_at_as_many_others_whatever_the_window() -> None:
    looks = []
    for window in (8, 512):
        source = RMSource("urn:l", "", Versions(), SourcePolicy(window=window, initial_window=window), 0.0)
        source.create(0.0)
        source.created("urn:s", None, 0.0)
        source.handle(SourceEvent.GRANT_DURABLE)
        source.flight = flight = Watched()
        source.transmissions = Transmissions(flight, source.waiting, source.pace)
        source.numbers.available = source.numbers.durable_mark = 4 * window
        now = 0.0
        for number in range(1, 3 * window):
            now += 0.0001
            for one in source.numbers_to_send(now, EVERY_RECORD):
                source.sent(one, None, 0.0, now)
            source.deadline()
            source.time_event(now, is_for_replies=False)
            source.receive_acknowledgement(SequenceAcknowledgement("urn:s", ((1, number),)), now)
            source.transmissions.answered(number, 1.0, in_answers=True)
        assert len(flight) >= window - 1
        looks.append(flight.looked_at / (3 * window))
    assert looks == [0, 0]


def test_a_parked_number_is_not_repeated_when_its_exchange_fails_later() -> None:
    flight = Flight()
    flight.begin(1, None, 0.0)
    flight.left(1, 1.0)
    flight.park(1)
    flight.hurry(flight[1], 2.0)
    assert flight[1].is_parked and flight.due(3.0, {1}) == []
    flight.release(1, 4.0)
    assert flight.due(5.0, {1}) == [1]


def test_a_request_whose_reply_is_being_stored_needs_no_immediate_look() -> None:
    flight = Flight()
    flight.begin(1, None, 0.0)
    flight.begin_again(2, None, 0.0)
    assert flight.due(0.0, unreplied={2}, replying={2}) == [1]
    flight.left(1, 5.0)
    assert flight.deadline == 5.0
    assert flight.due(5.0, unreplied={2}) == [1, 2]
