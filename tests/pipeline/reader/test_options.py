"""Options of the source: their names, their values and the nearest right name.

Covers pipeline/options/values.py and pipeline/reader/position_values.py.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.writer.options import WriteOptions

BROKER = {"broker": "http://127.0.0.1:8081/"}


def test_the_broker_is_all_that_must_be_given():
    options = ReadOptions.parse(BROKER)
    assert options == ReadOptions(broker="http://127.0.0.1:8081", queues=("inbox",))
    assert (options.queues, options.reader, options.starting) == (("inbox",), "", "earliest")
    assert (options.max_rows, options.body, options.headers) == (100_000, True, False)
    assert options.tasks is None


def test_names_are_found_whatever_their_case_because_spark_makes_them_lower_case():
    given = {
        **BROKER,
        "maxrowsperbatch": "7",
        "STARTINGOFFSETS": '{"0": 12, "1": 0}',
        "waitSeconds": "0",
        "Body": "FALSE",
    }
    options = ReadOptions.parse(given)
    assert (options.max_rows, options.starting, options.wait, options.body) == (7, {"inbox": {0: 12, 1: 0}}, 0.0, False)


def test_an_unknown_name_is_refused_with_the_nearest_right_one():
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({**BROKER, "maxRowPerBatch": "7"})
    assert "no option maxRowPerBatch" in str(caught.value)
    assert caught.value.remedy == "Did you mean 'maxRowsPerBatch'?"


def test_each_wrong_option_is_told_at_once():
    wrong = {"maxRowPerBatch": "7", "waitSeconds": "x", "body": "yes", "topic": "t", "queue": "orders"}
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse(wrong)
    for told in (
        "maxRowPerBatch (Did",
        "waitSeconds='x'",
        "body='yes' is neither",
        "no option topic (",
        "no option broker (",
    ):
        assert told in caught.value.message
    assert caught.value.remedy == "Correct these options"
    pairs = {"queue": "a", "queuePattern": "b", "columns": "offset", "body": "false"}
    with pytest.raises(ConfigurationError, match=r"queue and queuePattern exclude .* columns and body exclude"):
        ReadOptions.parse({**BROKER, **pairs})


@pytest.mark.parametrize("name", [one.metadata["name"] for one in fields(ReadOptions) if one.metadata])
@pytest.mark.parametrize("value", ["", " ", "\x00", "-1", "{", "[1]"])
def test_each_error_of_a_value_has_a_remedy(name: str, value: str):
    remedy = "none"
    try:
        ReadOptions.parse({**BROKER, name: value})
    except ConfigurationError as error:
        remedy = error.remedy
    assert remedy.strip(" .")


def test_a_name_that_resembles_none_is_refused_with_all_of_them():
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({**BROKER, "zzz": "7"})
    assert "awaySeconds" in caught.value.remedy
    assert "broker" in caught.value.remedy


def test_no_broker_is_refused_with_an_example():
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({"queue": "orders"})
    assert '.option("broker", "http://127.0.0.1:8081")' in caught.value.remedy
    assert "SQL" not in caught.value.remedy


def test_no_option_at_all_may_come_of_a_table_of_sparks_catalog():
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({})
    assert "in SQL, CREATE TEMPORARY VIEW" in caught.value.remedy


def test_a_table_of_sparks_catalog_is_refused_whatever_spark_names_first():
    with pytest.raises(ConfigurationError, match="a table of its catalog") as caught:
        ReadOptions.parse({"owner": "root", "option.queue": "orders", "queue": "orders", **BROKER})
    assert caught.value.remedy.startswith("CREATE TEMPORARY VIEW")


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
        ("broker", "http://127.0.0.1:8081,127.0.0.1:8082"),
        ("broker", "http://127.0.0.1:8081,"),
        ("queue", "orders,,returns"),
        ("queue", "orders,orders"),
        ("queuePattern", "orders-("),
        ("read", "lettres"),
        ("timestampType", "arrived"),
        ("partitions", "0,x"),
        ("partitions", "-1"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "-1"),
        ("endingTimestamp", "253402300800000000"),
        ("startingOffsetsByTimestamp", "1767225600000"),
        ("startingOffsetsByTimestamp", '{"0": "soon"}'),
        ("endingOffsetsByTimestamp", '{"0": 1.5}'),
        ("maxTriggerDelay", "soon"),
        ("maxTriggerDelay", "-5s"),
        ("maxTriggerDelay", "5 parsecs"),
        ("minPartitions", "0"),
        ("minPartitions", "100001"),
        ("tasks", "100001"),
        ("maxRowsPerBatch", "9223372036854775808"),
        ("maxRowsPerBatch", "1" * 5000),
        ("minRowsPerBatch", "-2"),
        ("failOnDataLoss", "never"),
        ("startingOffsets", '{"0": -3}'),
        ("startingOffsets", '{"0": 9223372036854775808}'),
        ("startingOffsets", '{"-1": 3}'),
        ("startingOffsets", '{"orders": {"0": 3}}'),
        ("endingOffsets", '{"0": -2}'),
        ("startingOffsets", '{"zero": 1}'),
        ("startingOffsets", '{"0": 1.5}'),
        ("startingOffsets", '{"0": true}'),
        ("endingOffsets", "earliest"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_the_options_own_name(name: str, value: str):
    with pytest.raises(ConfigurationError, match=name) as caught:
        ReadOptions.parse({**BROKER, name.lower(): value})
    assert caught.value.remedy or "is " in str(caught.value)


def test_several_nodes_of_a_cluster_may_be_named():
    asked = "http://a.example:8081/, https://b.example:8081,http://a.example:8081"
    assert ReadOptions.parse({**BROKER, "broker": asked}).broker == "http://a.example:8081,https://b.example:8081"


# --- several queues, times, and what Spark's Kafka source calls them --------------------------------------------------


def test_several_queues_are_named_with_commas_and_their_offsets_by_their_names():
    given = {**BROKER, "queue": "orders, returns", "startingOffsets": '{"returns": {"0": 8, "1": -1}}'}
    options = ReadOptions.parse(given)
    assert options.queues == ("orders", "returns")
    assert options.starting == {"returns": {0: 8, 1: -1}}


@pytest.mark.parametrize(
    ("options", "says", "remedy"),
    [
        ({"queue": "a,b", "startingOffsets": '{"0": 1}'}, "several queues are read", "Name the queues"),
        ({"queuePattern": "a.*", "startingOffsets": '{"0": 1}'}, "several queues are read", "Name the queues"),
        ({"queue": "orders", "endingOffsets": '{"order": {"0": 1}}'}, "which is not read", "Did you mean 'orders'"),
        ({"queuePattern": "a.*", "startingOffsets": '{"b": {"0": 1}}'}, "which is not read", "The query reads a"),
        ({"queue": "a", "queuePattern": "a.*"}, "queue and queuePattern exclude each other", "Remove one"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "exclude each other", "Remove one"),
        ({"endingOffsetsByTimestamp": '{"0": 1}', "endingTimestamp": "0"}, "exclude each other", "Remove one"),
        ({"startingTimestamp": "2000", "endingTimestamp": "1000"}, "is before", "Swap"),
        ({"minRowsPerBatch": "10", "maxRowsPerBatch": "9"}, "is above option maxRowsPerBatch", "smaller"),
        ({"minPartitions": "3", "tasks": "2"}, "is above option tasks=2", "larger"),
        ({"queue": "orders", "subscribe": "orders"}, "queue and subscribe are the same", "Remove one"),
        ({"kafka.bootstrap.servers": "b:9092"}, "no option kafka.bootstrap.servers", "option broker, a URL"),
        ({"path": "orders"}, "no option path", "with option queue"),
        ({"groupIdPrefix": "x"}, "no option groupIdPrefix", "option reader"),
        ({"assign": '{"orders": [0]}'}, "no option assign", "option partitions"),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_what_to_do(options: dict, says: str, remedy: str):
    with pytest.raises(ConfigurationError, match=says) as caught:
        ReadOptions.parse({**BROKER, **options})
    assert remedy in caught.value.remedy


NINE = 1_767_258_000_000_000


@pytest.mark.parametrize(
    "text",
    ["2026-01-01T09:00:00Z", "2026-01-01 09:00", "2026-01-01T10:00:00+01:00", "20260101T090000Z", "1767258000000"],
)
def test_a_time_is_a_text_with_or_without_a_zone_or_milliseconds(text: str):
    options = ReadOptions.parse({**BROKER, "startingTimestamp": text, "endingTimestamp": "2026-01-02"})
    assert options.starting_at == NINE
    assert options.ending_at == NINE + 15 * 3_600_000_000


def test_times_are_given_for_each_partition_as_kafkas_source_has_them():
    given = {
        "queue": "a,b",
        "startingOffsetsByTimestamp": '{"a": {"0": 1767258000000}, "b": {"1": "2026-01-01T09:00Z"}}',
    }
    assert ReadOptions.parse({**BROKER, **given}).starting_times == {"a": {0: NINE}, "b": {1: NINE}}


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("15 minutes", 900), ("1h", 3600), ("2", 2)]
)
def test_a_span_of_time_has_a_unit_or_is_in_seconds(text: str, seconds: float):
    assert ReadOptions.parse({**BROKER, "maxTriggerDelay": text}).max_delay == seconds


def test_a_program_for_sparks_kafka_source_changes_its_broker_and_little_else():
    kafkas = {
        "subscribe": "orders,returns",
        "startingOffsets": '{"orders":{"0":23,"1":-2},"returns":{"0":-1}}',
        "maxOffsetsPerTrigger": "5000",
        "minOffsetsPerTrigger": "1000",
        "maxTriggerDelay": "15m",
        "minPartitions": "8",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
    }
    options = ReadOptions.parse({**BROKER, **{name.lower(): value for name, value in kafkas.items()}})
    assert options.queues == ("orders", "returns")
    assert options.starting == {"orders": {0: 23, 1: -2}, "returns": {0: -1}}
    assert (options.max_rows, options.min_rows, options.max_delay, options.min_tasks) == (5000, 1000, 900, 8)
    assert (options.fail_on_loss, options.headers) == (False, True)
    assert ReadOptions.parse({**BROKER, "subscribePattern": "orders-.*"}).pattern == "orders-.*"
    for name, value in (("startingTimestamp", "1"), ("endingTimestamp", "1"), ("endingOffsets", "latest")):
        ReadOptions.parse({**BROKER, name: value})


def test_an_error_has_the_name_that_was_given():
    with pytest.raises(ConfigurationError, match="option maxOffsetsPerTrigger='0'"):
        ReadOptions.parse({**BROKER, "maxoffsetspertrigger": "0"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("endingOffsets", '{"0": 5}'), ("endingTimestamp", "5"), ("endingOffsetsByTimestamp", "{}"), ("partitions", "0")],
)
def test_what_only_a_batch_read_can_do_is_refused_in_a_stream(name: str, value: str):
    options = ReadOptions.parse({**BROKER, "reader": "spark", name: value})
    with pytest.raises(ConfigurationError, match=f"option {name} is for batch reads") as caught:
        options.check_stream()
    assert "availableNow" in caught.value.remedy


HOSTILE = [
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-0.5",
    "",
    " ",
    "9" * 400,
    "9" * 5000,
    '{"0": 1e400}',
    '{"0": NaN}',
    "1e400s",
]


@pytest.mark.parametrize("value", [*HOSTILE, '{"0": ' + "9" * 400 + "}", "9" * 400 + "s"], ids=lambda value: value[:20])
def test_an_option_with_a_number_is_a_finite_number_or_refused(value: str) -> None:
    for cls in (ReadOptions, WriteOptions):
        for field in fields(cls):
            if "parse" in field.metadata:
                try:
                    found = field.metadata["parse"](field.metadata["name"], value)
                except ConfigurationError:
                    continue
                assert isinstance(found, str | tuple | frozenset), field.name
