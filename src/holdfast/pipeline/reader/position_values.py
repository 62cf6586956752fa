"""Parsing of positions in queues, times and durations in options."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.client.offsets import EARLIEST, Positions
from holdfast.exceptions import ConfigurationError
from holdfast.settings import MOST_SECONDS, suggestion

ByQueue = dict[str, Positions]
"""Queue -> partition -> offset or time; "" stands for the only queue of the read."""
Position = str | ByQueue
"""``"earliest"``, ``"latest"``, or offsets by queue."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
LATEST_TIME = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The latest supported time, in microseconds since 1970."""

_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)")
_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


def as_position(name: str, text: str) -> Position:
    """Parse ``earliest``, ``latest``, or offsets as JSON; -1 is the end of a partition and -2 its first record."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    example = '{"0": 120, "1": 8}, or {"orders": {"0": 120}} for several queues'
    remedy = f"Use earliest, latest, or an offset for each partition: {example}"
    return _by_queue(f"option {name}={text!r} is not a position in a queue", text, _offset, remedy)


def as_times(name: str, text: str) -> ByQueue:
    """Parse times as JSON: for each partition milliseconds since 1970, or a text. Returns microseconds."""
    remedy = 'Use a time for each partition: {"0": 1767225600000} or {"orders": {"0": "2026-01-01T00:00:00Z"}}'
    return _by_queue(f"option {name}={text!r} contains no times", text, _time, remedy)


def as_time(name: str, text: str) -> int:
    """Parse a time, ISO 8601 (UTC without a zone) or milliseconds since 1970, to microseconds."""
    try:
        return _time(int(text) if re.fullmatch(r"-?[0-9]+", text) else text)
    except ValueError:
        raise ConfigurationError(
            f"option {name}={text!r} is not a time",
            remedy="Use 2026-01-01T00:00:00Z, or milliseconds since 1970: 1767225600000",
        ) from None


def as_span(name: str, text: str) -> float:
    """Parse a duration to seconds: ``500ms``, ``30s``, ``15m``, ``1h``; a number without a unit is in seconds."""
    found = _SPAN.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _UNITS.get(found[2] or "s", math.inf) if found is not None else math.inf
    if not seconds <= MOST_SECONDS:
        raise ConfigurationError(f"option {name}={text[:40]!r} is not a duration", remedy="Use 500ms, 30s, 15m or 1h")
    return seconds


def _by_queue(says: str, text: str, value: Callable[[Any], int], remedy: str) -> ByQueue:
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError
        if any(isinstance(one, dict) for one in given.values()):
            return {str(queue): _of_partitions(part, value) for queue, part in given.items()}
        return {"": _of_partitions(given, value)}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ConfigurationError(says, remedy=remedy) from None


def _of_partitions(given: Mapping[str, Any], value: Callable[[Any], int]) -> Positions:
    positions = {}
    for partition, one in given.items():
        if not (partition.isascii() and partition.isdigit()):
            raise ValueError(partition)
        positions[int(partition)] = value(one)
    return positions


def _offset(value: object) -> int:
    number = int(value) if isinstance(value, str) else value
    if type(number) is not int or not EARLIEST <= number < 2**63:
        raise ValueError(value)
    return number


def _time(value: object) -> int:
    if isinstance(value, str):
        when = datetime.fromisoformat(value)
        micros = ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    elif type(value) is int:
        micros = value * 1000
    else:
        raise ValueError(value)
    if not 0 <= micros <= LATEST_TIME:
        raise ValueError(value)
    return micros


def as_queues(name: str, text: str) -> tuple[str, ...]:
    """Parse names separated by commas."""
    names = tuple(one.strip() for one in text.split(","))
    if not all(names):
        empty = f"option {name}={text!r} " + ("contains an empty name" if any(names) else "names no queue")
        raise ConfigurationError(empty, remedy=f"Name queues in the form orders,returns, or omit option {name}")
    if twice := next((one for one in names if names.count(one) > 1), ""):
        raise ConfigurationError(f"option {name}={text!r} names the queue {twice!r} twice", remedy="Name it once")
    return names


def as_pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigurationError(
            f"option {name}={text!r} is not a regular expression: {error}",
            remedy="Use an expression that matches full names, for example orders-.*",
        ) from None
    return text


def as_partitions(name: str, text: str) -> frozenset[int]:
    """Parse numbers separated by commas."""
    parts = [one.strip() for one in text.split(",")]
    if not all(one.isascii() and one.isdigit() and len(one) < 20 for one in parts):
        raise ConfigurationError(f"option {name}={text!r} names no partitions", remedy="Use their numbers: 0,3")
    return frozenset(map(int, parts))


def one_of(words: Collection[str]) -> Callable[[str, str], str]:
    """Return a parser of options with a fixed set of values."""

    def read(name: str, text: str) -> str:
        if text.lower() not in words:
            remedy = suggestion(text.lower(), words, f"Give {' or '.join(words)}")
            raise ConfigurationError(f"option {name}={text!r} is not known", remedy=remedy)
        return text.lower()

    return read


def of_queues(option: str, given: ByQueue, queues: tuple[str, ...], pattern: str) -> ByQueue:
    """Return the given values by the names of the queues of the read.

    Raises:
        ConfigurationError: The values name other queues, or none although the read has several.
    """
    if "" in given:
        if len(queues) != 1:
            raise ConfigurationError(
                f"option {option} names partitions without queues, but several queues are read",
                remedy='Name the queues: {"orders": {"0": 120}, "returns": {"0": 8}}',
            )
        return {queues[0]: given[""]}
    for queue in given:
        if queue not in queues and not (pattern and re.fullmatch(pattern, queue)):
            there = suggestion(queue, queues, f"The query reads {', '.join(queues) or pattern}")
            raise ConfigurationError(f"option {option} names queue {queue!r}, which is not read", remedy=there)
    return given
