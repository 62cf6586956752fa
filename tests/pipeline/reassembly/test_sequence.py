"""Any history of a Sequence, in any order and any number of parts, comes to what an RM Destination makes of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.faults import MESSAGE_NUMBER_ROLLOVER, SEQUENCE_TERMINATED, UNKNOWN_SEQUENCE
from holdfast.core.messages import ANONYMOUS_EPR, MAX_MESSAGE_NUMBER, Fault
from holdfast.core.policy import DestinationPolicy
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_destination.destination import RMDestination, Verdict
from holdfast.core.states.inbound import DestinationEvent
from holdfast.core.versions import ALL_VERSIONS, RM, Versions
from holdfast.pipeline.reassembly.sequence import Heard, Reassembly, joined, refusal_of


@dataclass(frozen=True)
class History:
    """What was captured of one Sequence: the numbers in the order they lie there, and what was said of its end."""

    numbers: list[int]
    last: int | None
    closed: bool
    terminated: bool


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any loss, any doubling, any order."""
    size = draw(st.integers(0, 30))
    numbers = draw(st.lists(st.integers(1, max(size, 1)), max_size=60)) if size else []
    last = draw(st.none() | st.just(size or None) | st.integers(1, 40))
    return History(numbers, last, draw(st.booleans()), draw(st.booleans()))


def as_a_destination(history: History, versions: Versions) -> tuple[list[int], list[tuple[int, int]]]:
    """The numbers that the endpoint's own RMDestination releases, in their order, and those it misses at the end: it
    hears every message, and then the end."""
    destination = RMDestination("urn:s", versions, ANONYMOUS_EPR, DestinationPolicy(buffer=1_000, max_ranges=1_000), 0)
    released: list[int] = []
    for number in history.numbers:
        if destination.receive(number, False, 0.0) is Verdict.NEW:
            if not destination.hold(number):
                destination.released(number)
                released.append(number)
            released += destination.release()
    if history.closed:
        destination.handle(DestinationEvent.CLOSE_SEQUENCE)
    if history.terminated:
        destination.handle(DestinationEvent.TERMINATE_SEQUENCE)
    else:
        destination.handle(DestinationEvent.EXPIRED)
    settled = destination.end(history.last)
    assert settled is not None
    rest, discarded, gaps = settled
    assert not discarded
    return released + rest, gaps


def reassembled(history: History, rm: RM, parts: list[int], *, restored: bool) -> tuple[list[int], Reassembly]:
    """The numbers in the order of their release, with a restart between the parts if that is wanted."""
    one = Reassembly("urn:s", rm)
    released: list[int] = []
    one.heard.last(history.last)
    one.heard.closed, one.heard.terminated = history.closed, history.terminated
    for place, number in enumerate(history.numbers):
        verdict = one.receive(number)
        assert verdict is (Verdict.DUPLICATE if number in history.numbers[:place] else Verdict.NEW)
        one.heard.seen += 1
        if place in parts:
            released += _numbers([one.release()])
            if restored:
                one = Reassembly.from_state("urn:s", rm, one.to_state())
    released += _numbers([one.release()])
    return released + _numbers([*one.settle()]), one


def _numbers(ranges: list[tuple[int, int] | None]) -> list[int]:
    return [number for pair in ranges if pair is not None for number in range(pair[0], pair[1] + 1)]


@given(history=histories(), parts=st.lists(st.integers(0, 60), max_size=5), restored=st.booleans())
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_it_releases_and_misses_what_the_endpoint_does_and_what_a_plain_model_does(
    history: History, parts: list[int], restored: bool, versions: Versions
) -> None:
    released, one = reassembled(history, versions.rm, parts, restored=restored)
    standing = one.standing()
    assert (released, list(standing.missing)) == as_a_destination(history, versions)
    had = set(history.numbers)
    assert released == sorted(had)
    upper = history.last or max(had, default=0)
    assert _numbers([*standing.missing]) == sorted(set(range(1, upper + 1)) - had)
    assert _numbers([*standing.beyond_last]) == sorted(number for number in had if number > upper)
    assert (standing.seen, standing.numbers) == (len(history.numbers), len(had))


