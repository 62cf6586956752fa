"""The numbers of one outbound Sequence."""

from __future__ import annotations

import pytest

from holdfast.core.messages import SequenceAcknowledgement
from holdfast.core.rm_source.message_numbers import MessageNumbers


def numbers(*, available: int = 5, sent: int = 0, limit: int = 99) -> MessageNumbers:
    made = MessageNumbers(limit)
    made.available, made.next = available, sent + 1
    return made


def test_a_sequence_is_full_when_its_limit_is_used_or_it_ends_at_a_cut() -> None:
    assert not numbers(sent=5).is_full
    assert numbers(sent=5, limit=5).is_full
    cut = numbers(sent=4)
    cut.is_cut = True
    assert not cut.is_full
    cut.next = 6
    assert cut.is_full


def test_the_last_number_leaves_only_when_the_end_may_be_told() -> None:
    ended = numbers()
    ended.last = 6
    assert (ended.highest_new(may_tell_last=False), ended.highest_new(may_tell_last=True)) == (5, 6)
    assert numbers(limit=3).highest_new(may_tell_last=True) == 3


def test_a_lowered_limit_takes_back_numbers_that_were_transmitted() -> None:
    lowered = numbers(sent=4)
    lowered.keep_sent()
    lowered.lower_limit(2)
    assert (lowered.limit, lowered.highest_sent, lowered.sent_before) == (2, 2, 4)
    lowered.lower_limit(9)
    assert lowered.limit == 2


@pytest.mark.parametrize(
    ("ranges", "nacks", "is_valid"),
    [
        (((1, 4),), (), True),
        (((1, 5),), (), False),
        (((0, 1),), (), False),
        (((3, 2),), (), False),
        ((), (4,), True),
        ((), (5,), False),
        ((), (0,), False),
    ],
)
def test_only_numbers_that_may_have_been_sent_are_acknowledged(
    ranges: tuple[tuple[int, int], ...], nacks: tuple[int, ...], is_valid: bool
) -> None:
    sent = numbers(sent=2)
    sent.sent_before = 4
    assert sent.may_be_acknowledged(SequenceAcknowledgement("urn:s", ranges, nacks=nacks)) is is_valid


def test_after_a_restore_it_takes_no_new_message_and_hears_of_known_numbers_only() -> None:
    restored = numbers(available=3)
    restored.restored()
    assert (restored.limit, restored.mark, restored.sent_before) == (3, 3, 3)
    known = restored.known_part(SequenceAcknowledgement("urn:s", ((1, 2), (3, 8), (9, 9)), nacks=(2, 7)))
    assert (known.ranges, known.nacks) == (((1, 2), (3, 3)), (2,))


def test_a_last_message_has_a_number_and_no_record() -> None:
    ended = numbers()
    assert ended.with_record(3) == 3
    ended.last = 6
    assert (ended.with_record(5), ended.with_record(6), ended.with_record(7), ended.end) == (5, 5, 5, 6)
