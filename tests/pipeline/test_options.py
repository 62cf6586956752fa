from __future__ import annotations

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.options import ReadOptions, usable_cores

BROKER = {"broker": "http://127.0.0.1:8081/"}


def test_the_broker_is_all_that_must_be_given():
    options = ReadOptions.parse(BROKER)
    assert options == ReadOptions("http://127.0.0.1:8081")
    assert (options.queue, options.reader, options.starting) == ("inbox", "", "earliest")
    assert (options.max_rows, options.body, options.headers) == (100_000, True, False)
    assert options.tasks == usable_cores()


def test_names_are_found_whatever_their_case_because_spark_makes_them_lower_case():
    given = {
        **BROKER,
        "maxrowsperbatch": "7",
        "STARTINGOFFSETS": '{"0": 12, "1": 0}',
        "waitSeconds": "0",
        "Body": "FALSE",
    }
    options = ReadOptions.parse(given)
    assert (options.max_rows, options.starting, options.wait, options.body) == (7, {0: 12, 1: 0}, 0.0, False)


def test_an_unknown_name_is_refused_with_the_nearest_right_one():
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({**BROKER, "maxRowPerBatch": "7"})
    assert "no option maxRowPerBatch" in str(caught.value)
    assert caught.value.remedy == "did you mean maxRowsPerBatch?"


def test_a_name_that_resembles_none_is_refused_with_all_of_them():
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({**BROKER, "zzz": "7"})
    assert "awaySeconds" in caught.value.remedy
    assert "broker" in caught.value.remedy


def test_no_broker_is_refused_with_an_example():
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({"queue": "orders"})
    assert '.option("broker", "http://127.0.0.1:8081")' in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker", "127.0.0.1:8081"),
        ("broker", "ftp://127.0.0.1"),
        ("broker", "http://127.0.0.1:99999"),
        ("broker", "http://user:secret@127.0.0.1"),
        ("queue", ""),
        ("reader", " spark"),
        ("reader", "handler"),
        ("reader", "a/b"),
        ("maxRowsPerBatch", "0"),
        ("maxRowsPerBatch", "-3"),
        ("maxRowsPerBatch", "many"),
        ("tasks", "1.5"),
        ("waitSeconds", "61"),
        ("waitSeconds", "-1"),
        ("awaySeconds", "nan"),
        ("awaySeconds", "inf"),
        ("awaySeconds", "soon"),
        ("body", "yes"),
        ("startingOffsets", "oldest"),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"0": -1}'),
        ("startingOffsets", '{"zero": 1}'),
        ("startingOffsets", '{"0": 1.5}'),
        ("startingOffsets", '{"0": true}'),
        ("endingOffsets", "earliest"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_the_options_own_name(name: str, value: str):
    with pytest.raises(ConfigurationError, match=name):
        ReadOptions.parse({**BROKER, name.lower(): value})
