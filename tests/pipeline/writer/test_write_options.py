"""Options of a write: their names, their values and the nearest right name.

Covers pipeline/writer/options.py.
"""

from __future__ import annotations

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.writer.options import WriteOptions

BROKER = {"broker": "http://127.0.0.1:8081/"}


def test_the_broker_is_all_that_must_be_given_and_sparks_own_option_is_not_ours():
    options = WriteOptions.parse({**BROKER, "checkpointlocation": "/c", "queryname": "alerts"}, stream=True)
    assert options == WriteOptions(broker="http://127.0.0.1:8081")
    assert (options.sink_id, options.batch_id, options.rebind, options.away) == ("", None, False, 60.0)


def test_an_unknown_name_is_refused_with_the_nearest_right_one():
    with pytest.raises(ConfigurationError) as caught:
        WriteOptions.parse({**BROKER, "sequencekeys": "carrier"}, stream=True)
    assert "the wsrm sink has no option sequencekeys" in str(caught.value)
    assert caught.value.remedy == "Did you mean 'sequenceKey'?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker", "127.0.0.1:8081"),
        ("queue", ""),
        ("sinkId", "a/b"),
        ("sinkId", "x" * 201),
        ("rebind", "yes"),
        ("refused", "relative/path"),
        ("awaySeconds", "soon"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_the_options_own_name(name: str, value: str):
    with pytest.raises(ConfigurationError, match=name):
        WriteOptions.parse({**BROKER, name.lower(): value}, stream=True)


@pytest.mark.parametrize("value", ["-1", "1.5", "many", "1" * 16])
def test_a_batch_is_a_whole_number(value: str):
    with pytest.raises(ConfigurationError, match="batchId"):
        WriteOptions.parse({**BROKER, "sinkId": "a", "batchId": value}, stream=False)


@pytest.mark.parametrize(
    ("stream", "options"),
    [
        (True, {"batchId": "1"}),
        (True, {"queryId": "q"}),
        (True, {"idempotencyKey": "k"}),
        (True, {"queue": "q", "to": "http://x"}),
        (False, {"sinkId": "a"}),
        (False, {"batchId": "1"}),
        (False, {"queryId": "q"}),
        (False, {"rebind": "true"}),
        (False, {"idempotencyKey": "k", "sinkId": "a", "batchId": "1"}),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_what_to_do(stream: bool, options: dict[str, str]):
    with pytest.raises(ConfigurationError) as caught:
        WriteOptions.parse({**BROKER, **options}, stream=stream)
    assert caught.value.remedy


@pytest.mark.parametrize("path", ["/shared/refused", "s3://bucket/refused", "file:/tmp/refused"])
def test_a_table_of_refused_rows_is_an_absolute_path_or_a_uri(path: str):
    assert WriteOptions.parse({**BROKER, "refused": path + "/"}, stream=True).refused == path
