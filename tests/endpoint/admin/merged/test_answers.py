"""The answers of several workers as one: nothing is counted twice, and nothing is lost."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
from unstarted import unstarted

from holdfast.endpoint.admin.application import Admin
from holdfast.endpoint.admin.merged.answers import (
    _LEAST,
    _MOST,
    _SUMS,
    AWAY,
    CUT_OFF,
    epoch_of,
    merge,
    merge_metrics,
)
from holdfast.endpoint.admin.routes import Joined, Shape
from holdfast.endpoint.admin.shapes.answers import (
    Bounds,
    Flight,
    ForwarderShown,
    JournalFile,
    LetterShown,
    LossShown,
    Message,
    SequenceShown,
    Waiting,
)
from holdfast.endpoint.admin.shapes.requests import Guess


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


@pytest.mark.parametrize(
    ("flags", "joined"),
    [
        ([False, True], True),
        ([True, False], True),
        ([False, False], False),
        ([None, True], True),
        ([None, False], False),
        ([None, None], None),
    ],
)
def test_a_queue_is_full_if_it_refuses_messages_in_one_worker(flags: list[bool | None], joined: bool | None) -> None:
    answers = [{"name": "inbox", "max_messages": 5, "full": one} for one in flags]
    assert merge(answers) == {"name": "inbox", "max_messages": 10, "full": joined}
    assert merge([{"max_messages": None, "full": False}] * 2) == {"max_messages": None, "full": False}


def test_the_epoch_stays_when_a_worker_joins_and_is_another_when_one_began_anew() -> None:
    assert epoch_of(["a", "a"]) == epoch_of(["a", "a", "a"]) == "a"
    anew = epoch_of(["a", "b"])
    assert anew not in ("a", "b")
    assert epoch_of(["a", "b", "a"]) == anew
    assert epoch_of(["b", "a"]) != anew


def test_metrics_of_workers_are_one_family_each_with_whose_they_are() -> None:
    text = '# HELP x_total Things.\n# TYPE x_total counter\nx_total{a="b"} %d\n'
    joined = merge_metrics({0: text % 1, 2: text % 5}, 3).decode()
    assert joined.count("# TYPE x_total counter") == 1
    assert re.findall(r"^x_total\{.*\} .*$", joined, re.MULTILINE) == [
        'x_total{a="b",worker="0"} 1.0',
        'x_total{a="b",worker="2"} 5.0',
    ]
    assert re.findall(r"^holdfast_worker_up.*$", joined, re.MULTILINE) == [
        'holdfast_worker_up{worker="0"} 1.0',
        'holdfast_worker_up{worker="1"} 0.0',
        'holdfast_worker_up{worker="2"} 1.0',
    ]
    assert "holdfast_node_cut_off" not in joined
    of_the_node = merge_metrics({}, 1, {CUT_OFF: False, AWAY: True})
    assert b"\nholdfast_node_cut_off 0.0" in of_the_node and b"\nholdfast_node_without_contact 1.0" in of_the_node


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
    joined = [route for route in Admin(unstarted()).routes.table if route.joined not in ONE_ANSWERS]
    assert len(joined) > 15
    known = {*_SUMS, *_MOST, *_LEAST, *BY_PARTITION, "v", "next"}
    for route in joined:
        assert amounts(route.answer) <= known, route.path


BY_PARTITION = ("partitions", "offsets", "before", "fingerprints")
"""Fields with a value for each partition: a partition belongs to one worker, so they need no rule."""
ONE_ANSWERS = (
    Joined.ANY,
    Joined.SEQUENCE,
    Joined.MESSAGE,
    Joined.PARTITION,
    Joined.STREAM,
    Joined.METRICS,
    Joined.NODES,
    Joined.SINK,
)
