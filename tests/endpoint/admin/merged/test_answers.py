"""Numbers and answers of several workers as one: nothing is another's, and nothing is lost."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Destination
from holdfast.endpoint.admin.application import Admin
from holdfast.endpoint.admin.merged.answers import (
    _BY_PARTITION,
    _LEAST,
    _MOST,
    _SUMS,
    epoch_of,
    is_places,
    merge,
    merge_metrics,
    owner_of_letter,
    owner_of_marked,
    owner_of_partition,
    renumber,
    split_offsets,
    split_places,
)
from holdfast.endpoint.admin.routes import Joined, Refused, Shape
from holdfast.endpoint.admin.shapes import (
    Bounds,
    Flight,
    ForwarderShown,
    Guess,
    JournalFile,
    LetterShown,
    LossShown,
    Message,
    SequenceShown,
    Waiting,
)

WORKERS, SIZES = st.integers(1, 8), st.integers(1, 8)


@given(workers=WORKERS, size=SIZES, data=st.data())
def test_offsets_split_among_workers_and_put_together_again_are_the_same(
    workers: int, size: int, data: st.DataObject
) -> None:
    partitions = st.integers(0, workers * size - 1)
    offsets = data.draw(st.dictionaries(partitions.map(str), st.integers(0, 99)))
    parts = [
        renumber({"offsets": part}, worker, size) for worker, part in enumerate(split_offsets(offsets, workers, size))
    ]
    assert merge(parts) == {"offsets": offsets}


@given(workers=WORKERS, more=st.integers(0, 3), size=SIZES, data=st.data())
def test_a_partition_keeps_its_number_when_there_are_more_workers(
    workers: int, more: int, size: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, workers * size - 1))
    assert owner_of_partition(str(number), workers, size) == owner_of_partition(str(number), workers + more, size)


def test_places_are_read_and_split() -> None:
    assert split_places("0:12:9f,3:4:,2:7:ab", 2, 2) == ["0:12:9f", "1:4:,0:7:ab"]
    assert not is_places("orders\nspark")
    for wrong in ("4:1", "99999999999:1"):
        with pytest.raises(Refused) as refused:
            split_places(wrong, 2, 2)
        assert refused.value.status == 400


@pytest.mark.parametrize("wrong", ["4", "-1", "x", "", "١", "99999999999999999999"])
def test_a_partition_that_is_not_there_is_nobodys(wrong: str) -> None:
    with pytest.raises(Refused) as refused:
        owner_of_partition(wrong, 2, 2)
    assert refused.value.status == 404


def test_letters_and_messages_are_called_by_numbers_that_are_one_workers_alone() -> None:
    letters = renumber({"dead_letters": [{"letter": 7}], "next": None}, 2, 4)["dead_letters"]
    assert owner_of_letter(str(letters[0]["letter"]), 3) == (2, "7")
    assert owner_of_letter("7", 3) == (0, "7")
    assert owner_of_letter("9000000000001", 3) == (0, "9000000000001")
    message = renumber({"message": "http://a/:1/9"}, 1, 4)["message"]
    assert owner_of_marked(message, 2) == (1, "http://a/:1/9")
    assert owner_of_marked("http://a/:1/9", 2) == (0, "http://a/:1/9")


def test_a_queue_of_fewer_partitions_is_numbered_by_its_own() -> None:
    letters = {"name": "dead-letters", "partitions": {"0": {"first": 0, "end": 3}}, "cursors": [{"offsets": {"0": 1}}]}
    shown = renumber({"queues": [letters]}, 2, 4)["queues"][0]
    assert shown["partitions"] == {"2": {"first": 0, "end": 3}}
    assert shown["cursors"] == [{"offsets": {"2": 1}}]


def test_answers_become_one_field_by_field() -> None:
    one = {"name": "inbox", "records": 3, "age": 2.0, "bytes": None, "idle": 5.0, "cursors": [{"name": "a", "lag": 1}]}
    two = {"name": "inbox", "records": 4, "age": 9.0, "bytes": 10, "idle": None, "cursors": [{"name": "a", "lag": 2}]}
    two["cursors"].append({"name": "b", "lag": 3})
    assert merge([one, two]) == {
        "name": "inbox",
        "records": 7,
        "age": 9.0,
        "bytes": None,
        "idle": 5.0,
        "cursors": [{"name": "a", "lag": 3}, {"name": "b", "lag": 3}],
    }
    assert merge([{"sequences": [1, 2]}, {"sequences": [2]}]) == {"sequences": [1, 2, 2]}


def test_the_epoch_stays_when_a_worker_joins_and_is_another_when_one_began_anew() -> None:
    assert epoch_of(["a", "a"]) == epoch_of(["a", "a", "a"]) == "a"
    anew = epoch_of(["a", "b"])
    assert anew not in ("a", "b")
    assert epoch_of(["a", "b", "a"]) == anew
    assert epoch_of(["b", "a"]) != anew


def test_metrics_of_workers_are_one_family_each_with_whose_they_are() -> None:
    text = '# HELP x_total Things.\n# TYPE x_total counter\nx_total{a="b"} %d\n'
    joined = merge_metrics({0: text % 1, 2: text % 5}).decode()
    assert joined.count("# TYPE x_total counter") == 1
    assert re.findall(r"^x_total\{.*\} .*$", joined, re.MULTILINE) == [
        'x_total{a="b",worker="0"} 1.0',
        'x_total{a="b",worker="2"} 5.0',
    ]


def test_renumbering_leaves_everything_else_as_it_is() -> None:
    answer = {"v": 1, "text": "x", "list": [1, {"partition": None}], "message": {"a": 1}}
    assert renumber(json.loads(json.dumps(answer)), 3, 4) == answer


def amounts(answer: Any) -> set[str]:
    """Fields of an answer, and of rows that may be in several workers, that are numbers."""
    if get_origin(answer) is Annotated:
        return amounts(get_args(answer)[0])
    if get_args(answer):
        return set().union(*(amounts(one) for one in get_args(answer)))
    if not (isinstance(answer, type) and issubclass(answer, Shape)) or answer in OF_ONE_WORKER:
        return set()
    found = set()
    for field in msgspec.structs.fields(answer):
        kinds = {field.type, *get_args(field.type)}
        found |= {field.encode_name} if kinds & {int, float} else amounts(field.type)
    return found


OF_ONE_WORKER = (
    SequenceShown,
    LetterShown,
    Waiting,
    ForwarderShown,
    Flight,
    Bounds,
    LossShown,
    Message,
    JournalFile,
    Guess,
)
"""Rows that are one worker's, whatever the others have."""


def test_every_number_that_several_workers_answer_with_has_a_rule() -> None:
    """Without one the first worker's would be shown for all."""
    joined = [route for route in Admin(Destination(":memory:")).routes.table if route.joined not in ONE_ANSWERS]
    assert len(joined) > 15
    known = {*_SUMS, *_MOST, *_LEAST, *_BY_PARTITION, "v", "next"}
    for route in joined:
        assert amounts(route.answer) <= known, route.path


ONE_ANSWERS = (
    Joined.ANY,
    Joined.SEQUENCE,
    Joined.MESSAGE,
    Joined.PARTITION,
    Joined.STREAM,
    Joined.METRICS,
    Joined.SINK,
)
