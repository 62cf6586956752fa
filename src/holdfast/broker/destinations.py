"""Patterns for the addresses of destinations: an address, a host, a prefix, or all; and which one is most specific."""

from __future__ import annotations

import re

from holdfast.config.values import Unfit, host_of, told_value
from holdfast.endpoint.arguments import check_url
from holdfast.exceptions import ConfigurationError

EVERY = "*"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)(?::(?P<port>\d{1,5}))?")

Nearness = tuple[int, int]
"""How specific a pattern is, larger is more specific: its kind, then its length."""


def check_pattern(pattern: str) -> None:
    """Check a pattern.

    Raises:
        Unfit: It is not a valid pattern.
    """
    if pattern == EVERY or _HOST.fullmatch(pattern) is not None:
        return
    address = pattern.removesuffix("*")
    try:
        check_url("this", address)
    except ConfigurationError:
        address = ""
    if not address or "*" in address or "@" in address:
        raise Unfit(
            f"{told_value(pattern)} is not a pattern for addresses",
            'Examples: "https://partner.example/orders", "https://partner.example/*", "partner.example" or "*".',
        )


def nearness(pattern: str, address: str) -> Nearness | None:
    """Return how specific a pattern is for an address: an exact address is most specific, then the longest prefix, then
    a host with its port, a host, and all. None: it does not match."""
    if pattern == EVERY:
        return (0, 0)
    if "://" in pattern:
        if not pattern.endswith("*"):
            return (3, 0) if pattern == address else None
        return (2, len(pattern)) if address.startswith(pattern[:-1]) else None
    found = _HOST.fullmatch(pattern)
    if found is None or "://" not in address:
        return None
    host, port = host_of(address)
    if found["name"].strip("[]").lower() != host or found["port"] not in (None, str(port)):
        return None
    return (1, 1 if found["port"] else 0)
