"""The options of ``spark.read.format("wsrm")``: names, defaults, limits. Knows nothing of Spark or of the network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.queues import check_reader
from holdfast.endpoint.admin_client import Access
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.option_values import (
    access_of,
    as_boolean,
    as_name,
    as_positive,
    as_seconds,
    as_token,
    as_url,
    option,
    parsed,
)

Position = str | dict[int, int]
"""``"earliest"``, ``"latest"``, or partition -> offset."""


def usable_cores() -> int:
    """The processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _reader(name: str, text: str) -> str:
    check_reader(text)
    return text


def _wait(name: str, text: str) -> float:
    value = as_seconds(name, text)
    if value > 60:
        raise ConfigurationError(f"option {name}={text!r} is above 60 seconds", remedy="the server waits no longer")
    return value


def _position(name: str, text: str) -> Position:
    if text in ("earliest", "latest"):
        return text
    try:
        given = json.loads(text)
        return {_whole(partition): _whole(offset) for partition, offset in given.items()}
    except (ValueError, AttributeError):
        raise ConfigurationError(
            f"option {name}={text!r} is no position in a queue",
            remedy='give earliest, latest, or an offset for each partition: {"0": 120, "1": 8}',
        ) from None


def _whole(value: Any) -> int:
    number = int(value)
    if isinstance(value, bool | float) or number < 0:
        raise ValueError(value)
    return number


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of a read, batch or stream. Option names are the camelCase ones of the metadata.

    Args:
        broker: URL of the server's admin listener as the executors see it. Required.
        queue: The queue to read.
        reader: Name of the cursor a stream keeps on the server: letters, digits, dots, hyphens and underscores.
            Required for a stream; two queries that read one queue need two names.
        starting: Where a stream whose cursor is not on the server yet, or a batch read, starts. A partition that is not
            named starts at its earliest record.
        ending: Where a batch read ends; a stream ignores it. A partition that is not named is read to its end.
        max_rows: Rows of one micro-batch at most.
        wait: Seconds the server may hold back an answer that nothing is new (0..60).
        away: Seconds a server that is away is waited for before the query fails.
        tasks: Spark partitions of one read at most.
        body: Whether there is a ``body`` column.
        headers: Whether there is a ``headers`` column.
        token: The admin listener's token. Spark shows options to whoever may look at the query: ``tokenFile``, or the
            environment variable ``HOLDFAST_ADMIN_TOKEN`` of the driver, keep it to themselves.
        token_file: File with the token. This file and those below are read once, in the driver; tasks need none.
        ca_file: PEM file of the authorities to trust, for https, instead of the system's.
        certificate_file: PEM file of a certificate to show, with its chain.
        key_file: PEM file of its key, if that is in another file.
        proxy: URL of an HTTP proxy to go through.
    """

    broker: str = field(metadata=option("broker", as_url))
    queue: str = field(default="inbox", metadata=option("queue", as_name))
    reader: str = field(default="", metadata=option("reader", _reader))
    starting: Position = field(default="earliest", metadata=option("startingOffsets", _position))
    ending: Position = field(default="latest", metadata=option("endingOffsets", _position))
    max_rows: int = field(default=100_000, metadata=option("maxRowsPerBatch", as_positive))
    wait: float = field(default=0.4, metadata=option("waitSeconds", _wait))
    away: float = field(default=60.0, metadata=option("awaySeconds", as_seconds))
    tasks: int = field(default_factory=usable_cores, metadata=option("tasks", as_positive))
    body: bool = field(default=True, metadata=option("body", as_boolean))
    headers: bool = field(default=False, metadata=option("headers", as_boolean))
    token: str = field(default="", metadata=option("token", as_token), repr=False)
    token_file: str = field(default="", metadata=option("tokenFile", as_name))
    ca_file: str = field(default="", metadata=option("caFile", as_name))
    certificate_file: str = field(default="", metadata=option("certificateFile", as_name))
    key_file: str = field(default="", metadata=option("keyFile", as_name))
    proxy: str = field(default="", metadata=option("proxy", as_name), repr=False)
    access: Access = field(default=Access(), repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Options as Spark hands them over: texts, under names whose case does not count.

        Raises:
            ConfigurationError: A name nobody knows, with the nearest right one; a value that cannot be used; no broker.
        """
        values = parsed(cls, options, "source")
        if values.get("ending") == "earliest":
            raise ConfigurationError(
                "option endingOffsets=earliest would read nothing", remedy="give latest or offsets"
            )
        return cls(**values, access=access_of(values))
