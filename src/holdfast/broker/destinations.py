"""Patterns of policies: for the addresses of destinations, forwarders' names and actions; and the most specific one."""

from __future__ import annotations

import re
from collections.abc import Collection

from holdfast.config.values import Unfit, host_of, told_value
from holdfast.endpoint.arguments import check_url
from holdfast.endpoint.sending.policies import EVERY, fits
from holdfast.exceptions import ConfigurationError

NAME, ACTION = "name:", "action:"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)(?::(?P<port>\d{1,5}))?")

Nearness = tuple[int, int]
"""How specific a pattern is, larger is more specific: its kind, then its length."""


def check_pattern(pattern: str) -> None:
    """Check a pattern.

    Raises:
        Unfit: It is not a valid pattern.
    """
    for kind in (NAME, ACTION):
        text = pattern.removeprefix(kind)
        if text != pattern and text and EVERY not in text[:-1]:
            return
    if pattern == EVERY or _HOST.fullmatch(pattern) is not None:
        return
    address = pattern.removesuffix("*")
    try:
        check_url("this", address)
    except ConfigurationError:
        address = ""
    if not address or "*" in address or "@" in address:
        raise Unfit(
            f"{told_value(pattern)} is not a pattern for addresses, names or actions",
            'Examples: "https://partner.example/orders", "https://partner.example/*", "partner.example", '
            '"name:orders-*", "action:urn:orders/*" or "*".',
        )


def nearness(pattern: str, address: str, name: str = "", actions: Collection[str] = ()) -> Nearness | None:
    """Return how specific a pattern is for the Sequences of a forwarder.

    A forwarder's name is most specific, then actions, then an exact address, the longest prefix, a host with its port,
    a host, and all. None: it does not match.

    Args:
        address: The address of the destination.
        name: The name of the forwarder; "" without one.
        actions: The actions of the messages in its queue, as patterns; empty if the queue has messages of any action.
    """
    if pattern == EVERY:
        return (0, 0)
    if pattern.startswith(NAME):
        return (5, len(pattern)) if name and fits(pattern.removeprefix(NAME), name) else None
    if pattern.startswith(ACTION):
        wanted = pattern.removeprefix(ACTION)
        return (4, len(pattern)) if actions and all(fits(wanted, action) for action in actions) else None
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
