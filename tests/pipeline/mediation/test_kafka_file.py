"""Kafka sources and sinks in a pipeline's file: what is refused before anything starts, and what Spark is told.

Covers pipeline/mediation/definition/kafka_checks.py and pipeline/mediation/definition/kafka_options.py.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from holdfast.client.errors import NobodyThere
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes
from holdfast.pipeline.jobs.mediation import _facts, _summary
from holdfast.pipeline.mediation.definition.file import Pipeline, read_pipeline
from holdfast.pipeline.mediation.definition.kafka_options import (
    client_options,
    read_properties,
    redacted,
    sink_options,
    source_options,
)
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SinkPlan, SourcePlan
from holdfast.pipeline.mediation.kafka.cluster import knock
from holdfast.testing.ports import free_ports

SOURCE = 'kafka = "k1:9092, k2:9092"\ntopic = ["orders", "returns"]'
SINK = 'kafka = "k1:9092"\ntopic = "out"\nkey = "customer"'
FILE = """\
name = "hop"
checkpoint = "checkpoint"
[sources.incoming]
{}
[[routes]]
input = "incoming"
to = "out"
[sinks.out]
{}
"""


def plan(directory: Path, source: str = SOURCE, sink: str = SINK) -> PipelinePlan:
    file = directory / "hop.toml"
    file.write_text(FILE.format(source, sink))
    return read_pipeline(file)


def test_topics_are_read_from_the_start_in_limited_batches_of_committed_records(
    tmp_path: Path,
) -> None:
    read = plan(tmp_path)
    assert source_options(read.sources[0]) == {
        "kafka.bootstrap.servers": "k1:9092,k2:9092",
        "subscribe": "orders,returns",
        "startingoffsets": "earliest",
        "maxoffsetspertrigger": "100000",
        "includeheaders": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.allow.auto.create.topics": "false",
    }
    assert sink_options(read.sinks[0]) == {
        "kafka.bootstrap.servers": "k1:9092",
        "topic": "out",
        "includeheaders": "true",
    }


def test_options_and_a_file_of_properties_reach_the_connector_whatever_their_case(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("# of ours\nsecurity.protocol = SASL_SSL\nclient.id:x\n")
    told = 'options = { maxOffsetsPerTrigger = 7, "kafka.client.id" = "y" }\nproperties_file = "client.properties"'
    options = source_options(plan(tmp_path, f"{SOURCE}\n{told}").sources[0])
    assert options["maxoffsetspertrigger"] == "7"
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.client.id"] == "y"


@pytest.mark.parametrize(
    ("source", "sink", "what"),
    [
        ('kafka = "k1:9092"', SINK, "'topic' is missing"),
        (f'{SOURCE}\nbroker = "http://b:1"', SINK, "it has both broker and kafka"),
        ('topic = "a"', SINK, "'broker' is missing"),
        ('broker = "http://b:1"\ntopic = "a"', SINK, "'kafka' is missing"),
        ('broker = "http://b:1"\nonce = true', SINK, "'once' is for Kafka"),
        ('kafka = "k1"\ntopic = "a"', SINK, "does not name Kafka servers"),
        ('kafka = "k1:70000"\ntopic = "a"', SINK, "70000 is not a port"),
        ('kafka = "k1:9092"\ntopic = "a b"', SINK, "is not a valid name of a topic"),
        (f'{SOURCE}\noptions = {{ subscribePattern = "a.*" }}', SINK, "its topics"),
        (f'{SOURCE}\nqueue = "orders"', SINK, "only a source with broker"),
        (f'{SOURCE}\noptions = {{ maxOffsetPerTrigger = "5" }}', SINK, "Did you mean 'maxOffsetsPerTrigger'?"),
        (f'{SOURCE}\noptions = {{ "kafka.bootstrap.servers" = "h:1" }}', SINK, "'kafka' says this"),
        (f'{SOURCE}\noptions = {{ "kafka.auto.offset.reset" = "latest" }}', SINK, "cannot be set in this file"),
        (f'{SOURCE}\noptions = {{ "kafka.sasl.jaas.config" = "geheim" }}', SINK, "this file contains a secret"),
        (SOURCE, f'{SINK}\noptions = {{ "kafka.ssl.key.password" = "geheim" }}', "this file contains a secret"),
        (SOURCE, f'{SINK}\noptions = {{ "kafka.acks" = 1 }}', "a record could be lost"),
        (SOURCE, f'{SINK}\noptions = {{ "kafka.partitioner.class" = "x" }}', "cannot be set in this file"),
        (SOURCE, 'kafka = "k1:9092"', "'topic' is missing"),
        (SOURCE, f'{SINK}\nqueue = "q"', "it has both queue and kafka"),
        (SOURCE, f'{SINK}\nbroker = "http://b:1"', "only a sink with queue or to"),
        (SOURCE, 'table = "t"\ntopic = "out"', "'kafka' is missing"),
        (SOURCE, 'queue = "q"', "'broker' is missing"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_reason(
    tmp_path: Path, source: str, sink: str, what: str
) -> None:
    with pytest.raises(ConfigurationMistakes) as refused:
        plan(tmp_path, source, sink)
    assert what in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_a_pattern_may_name_the_topics(tmp_path: Path) -> None:
    source = 'kafka = "k1:9092"\noptions = { subscribePattern = "orders-.*" }'
    assert source_options(plan(tmp_path, source).sources[0])["subscribepattern"] == "orders-.*"


def test_a_file_of_properties_is_looked_at_before_anything_starts(tmp_path: Path) -> None:
    told = f'{SOURCE}\nproperties_file = "client.properties"'
    for content, what in (
        ("=geheim", "line 1 of"),
        ("group.id = a\nenable.auto.commit = true\n", "enable.auto.commit cannot be set in a file"),
    ):
        (tmp_path / "client.properties").write_text(content)
        with pytest.raises(ConfigurationMistakes) as refused:
            plan(tmp_path, told)
        assert what in str(refused.value)
        assert "geheim" not in str(refused.value)
    (tmp_path / "client.properties").write_text("acks=1")
    with pytest.raises(ConfigurationMistakes, match="a record could be lost"):
        plan(tmp_path, SOURCE, f'{SINK}\nproperties_file = "client.properties"')


def test_properties_are_read_as_kafkas_tools_read_them(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("a=1\n!no\n  b : 2 = 3\nc one two\nd=x \\\n   y\n# e=5\nf\\:g=h\nempty=\nlast=a\\\\b")
    expected = {"a": "1", "b": "2 = 3", "c": "one two", "d": "x y", "f:g": "h", "empty": "", "last": "a\\b"}
    assert read_properties(file) == expected
    file.write_bytes(b"a=\xff")
    with pytest.raises(ConfigurationError, match="it is not UTF-8"):
        read_properties(file)


def test_no_secret_is_in_a_plan_in_what_check_says_or_in_an_error(tmp_path: Path) -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="geheim1";'
    (tmp_path / "client.properties").write_text(f"sasl.jaas.config={jaas}\nssl.key.password=geheim2\n")
    read = plan(tmp_path, f'{SOURCE}\nproperties_file = "client.properties"')
    assert "geheim" not in repr(read)
    assert "geheim" not in "\n".join(_summary(_facts(read)))
    assert client_options(read.sources[0])["kafka.sasl.jaas.config"] == jaas
    told = redacted(f"{jaas} was refused, and geheim1, and geheim2", read)
    assert "geheim" not in told
    assert "was refused" in told


def test_check_says_which_topics_are_read_and_written(tmp_path: Path) -> None:
    lines = list(_summary(_facts(plan(tmp_path))))
    assert "source      incoming, orders, returns at k1:9092,k2:9092" in lines
    assert "sink        out, out" in lines


def test_a_step_with_state_does_not_promise_once() -> None:
    told = Pipeline()
    told.settings(name="hop", checkpoint="c")
    told.source("incoming", kafka="k:1", topic="t", once=True)
    told.step("hourly", sql="SELECT count(*) AS n FROM incoming GROUP BY window(delivered_at, '1 hour')", state={})
    told.sink("out", kafka="k:1", topic="n", body="string(n)")
    told.route("hourly", "out")
    with pytest.raises(ConfigurationMistakes, match="'once' of the source incoming works only for batches"):
        told.plan()


def test_a_cluster_is_asked_for_before_spark_starts() -> None:
    (port,) = free_ports(1)
    with pytest.raises(NobodyThere, match=f"127.0.0.1:{port}"):
        knock(SourcePlan("s", kafka=f"127.0.0.1:{port}", topic=("t",)))
    with socket.create_server(("127.0.0.1", 0)) as there:
        knock(SinkPlan("s", kafka=f"127.0.0.1:{port},127.0.0.1:{there.getsockname()[1]}", topic="t"))


def test_json_is_parsed_by_a_schema_alone() -> None:
    told = Pipeline()
    told.settings(name="hop", checkpoint="c")
    told.source("incoming", kafka="k:1", topic="t")
    told.step("read", input="incoming", parse={"json": True, "infer": 5})
    told.sink("out", table="t")
    told.route("read", "out")
    told.dead_letters(table="dead")
    with pytest.raises(ConfigurationMistakes, match="'infer' is for XML, but this is JSON"):
        told.plan()
