"""The options of ``spark.read.format("wsrm")``: names, defaults, limits. Knows nothing of Spark or of the network."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from holdfast.core.queues import check_reader
from holdfast.endpoint.admin_client import Access
from holdfast.endpoint.admin_guard import checked_token
from holdfast.exceptions import ConfigurationError

Position = str | dict[int, int]
"""``"earliest"``, ``"latest"``, or partition -> offset."""


def usable_cores() -> int:
    """The processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _url(name: str, text: str) -> str:
    parts = urlsplit(text)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.username:
        raise ConfigurationError(
            f"option {name}={text!r} is not the URL of a server",
            remedy="give the address of its admin listener, for example http://127.0.0.1:8081",
        )
    return text.rstrip("/")


def _token(name: str, text: str) -> str:
    """A token that a header can carry."""
    return checked_token(text, f"option {name}")


def _name(name: str, text: str) -> str:
    if not text or text != text.strip():
        raise ConfigurationError(f"option {name}={text!r} is empty or has spaces around it")
    return text


def _reader(name: str, text: str) -> str:
    check_reader(text)
    return text


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"option {name}={text!r} is neither true nor false")
    return text.lower() == "true"


def _positive(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ConfigurationError(f"option {name}={text!r} is not a whole number above 0")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigurationError(f"option {name}={text!r} is not a number of seconds")
    return value


def _wait(name: str, text: str) -> float:
    value = _seconds(name, text)
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


def _option(name: str, parse: Callable[[str, str], Any]) -> dict[str, Any]:
    return {"name": name, "parse": parse}


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

    broker: str = field(metadata=_option("broker", _url))
    queue: str = field(default="inbox", metadata=_option("queue", _name))
    reader: str = field(default="", metadata=_option("reader", _reader))
    starting: Position = field(default="earliest", metadata=_option("startingOffsets", _position))
    ending: Position = field(default="latest", metadata=_option("endingOffsets", _position))
    max_rows: int = field(default=100_000, metadata=_option("maxRowsPerBatch", _positive))
    wait: float = field(default=0.4, metadata=_option("waitSeconds", _wait))
    away: float = field(default=60.0, metadata=_option("awaySeconds", _seconds))
    tasks: int = field(default_factory=usable_cores, metadata=_option("tasks", _positive))
    body: bool = field(default=True, metadata=_option("body", _boolean))
    headers: bool = field(default=False, metadata=_option("headers", _boolean))
    token: str = field(default="", metadata=_option("token", _token), repr=False)
    token_file: str = field(default="", metadata=_option("tokenFile", _name))
    ca_file: str = field(default="", metadata=_option("caFile", _name))
    certificate_file: str = field(default="", metadata=_option("certificateFile", _name))
    key_file: str = field(default="", metadata=_option("keyFile", _name))
    proxy: str = field(default="", metadata=_option("proxy", _name), repr=False)
    access: Access = field(default=Access(), repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Options as Spark hands them over: texts, under names whose case does not count.

        Raises:
            ConfigurationError: A name nobody knows, with the nearest right one; a value that cannot be used; no broker.
        """
        known = {f.metadata["name"].lower(): f for f in cls.__dataclass_fields__.values() if f.metadata}
        values: dict[str, Any] = {}
        for given, text in options.items():
            option = known.get(given.lower())
            if option is None:
                raise _unknown(given, [f.metadata["name"] for f in known.values()])
            values[option.name] = option.metadata["parse"](option.metadata["name"], str(text))
        if "broker" not in values:
            raise ConfigurationError(
                "the wsrm source has no option broker",
                remedy='add .option("broker", "http://127.0.0.1:8081"), the address of the server\'s admin listener',
            )
        if values.get("ending") == "earliest":
            raise ConfigurationError(
                "option endingOffsets=earliest would read nothing", remedy="give latest or offsets"
            )
        return cls(**values, access=_access(values))


def _access(values: Mapping[str, Any]) -> Access:
    """What the files hold, read now."""
    if values.get("token") and values.get("token_file"):
        raise ConfigurationError("options token and tokenFile exclude each other", remedy="leave one of them out")
    access = Access.of_files(
        token_file=values.get("token_file"),
        ca=values.get("ca_file"),
        certificate=values.get("certificate_file"),
        key=values.get("key_file"),
        proxy=values.get("proxy"),
    )
    return replace(access, token=values["token"]) if values.get("token") else access


def _unknown(given: str, names: list[str]) -> ConfigurationError:
    nearest = difflib.get_close_matches(given.lower(), [name.lower() for name in names], n=1, cutoff=0.6)
    right = next((name for name in names if nearest and name.lower() == nearest[0]), None)
    remedy = f"did you mean {right}?" if right else f"the options are {', '.join(sorted(names))}"
    return ConfigurationError(f"the wsrm source has no option {given}", remedy=remedy)