@given(history=histories(), seed=st.integers(0, 2**32))
def test_the_order_of_a_capture_and_where_it_is_cut_change_nothing(history: History, seed: int) -> None:
    other = random.Random(seed).sample(history.numbers, len(history.numbers))
    turned = History(other, history.last, history.closed, history.terminated)
    here, there = (reassembled(one, RM.V1_1, [seed % 7], restored=False) for one in (history, turned))
    assert (here[0], here[1].standing()) == (there[0], there[1].standing())
    at_once = Reassembly("urn:s", RM.V1_1)
    for lower, upper in joined((number, number) for number in history.numbers):
        at_once.had(lower, upper)
    at_once.heard = here[1].heard
    assert at_once.standing() == here[1].standing()


pairs = st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)))
heard = st.builds(
    Heard,
    st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
    *[st.booleans()] * 4,
    st.just(0),
    st.just(0),
    st.sets(st.sampled_from("abc")),
)


@given(parts=st.lists(st.tuples(heard, st.integers(-1, 9), pairs)))
def test_what_is_heard_in_parts_is_heard_whole_in_any_order_and_kept(
    parts: list[tuple[Heard, int, list[tuple[int, int]]]],
) -> None:
    def whole(pieces: list[tuple[Heard, int, list[tuple[int, int]]]]) -> list[object]:
        total = Heard()
        for piece, last, ranges in pieces:
            part = Heard.from_state(piece.to_state())
            part.last(last)
            part.acknowledge(ranges)
            total.update(part)
        assert Heard.from_state(total.to_state()).to_state() == total.to_state()
        return total.to_state()

    assert whole(parts) == whole(parts[::-1])


ranges = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)).map(lambda pair: (pair[0], sum(pair))))


@given(ranges)
def test_ranges_joined_at_once_are_those_added_one_by_one(some: list[tuple[int, int]]) -> None:
    assert joined(some) == AcknowledgementRanges(some)


@pytest.mark.parametrize(("rm", "terminated"), [(RM.V1_0, False), (RM.V1_1, False), (RM.V1_1, True)])
def test_what_comes_after_it_is_settled_is_refused_and_counted(rm: RM, terminated: bool) -> None:
    one = Reassembly("urn:s", rm)
    one.heard.terminated = terminated
    assert one.receive(3) is Verdict.NEW
    assert one.release() is None
    assert one.settle() == ((3, 3),)
    assert one.settle() == ()
    one = Reassembly.from_state("urn:s", rm, one.to_state())
    late = one.receive(1)
    assert isinstance(late, Fault) and late.code == (SEQUENCE_TERMINATED if terminated else UNKNOWN_SEQUENCE)
    assert one.receive(3) is Verdict.DUPLICATE
    assert one.standing().late == 1
    assert one.standing().missing == ((1, 2),)


def test_what_its_destination_acknowledged_and_the_capture_lacks_is_told_apart() -> None:
    one = Reassembly("urn:s", RM.V1_1)
    one.had(1, 3)
    one.heard.acknowledge([(1, 5), (0, 7), (9, 8), (1, 2**64)])
    standing = one.standing()
    assert (standing.state, standing.missing, standing.not_captured) == ("incomplete", (), ((4, 5),))


def test_a_tail_is_known_by_the_last_number_and_else_unknown() -> None:
    one = Reassembly("urn:s", RM.V1_0)
    one.had(1, 3)
    assert (one.standing().state, one.standing().last_message_number) == ("tail unknown", None)
    one.heard.last(3)
    assert (one.standing().state, one.standing().last_message_number) == ("complete", 3)
    one.heard.last(5)
    standing = one.standing()
    assert (standing.state, standing.missing, standing.lowest_last) == ("incomplete", ((4, 5),), 3)


def test_a_number_above_the_limit_is_refused_and_ends_nothing() -> None:
    refused = refusal_of(MAX_MESSAGE_NUMBER + 1)
    assert refused is not None and refused.code == MESSAGE_NUMBER_ROLLOVER
    assert refusal_of(MAX_MESSAGE_NUMBER) is None
    one = Reassembly("urn:s", RM.V1_0)
    assert one.receive(MAX_MESSAGE_NUMBER) is Verdict.NEW
    assert one.receive(1) is Verdict.NEW


def test_acknowledgements_of_a_liar_are_joined_in_good_time() -> None:
    """Twenty thousand ranges, the highest first: joined one by one each would move all that there are."""
    liar = Heard()
    for number in range(40_000, 0, -2):
        liar.acknowledge([(number, number)])
    assert len(liar.acknowledged) == 20_000
