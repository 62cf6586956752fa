"""Checks of a Kafka source or sink in a file, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from holdfast.config.lines import KeyPath
from holdfast.config.tables import Wrong
from holdfast.config.unreadable import is_given
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.kafka_options import client_options, ends_of, is_secret
from holdfast.pipeline.mediation.definition.plan import SinkPlan, SourcePlan
from holdfast.settings import nearest

_SOURCE_OPTIONS = (
    *("subscribePattern", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
)
_PATTERNS = ("subscribepattern", "assign")
_TOLD_BY_KEYS = {"kafka.bootstrap.servers": "kafka", "subscribe": "topic", "topic": "topic"}
_OURS = {
    "kafka.key.deserializer",
    "kafka.value.deserializer",
    "kafka.key.serializer",
    "kafka.value.serializer",
    "kafka.auto.offset.reset",
    "kafka.enable.auto.commit",
    "kafka.interceptor.classes",
    "kafka.transactional.id",
    "kafka.partitioner.class",
    "kafka.partitioner.ignore.keys",
    "includeheaders",
}
"""Options that a file must not set, because the connector or the guarantees depend on them."""


def of_a_source(source: SourcePlan, path: KeyPath) -> Iterator[Wrong]:
    """Yield the mistakes of a source that reads Kafka."""
    for key in ("queue", "token_file"):
        if is_given(source, key):
            yield (*path, key), "only a source with broker has this key", "Remove it."
    ways = [name for name in source.options or () if name.lower() in _PATTERNS]
    if is_given(source, "topic") + len(ways) != 1:
        what = "its topics are set twice" if ways else "'topic' is missing"
        yield path, what, "Set topic, or one of the options subscribePattern and assign."
    yield from _of_servers(source, path)
    yield from _of_options(source, path, _SOURCE_OPTIONS)


def of_a_sink(sink: SinkPlan, path: KeyPath) -> Iterator[Wrong]:
    """Yield the mistakes of a sink that writes to Kafka."""
    if not is_given(sink, "topic"):
        yield path, "'topic' is missing", "Add topic = … there."
    for key in ("broker", "token_file"):
        if is_given(sink, key):
            yield (*path, key), "only a sink with queue or to has this key", "Remove it."
    yield from _of_servers(sink, path)
    yield from _of_options(sink, path, ())
    try:
        acks = client_options(sink).get("kafka.acks", "all")
    except ConfigurationError:
        return  # reported with the options
    if acks not in ("all", "-1"):
        told = f"kafka.acks is {acks}: a record could be lost after the batch is complete"
        yield path, told, "Remove kafka.acks; the default is all."


def only_of_kafka(one: SourcePlan | SinkPlan, keys: Collection[str], path: KeyPath) -> Iterator[Wrong]:
    for key in keys:
        if is_given(one, key):
            yield (*path, key), f"'{key}' is for Kafka, but 'kafka' is missing", "Add kafka = …, or remove it."


def _of_servers(one: SourcePlan | SinkPlan, path: KeyPath) -> Iterator[Wrong]:
    for host, port in ends_of(one):
        if not 0 < port < 65_536:
            yield (*path, "kafka"), f"{port} is not a port of {host}", "Ports are numbers from 1 to 65535."


def _of_options(one: SourcePlan | SinkPlan, path: KeyPath, known: Collection[str]) -> Iterator[Wrong]:
    places = {name: (*path, "options", name) for name in one.options or ()}
    names = {name.lower(): name for name in known}
    for name, place in places.items():
        low = name.lower()
        if low in _TOLD_BY_KEYS:
            yield place, f"'{_TOLD_BY_KEYS[low]}' says this", f"Remove it, and write {_TOLD_BY_KEYS[low]} = …."
        elif is_secret(name):
            told = "Write it without 'kafka.' into a separate file, and name that file with properties_file."
            yield place, "this file contains a secret", told
        elif low in _OURS:
            yield place, f"{name} cannot be set in this file", "Remove it."
        elif not low.startswith("kafka.") and low not in names:
            near = nearest(low, names)
            told = f"Did you mean {names[near]!r}?" if near else "Properties of the Kafka client begin with 'kafka.'."
            yield place, f"Spark's connector has no option {name}", told
    try:
        refused = sorted((client_options(one).keys() - {name.lower() for name in places}) & _OURS)
    except ConfigurationError as error:
        yield (*path, "properties_file"), error.message, error.remedy
        return
    for name in refused:
        yield (*path, "properties_file"), f"{name.removeprefix('kafka.')} cannot be set in a file", "Remove it."
