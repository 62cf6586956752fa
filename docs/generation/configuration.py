"""The keys of a broker's and of a pipeline's file, from the classes that read them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from generation import DOCS
from generation.docstrings import as_markdown, split_docstring
from generation.settings import class_of, number_text
from holdfast.settings import meaning_of

BROKER = {
    "BrokerConfig": "The top of the file",
    "ListenConfig": "[listen]",
    "ServerTLS": "[listen.tls], [admin.tls]",
    "AdminConfig": "[admin]",
    "ClusterConfig": "[cluster]",
    "SecurityConfig": "[security]",
    "SignatureConfig": "[security.signature], [forwarders.NAME.security.signature]",
    "signature_config.EncryptionConfig": (
        "[security.signature.encryption], [forwarders.NAME.security.signature.encryption]"
    ),
    "signature_config.SymmetricConfig": "[security.symmetric]",
    "signature_config.ForwarderSymmetricConfig": "[forwarders.NAME.security.symmetric]",
    "signature_config.AssertionsConfig": "[security.assertions]",
    "JournalConfig": "[journal]",
    "LimitsConfig": "[limits]",
    "QueueConfig": "[queues.NAME]",
    "RouteConfig": "[[routes]]",
    "HeaderConfig": "header of a route",
    "ForwarderConfig": "[forwarders.NAME]",
    "ClientTLS": "[forwarders.NAME.tls]",
    "CredentialsConfig": "[forwarders.NAME.credentials]",
    "MessageCredentialsConfig": "[forwarders.NAME.security]",
    "ProxyConfig": "[forwarders.NAME.proxy]",
}
"""Class in ``broker.config`` -> the table of the file that has its fields."""
_BROKER_TABLES = {
    "sequences": "`[sequences]`: keys of [DestinationPolicy](configuration.md#destinationpolicy)",
    "http": "`[limits.http]`: keys of [HTTPLimits](configuration.md#httplimits)",
    "envelopes": "`[limits.envelopes]`: keys of [Limits](configuration.md#limits-of-an-envelope)",
    "sinks": "`[sinks]`: keys of [StagingPolicy](configuration.md#stagingpolicy)",
    "policy": "`[forwarders.NAME.policy]`: keys of [ForwardingPolicy](configuration.md#forwardingpolicy)",
    "policies": '`[policies."PATTERN"]`: keys of [ForwardingPolicy](configuration.md#forwardingpolicy)',
    "journal": "`[journal]`, below",
    "queues": "`[queues.NAME]`, below",
    "routes": "`[[routes]]`, below",
    "forwarders": "`[forwarders.NAME]`, below",
}


PIPELINE = {
    "PipelinePlan": "The top of the file",
    "SourcePlan": "[sources.NAME]",
    "TablePlan": "[tables.NAME]",
    "StepPlan": "[steps.NAME]",
    "ParsePlan": "parse of a step",
    "ValidatePlan": "validate of a step",
    "XmlPlan": "xml of a step",
    "StatePlan": "state of a step",
    "RoutePlan": "[[routes]]",
    "SinkPlan": "[sinks.NAME]",
    "DeadLettersPlan": "[dead_letters]",
}
"""Class of ``pipeline.mediation.definition.plan`` -> the table of the file that has its fields."""
_PIPELINE_TABLES = {
    "sources": "`[sources.NAME]`, below",
    "tables": "`[tables.NAME]`, below",
    "steps": "`[steps.NAME]`, below",
    "routes": "`[[routes]]`, below",
    "sinks": "`[sinks.NAME]`, below",
    "dead_letters": "`[dead_letters]`, below",
}


def broker_keys() -> str:
    """Return every key of a broker's configuration, table by table."""
    return "\n\n".join(_key_table("broker.config", name, title, _BROKER_TABLES) for name, title in BROKER.items())


def pipeline_keys() -> str:
    """Return every key of a pipeline's file, table by table."""
    room = "pipeline.mediation.definition.plan"
    return "\n\n".join(_key_table(room, name, title, _PIPELINE_TABLES) for name, title in PIPELINE.items())


def _key_table(room: str, name: str, title: str, tables: Mapping[str, str]) -> str:
    if "." in name:
        module, name = name.split(".")
        room = f"{room.rpartition('.')[0]}.{module}"
    told_values = importlib.import_module("holdfast.config.tables").told_values
    cls = class_of(room, name)
    paragraphs = split_docstring(inspect.cleandoc(cls.__doc__ or ""))[0]
    lines = [
        f"### {title}",
        "",
        *paragraphs[:1],
        "",
        "| key | value | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for field in dataclasses.fields(cls):
        key = field.name
        if key == "name" and title.endswith(".NAME]"):
            continue  # the name is part of the table's header
        value = told_values(cls, key) or tables.get(key, "a table, below")
        lines.append(f"| `{key}` | {value} | {_key_default(field)} | {as_markdown(meaning_of(cls, key))} |")
    return "\n".join(lines)


def _key_default(field: dataclasses.Field[Any]) -> str:
    """Return the default of a key as TOML writes it."""
    default = field.default
    if default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else ""
    if default in (None, (), ""):
        return ""
    if isinstance(default, tuple):
        return f"one, `{default[0].name}`" if dataclasses.is_dataclass(default[0]) else f"`{json.dumps(default)}`"
    is_number = isinstance(default, int) and not isinstance(default, bool)
    return f"`{number_text(default) if is_number else json.dumps(default)}`"


def broker_example() -> str:
    """Return the whole example."""
    return _toml("broker.toml")


def pipeline_example() -> str:
    """Return the whole example."""
    return _toml("mediation/orders.toml")


def _toml(name: str) -> str:
    return f"```toml\n{(DOCS.parent / 'examples' / name).read_text(encoding='utf-8').rstrip()}\n```"


def kafka_topics() -> str:
    """Return the commands that create the topics of a cluster with the settings that Holdfast gives to its own."""
    from typing import get_args

    from holdfast.cluster.shared.tables import Part
    from holdfast.store.kafka.address import REPLICAS
    from holdfast.store.kafka.requirements import settings_of, settings_of_compacted

    topics = {"COPY": (6, settings_of(REPLICAS))}
    topics |= {f"COPY-{part}": (1, settings_of_compacted(REPLICAS)) for part in get_args(Part)}
    create = f"kafka-topics.sh --bootstrap-server kafka1:9092 --create --replication-factor {REPLICAS}"
    lines = ["```bash"]
    for topic, (partitions, settings) in topics.items():
        given = [f"--config {name}={value}" for name, value in settings.items()]
        lines += [" \\\n    ".join([f"{create} --partitions {partitions} --topic {topic}", *given])]
    return "\n".join([*lines, "```"])
