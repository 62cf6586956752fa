"""Options of Spark's Kafka connector for a source or a sink: servers, topics, properties of the Kafka client.

Secrets are read from a file of properties when a query starts, and are in no plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SinkPlan, SourcePlan

ROWS_OF_A_BATCH = "100000"
"""The same as for the wsrm source."""
_SOURCE = {
    "includeheaders": "true",
    "maxoffsetspertrigger": ROWS_OF_A_BATCH,
    "startingoffsets": "earliest",
    # Skip records of aborted transactions.
    "kafka.isolation.level": "read_committed",
    # Otherwise Kafka creates a topic that was deleted while a query reads it, with its own defaults.
    "kafka.allow.auto.create.topics": "false",
}
_SECRET = re.compile(r"password|secret|jaas\.config|keystore\.key|private\.key|user\.info", re.IGNORECASE)
_QUOTED = re.compile(r'="([^"]+)"')
_ESCAPED = re.compile(r"\\(.)")
_PROPERTY = re.compile(r"((?:\\.|[^\s:=\\])+)[ \t\f]*[:= \t\f][ \t\f]*(.*)")


def read_properties(file: str | Path) -> dict[str, str]:
    """Read a properties file in the format of Kafka's own tools: ``name=value``, a ``#`` before a comment.

    Raises:
        ConfigurationError: It cannot be read, or a line is not a property; the error omits the line, which may be
            secret.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigurationError(f"{file} cannot be read: {why}", remedy="Name a readable file") from None
    found: dict[str, str] = {}
    for number, line in _lines(text):
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise ConfigurationError(f"line {number} of {file} is not a property", remedy='Write "name=value"')
        found[_ESCAPED.sub(r"\1", match[1])] = _ESCAPED.sub(r"\1", match[2]).strip()
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines: a backslash at the end continues a line."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not begun and (not stripped or stripped[0] in "#!"):
            continue
        first = first or number
        if stripped.endswith("\\") and not stripped.endswith("\\\\"):
            begun += stripped[:-1]
            continue
        yield first, begun + stripped
        begun, first = "", 0
    if begun:
        yield first, begun


def is_secret(name: str) -> bool:
    """Whether the value of a Kafka property is a secret."""
    return _SECRET.search(name) is not None


def client_options(one: SourcePlan | SinkPlan) -> dict[str, str]:
    """Return the options ``kafka.…`` of a source or a sink, by lower-case names: those of the file, then of the table.

    Raises:
        ConfigurationError: The file of properties cannot be read.
    """
    told = read_properties(one.properties_file) if one.properties_file else {}
    found = {f"kafka.{name.lower()}": value for name, value in told.items()}
    found |= {name.lower(): value for name, value in (one.options or {}).items() if name.lower().startswith("kafka.")}
    return {**found, "kafka.bootstrap.servers": str(one.kafka)}


def source_options(source: SourcePlan) -> dict[str, str]:
    """Return the options of Spark's Kafka source.

    Raises:
        ConfigurationError: The file of properties cannot be read.
    """
    given = {name.lower(): value for name, value in (source.options or {}).items()}
    topics = {"subscribe": ",".join(source.topic)} if source.topic else {}
    return {**_SOURCE, **given, **client_options(source), **topics}


def sink_options(sink: SinkPlan) -> dict[str, str]:
    """Return the options of Spark's Kafka sink.

    Raises:
        ConfigurationError: The file of properties cannot be read.
    """
    return {**client_options(sink), "topic": str(sink.topic), "includeheaders": "true"}


_NARROWING = ("subscribe", "assign", "starting", "ending", "maxoffsets", "minoffsets", "maxtrigger")


def batch_options(source: SourcePlan) -> dict[str, str]:
    """Return the options of a batch read, without those that select the records."""
    return {name: value for name, value in source_options(source).items() if not name.startswith(_NARROWING)}


def ends_of(source: SourcePlan | SinkPlan) -> list[tuple[str, int]]:
    parts = [server.rpartition(":") for server in str(source.kafka).split(",")]
    return [(host.strip("[]"), int(port)) for host, _, port in parts]


def redacted(text: str, plan: PipelinePlan) -> str:
    for one in plan.of_kafka:
        for name, value in _known(one).items():
            for secret in (value, *_QUOTED.findall(value)) if is_secret(name) else ():
                if len(secret) > 3:
                    text = text.replace(secret, "***")
    return text


def _known(one: SourcePlan | SinkPlan) -> Mapping[str, str]:
    try:
        return client_options(one)
    except ConfigurationError:  # without the file, the text cannot contain its secrets
        return {}
