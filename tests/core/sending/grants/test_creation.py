"""A peer that ends the connection where it should refuse a version: the next version is tried after a few times."""

from __future__ import annotations

import pytest
from sending import NEW, OLD, Sending

from holdfast.core.events import Transmit
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse
from holdfast.core.sending.grants.creation import MOST_CUT
from holdfast.core.versions import Versions


def asked(sending: Sending, count: int, *, has_left: bool = True) -> list[Versions]:
    """The versions of so many CreateSequences, of which none has an answer."""
    found = []
    for _ in range(count):
        create = next_creation(sending)
        found.append(Versions(create.envelope.rm or "", create.envelope.addressing or "", create.envelope.soap))
        sending.protocol.failed(create, sending.now, "the connection was cut", has_left=has_left)
        if has_left:
            sending.protocol.outbound.creation.cut(create, sending.now)
    return found


def next_creation(sending: Sending) -> Transmit:
    for _ in range(100):
        taken = sending.take()
        if taken:
            (create,) = taken
            assert isinstance(create.envelope.control, CreateSequence)
            return create
        sending.now += 0.5
    raise AssertionError("no CreateSequence in 50 s")


def opened(*choices: tuple[Versions, bool]) -> Sending:
    sending = Sending()
    sending.choices = [*choices]
    sending.submit(sending.open(), "1")
    return sending


def test_after_a_few_connections_without_an_answer_the_next_version_is_tried() -> None:
    sending = opened((NEW, True), (NEW, False), (OLD, True), (OLD, False))
    assert asked(sending, MOST_CUT + 1) == [NEW] * MOST_CUT + [OLD]
    create = next_creation(sending)
    assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
    sending.answer(create, control=CreateSequenceResponse("urn:s", accept_acks_to=ANONYMOUS_EPR))
    assert [one.number for one in sending.take()] == [1]


def test_each_version_is_tried_once_and_then_the_first_is_repeated() -> None:
    sending = opened((NEW, False), (OLD, False))
    assert asked(sending, 4 * MOST_CUT) == [NEW] * MOST_CUT + [OLD] * MOST_CUT + [NEW] * 2 * MOST_CUT
    assert sending.stopped == []


@pytest.mark.parametrize("choices", [((NEW, True), (NEW, False)), ((OLD, False),)])
def test_where_one_version_is_told_no_other_is_tried(choices: tuple[tuple[Versions, bool], ...]) -> None:
    sending = opened(*choices)
    assert asked(sending, 3 * MOST_CUT) == [choices[0][0]] * 3 * MOST_CUT


def test_a_peer_that_is_not_there_is_asked_in_the_same_version() -> None:
    sending = opened((NEW, False), (OLD, False))
    assert asked(sending, 3 * MOST_CUT, has_left=False) == [NEW] * 3 * MOST_CUT


def test_a_grant_begins_the_count_again() -> None:
    sending = opened((NEW, False), (OLD, False))
    assert asked(sending, MOST_CUT - 1) == [NEW] * (MOST_CUT - 1)
    sending.answer(next_creation(sending), control=CreateSequenceResponse("urn:s"))
    assert next(iter(sending.protocol.outbound.outboxes.values())).lifecycle.cut_creations == 0
