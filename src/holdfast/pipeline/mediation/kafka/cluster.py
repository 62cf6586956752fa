"""Checks of a Kafka cluster before a pipeline starts: availability, topics, and offsets.

Before Spark starts, a plain connection is the only check. Later checks use the Kafka client in Spark's connector.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.client.errors import NobodyThere, ServerAway
from holdfast.endpoint.admin.data_plane.admission import share
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.kafka_options import batch_options, client_options, ends_of, source_options
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SinkPlan, SourcePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_SECONDS = 10.0
_DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_CAUSE = re.compile(r"org\.apache\.kafka\.[\w.]+: [^\n]*")

Partitions = dict[tuple[str, int], tuple[int, int]]
"""Topic and partition -> its first offset, and the offset after its last record."""


def knock(one: SourcePlan | SinkPlan) -> None:
    """Check that one of the bootstrap servers accepts connections. Needs no Spark.

    Raises:
        NobodyThere: None of them does.
    """
    told = ""
    for host, port in ends_of(one):
        try:
            socket.create_connection((host, port), _SECONDS).close()
        except OSError as error:
            told = f"{host}:{port}: {error.strerror or error}"
        else:
            return
    raise NobodyThere(
        f"no Kafka server accepts connections ({told})", remedy=f'Start it, or correct kafka = "{one.kafka}"'
    )


def check_kafka(spark: SparkSession, plan: PipelinePlan) -> None:
    """Check that Spark has the connector and the cluster has the topics, if the pipeline uses Kafka.

    Raises:
        ConfigurationError: One of them is missing.
        ServerAway: The cluster does not answer.
    """
    if plan.of_kafka:
        check_connector(spark)
        check_topics(spark, plan)


def check_connector(spark: SparkSession) -> None:
    """Check that Spark has its Kafka connector.

    Raises:
        ConfigurationError: It has not; the remedy names the option.
    """
    from pyspark.errors import AnalysisException

    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().conf()
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource("kafka", conf)
    except AnalysisException:
        raise ConfigurationError(
            "Spark has no Kafka connector, which this pipeline needs",
            remedy=f"Add --packages {CONNECTOR}:{spark.version} to the command, or --jars with its files. In your "
            "own program, and with spark-submit, set spark.jars.packages to the same text. If Maven does "
            "not find this version, use the newest one before it",
        ) from None


def check_topics(spark: SparkSession, plan: PipelinePlan) -> None:
    """Check that the Kafka topics of a pipeline exist.

    Raises:
        ConfigurationError: A topic does not exist.
        ServerAway: The cluster does not answer.
    """
    for one in plan.of_kafka:
        topics = one.topic if isinstance(one, SourcePlan) else (one.topic or "",)
        with _consumer(spark, one) as consumer:
            known = _asked(one, consumer.listTopics)
            for topic in topics:
                if not known.containsKey(topic):
                    raise ConfigurationError(
                        f"the topic {topic} does not exist at {one.kafka}, or this client may not see it",
                        remedy="Create it, or correct the name",
                    )


def sample_options(spark: SparkSession, source: SourcePlan, rows: int) -> dict[str, str]:
    """Return the options for a batch read of this many records: the first ones in the topics, from all partitions.

    Raises:
        ConfigurationError: There is no such topic.
        ServerAway: The cluster does not answer.
    """
    there = _partitions(spark, source)
    if not there:
        raise ConfigurationError(f"the source {source.name} names no existing topic", remedy="Create one")
    begins = {partition: first for partition, (first, _) in there.items()}
    ends = {partition: end for partition, (_, end) in there.items()}
    return range_options(source, begins, share(begins, ends, rows))


def range_options(
    source: SourcePlan, begins: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]
) -> dict[str, str]:
    """Return the options for a batch read of some ranges, one for each partition."""
    topics = sorted({topic for topic, _ in ends})

    def told(positions: Mapping[tuple[str, int], int]) -> str:
        return json.dumps({one: {str(p): at for (topic, p), at in positions.items() if topic == one} for one in topics})

    parts = {one: sorted(number for topic, number in ends if topic == one) for one in topics}
    ranges = {"assign": json.dumps(parts), "startingoffsets": told(begins), "endingoffsets": told(ends)}
    return {**batch_options(source), **ranges}


def _partitions(spark: SparkSession, source: SourcePlan) -> Partitions:
    jvm: Any = spark._jvm
    given = source_options(source)
    with _consumer(spark, source) as consumer:
        known = _asked(source, consumer.listTopics)
        assigned = {topic: set(parts) for topic, parts in json.loads(given.get("assign", "{}")).items()}
        if pattern := given.get("subscribepattern"):
            topics = [name for name in known if jvm.java.util.regex.Pattern.matches(pattern, name)]
        else:
            topics = [name for name in (*source.topic, *assigned) if known.containsKey(name)]
        wanted = jvm.java.util.ArrayList()
        for topic in topics:
            for part in known[topic]:
                if topic not in assigned or part.partition() in assigned[topic]:
                    wanted.add(jvm.org.apache.kafka.common.TopicPartition(topic, part.partition()))
        firsts = _asked(source, lambda: consumer.beginningOffsets(wanted))
        ends = _asked(source, lambda: consumer.endOffsets(wanted))
        return {(one.topic(), one.partition()): (firsts[one], ends[one]) for one in wanted}


@contextlib.contextmanager
def _consumer(spark: SparkSession, one: SourcePlan | SinkPlan) -> Iterator[Any]:
    """Yield a client of a cluster, in Spark's Java. It reads no records and is in no group."""
    jvm: Any = spark._jvm
    properties = jvm.java.util.Properties()
    for name, value in client_options(one).items():
        properties.setProperty(name.removeprefix("kafka."), value)
    for name in ("key.deserializer", "value.deserializer"):
        properties.setProperty(name, _DESERIALIZER)
    properties.remove("group.id")
    properties.setProperty("allow.auto.create.topics", "false")  # it only looks
    properties.setProperty("default.api.timeout.ms", str(round(3 * _SECONDS * 1000)))
    consumer = _asked(one, lambda: jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties))
    try:
        yield consumer
    finally:
        consumer.close()


def _asked(one: SourcePlan | SinkPlan, ask: Any) -> Any:
    """Return a client's answer.

    Raises:
        ServerAway: There is none; the error contains Kafka's cause.
    """
    from py4j.protocol import Py4JJavaError

    try:
        return ask()
    except Py4JJavaError as error:
        causes = _CAUSE.findall(str(error))
        raise ServerAway(
            f"Kafka at {one.kafka} does not answer: {causes[-1] if causes else error.java_exception.toString()}",
            remedy="Check that it is running, and that kafka.security.protocol and the other properties match its "
            "configuration",
        ) from None
