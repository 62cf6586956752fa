"""Numbers of the whole endpoint: each names one thing of one worker, and more workers change none of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queues.queue import Queue
from holdfast.endpoint.admin.numbering import LETTERS, Numbering
from holdfast.endpoint.admin.routes import Refused

WORKERS, SIZES = st.integers(1, 8), st.integers(1, 8)


@given(workers=WORKERS, size=SIZES, data=st.data())
def test_each_offset_is_owned_by_one_worker_and_keeps_its_number(workers: int, size: int, data: st.DataObject) -> None:
    offsets = data.draw(st.dictionaries(st.integers(0, workers * size - 1), st.integers(0, 99)))
    answered: dict[str, int] = {}
    for numbers in (Numbering(worker, workers, size) for worker in range(workers)):
        part = numbers.numbered(numbers.owned(offsets))
        assert not part.keys() & answered.keys()
        assert all(numbers.owner(number) == numbers.worker for number in part)
        assert all(numbers.partition(numbers.find(number)) == int(number) for number in part)
        answered |= part
    assert answered == {str(number): offset for number, offset in offsets.items()}


@given(workers=WORKERS, more=st.integers(0, 3), size=SIZES, data=st.data())
def test_a_partition_keeps_its_number_when_there_are_more_workers(
    workers: int, more: int, size: int, data: st.DataObject
) -> None:
    worker, own = data.draw(st.integers(0, workers - 1)), data.draw(st.integers(0, size - 1))
    now, later = Numbering(worker, workers, size), Numbering(worker, workers + more, size)
    assert now.partition(own) == later.partition(own)
    assert now.owner(str(now.partition(own))) == later.owner(str(now.partition(own))) == worker


@pytest.mark.parametrize("wrong", ["4", "-1", "x", "", "١", "99999999999999999999"])
def test_a_partition_that_no_worker_has_is_refused(wrong: str) -> None:
    numbers = Numbering(0, 2, 2)
    for find in (numbers.find, numbers.owner):
        with pytest.raises(Refused) as refused:
            find(wrong)
        assert refused.value.status == 404
    with pytest.raises(Refused) as refused:
        numbers.owned({4: 1})
    assert refused.value.status == 400


def test_a_worker_does_not_find_the_partition_of_another() -> None:
    assert Numbering(1, 2, 2).find("3") == 1
    with pytest.raises(Refused, match="the partition 1 does not exist"):
        Numbering(1, 2, 2).find("1")


def test_letters_and_messages_have_names_of_their_own_in_each_worker() -> None:
    first, third = Numbering(0, 3, 4), Numbering(2, 3, 4)
    assert (first.letter(7), third.letter(7)) == (7, 2 * LETTERS + 7)
    assert (third.owner_of_letter(str(third.letter(7))), third.own_letter(third.letter(7))) == (2, 7)
    assert first.owner_of_letter("7") == first.owner_of_letter("9000000000001") == first.owner_of_letter("x") == 0
    assert first.mark("http://a/:1/9") == "http://a/:1/9"
    assert third.mark("http://a/:1/9") == "2:http://a/:1/9"
    assert third.own_name("2:http://a/:1/9") == first.own_name("http://a/:1/9") == "http://a/:1/9"
    assert (first.owner_of_name("2:http://a/:1/9"), first.owner_of_name("http://a/:1/9")) == (2, 0)


def test_the_cursor_of_an_outbox_is_that_of_one_worker() -> None:
    own, first, third = "outbound/forwarder/next/1", Numbering(0, 3, 4), Numbering(2, 3, 4)
    assert (first.cursor(own), third.cursor(own)) == (own, "outbound/2:forwarder/next/1")
    for numbers, other in ((first, third), (third, first)):
        assert numbers.own_cursor(numbers.cursor(own)) == own
        assert numbers.own_cursor(other.cursor(own)) is None
        assert numbers.cursor("audit") == numbers.own_cursor("audit") == "audit"
    assert third.describe_cursor({"name": own, "offsets": {1: 7}}) == {"name": third.cursor(own), "offsets": {"9": 7}}


def test_a_queue_with_fewer_partitions_is_numbered_by_its_own() -> None:
    numbers = Numbering(2, 3, 4).of(Queue("dead-letters", 1))
    assert numbers.bounds(Queue("dead-letters", 1)) == {"2": {"first": 0, "end": 0}}
    assert numbers.describe_cursor({"name": "audit", "offsets": {0: 1}}) == {"name": "audit", "offsets": {"2": 1}}


def test_a_server_without_workers_numbers_as_its_store_does() -> None:
    numbers = Numbering(0, 1, 4)
    assert numbers.owned({0: 1, 3: 2}) == {0: 1, 3: 2}
    assert (numbers.letter(5), numbers.mark("a/1"), numbers.describe_row({"partition": 2})) == (
        5,
        "a/1",
        {"partition": 2},
    )
