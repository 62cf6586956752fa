"""What a configuration permits, but hardly anyone wants. The broker starts nevertheless."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.broker.config import BrokerConfig, ForwarderConfig, actions_of
from holdfast.broker.destinations import ACTION, NAME, nearness
from holdfast.config.values import Secret
from holdfast.exceptions import ConfigurationError
from holdfast.security.users import Users
from holdfast.store.address import is_kafka
from holdfast.store.directory import is_public

KAFKA_LEAST_LEASE: Final = 6.0
"""Seconds: Kafka's default for the shortest session of a member of a group."""


def public_secrets(table: Any) -> list[str]:
    """Return the files with secrets that every user of the machine can read, in the order of the keys."""
    if isinstance(table, Secret | Users):
        file = table.origin if isinstance(table, Secret) else table.file
        return [file] if is_public(Path(file)) else []
    parts = table if isinstance(table, tuple) else [getattr(table, one.name) for one in fields(table)]
    several = [one for one in parts if is_dataclass(one) or isinstance(one, Secret | Users | tuple)]
    return list(dict.fromkeys(file for one in several for file in public_secrets(one)))


def forwarders_of_policies(config: BrokerConfig) -> dict[str, list[str]]:
    """Return the names of the forwarders that each pattern of ``policies`` matches."""
    known = [
        (one.name, one.to, actions_of(one.queue, config.routes, config.default_queue)) for one in config.forwarders
    ]
    return {
        one.pattern: [name for name, to, actions in known if nearness(one.pattern, to, name, actions) is not None]
        for one in config.policies
    }


def unused_policies(config: BrokerConfig) -> dict[str, str]:
    """Return the patterns that can match nothing, such as misspelt ones, and why.

    A pattern of addresses without a forwarder may still match where peers want their replies.
    """
    why = {
        NAME: "no forwarder has this name",
        ACTION: "no forwarder has a queue to which routes send only messages with this action",
    }
    return {
        pattern: told
        for pattern, names in forwarders_of_policies(config).items()
        for kind, told in why.items()
        if pattern.startswith(kind) and not names
    }


def forwarders_alone(forwarders: Iterable[ForwarderConfig]) -> dict[str, list[ForwarderConfig]]:
    """Return address -> the forwarders to it that are the only one of their queue, in the order of the file."""
    forwarders = tuple(forwarders)
    readers = Counter(one.queue for one in forwarders)
    found: dict[str, list[ForwarderConfig]] = {}
    for one in forwarders:
        if readers[one.queue] == 1:
            found.setdefault(one.to, []).append(one)
    return found


def shared_addresses(config: BrokerConfig) -> dict[str, list[str]]:
    """Return the addresses of several forwarders with different queues, and the names of these forwarders.

    Each queue may have its own order, limit or policy. But a row for the address goes into the queue of the first.
    """
    found = forwarders_alone(config.forwarders)
    return {to: [one.name for one in several] for to, several in found.items() if len(several) > 1}


def short_lease(config: BrokerConfig) -> str:
    """Return why Kafka may refuse the lease of a cluster; "": no reason."""
    cluster = config.cluster
    if cluster is None or not is_kafka(config.store) or cluster.lease >= KAFKA_LEAST_LEASE:
        return ""
    return (
        f"cluster.lease is {cluster.lease:g} s, and Kafka's brokers by default accept no lease below "
        f"{KAFKA_LEAST_LEASE:g} s (their setting group.min.session.timeout.ms)"
    )


def expired_assertions(config: BrokerConfig) -> list[str]:
    files = [one.security.assertion for one in config.forwarders if one.security is not None]
    return [file for file in dict.fromkeys(files) if file is not None and _has_expired(file)]


def _has_expired(file: str) -> bool:
    try:
        from holdfast.security.saml.saml_token import end_of_assertion

        until = end_of_assertion(file)
    except ConfigurationError:  # another program replaces it just now
        return False
    return until is not None and until <= time.time()


def tls_certificates(config: BrokerConfig) -> list[str]:
    """Return the files with the broker's own certificates for TLS. Those between nodes have warnings of their own."""
    tables = (config.listen.tls, config.admin.tls if config.admin.enabled else None)
    files = [one.certificate for one in (*tables, *(forwarder.tls for forwarder in config.forwarders)) if one]
    return list(dict.fromkeys(file for file in files if file is not None))
