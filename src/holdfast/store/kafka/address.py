"""The address of a log: a topic of a Kafka cluster, one of its partitions, and the directory of the cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from holdfast.exceptions import ConfigurationError
from holdfast.settings import suggestion
from holdfast.store.address import DEFAULT_PATIENCE, password_in, shown

PARTITIONS: Final = 24
"""Default number of partitions of a new topic."""
REPLICAS: Final = 3
"""Default number of replicas of each partition."""
MOST_PARTITIONS: Final = 4096

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:]+\]|[^\[\]:/,\s]+):[0-9]{1,5}")
_KAFKAS_OWN = re.compile(r"security\.protocol|(ssl|sasl)\.[a-z0-9.]+|broker\.address\.family")
_OURS = ("partition", "partitions", "replicas", "patience", "cache", "password_file")
_EXAMPLE = "kafka://host1:9092,host2:9092,host3:9092/holdfast?cache=/var/lib/holdfast/cache"


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """A log, and its cache.

    Args:
        servers: Addresses of brokers of the Kafka cluster.
        partition: The partition of the topic that is the log.
        cache: The directory of the caches of all partitions on this host.
        partitions: How many partitions a new topic gets.
        replicas: How many replicas a new topic gets, and an existing one must have at least.
        patience: Seconds for which an opening or a call retries while Kafka does not answer.
        options: Kafka's own settings for TLS and SASL: never show them.
        shown: The URL without secrets, for people.
        password_file: A file with the password, which is used instead of one in the URL; "": none.
    """

    servers: str
    topic: str
    partition: int
    cache: Path
    partitions: int
    replicas: int
    patience: float
    options: Mapping[str, str] = field(repr=False)
    shown: str
    password_file: str = ""

    def password(self) -> str | None:
        """Return what the file contains now, as :meth:`SQLAddress.password`."""
        return password_in(self.password_file)

    @property
    def place(self) -> Path:
        """Return the directory of this partition's cache."""
        return self.cache / f"partition-{self.partition}"

    @property
    def group(self) -> str:
        """Return the name of the consumer group of a cluster's nodes."""
        return f"{self.topic}-nodes"


def read_kafka_address(location: str, partitions: int = PARTITIONS) -> KafkaAddress:
    """Return the log that a URL names.

    Args:
        location: The URL.
        partitions: How many partitions a new topic gets if the URL does not say it.

    Raises:
        ConfigurationError: It is not the URL of a log, or a part of it is invalid.
    """
    text = shown(location)
    rest, _, query = location.partition("://")[2].partition("?")
    given = _options(query, text)
    netloc, _, topic = rest.partition("/")
    login, _, servers = netloc.rpartition("@")
    if not all(map(_SERVER.fullmatch, servers.split(","))):
        raise ConfigurationError(f"{text!r} names no brokers with their ports.", remedy=f"Example: {_EXAMPLE}")
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ConfigurationError(f"{text!r} names no topic.", remedy=f"Add its name after the brokers: {_EXAMPLE}")
    cache = given.get("cache", "")
    if not cache.startswith("/"):
        raise ConfigurationError(
            f"{text!r} names no directory for the cache of the log.",
            remedy=f"Give an absolute path on a disk of this host: {_EXAMPLE}",
        )
    options = {name: value for name, value in given.items() if name not in _OURS}
    if login:
        user, _, password = login.partition(":")
        options |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
    return KafkaAddress(
        servers,
        topic,
        _whole(given, "partition", 0, 0, MOST_PARTITIONS - 1),
        Path(cache),
        _whole(given, "partitions", partitions, 1, MOST_PARTITIONS),
        _whole(given, "replicas", REPLICAS, 1, 100),
        float(_whole(given, "patience", int(DEFAULT_PATIENCE), 0, 10**9)),
        options,
        text,
        given.get("password_file", ""),
    )


def read_topic_address(location: str) -> KafkaAddress:
    """Return the topic that a URL names, for a reader on a machine that need not have a cache: it shows none.

    Raises:
        ConfigurationError: As for :func:`read_kafka_address`.
    """
    address = read_kafka_address(location)
    return replace(address, shown=address.shown.partition("?")[0])


def _options(query: str, text: str) -> dict[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name in given:
        if name not in _OURS and not _KAFKAS_OWN.fullmatch(name):
            raise ConfigurationError(
                f"The URL {text!r} has the unknown option {name!r}.",
                remedy=suggestion(
                    name, _OURS, f"Use {', '.join(_OURS)}, or Kafka's own settings: security.protocol, ssl.…, sasl.…"
                ),
            )
    if "sasl.password" in given:
        raise ConfigurationError(
            f"The URL {text!r} has the password as an option, which logs may show.",
            remedy="Write it before the brokers: kafka://user:password@host:9092/topic, or use store_password_file.",
        )
    return given


def _whole(given: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name, str(default))
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
        raise ConfigurationError(
            f"{value[:40]!r} is not a valid {name} of a log.", remedy=f"Use a whole number from {least} to {most}."
        )
    return int(value)
