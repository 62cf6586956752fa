"""Texts of peers and servers, as a terminal may show them."""

from __future__ import annotations

from collections.abc import Iterable

LINES = "\n\t"
"""The unprintable characters that a text of several lines needs."""


MOST_LISTED = 8
"""Number of items of a list in a sentence."""


def few(items: Iterable[str]) -> str:
    """Join the first items of a list with commas, and the number of the others: a queue may have many partitions."""
    every = list(items)
    more = len(every) - MOST_LISTED
    return ", ".join(every) if more <= 1 else f"{', '.join(every[:MOST_LISTED])} and {more:,} more"


def shown(text: str, keep: str = "") -> str:
    """Escape the unprintable characters in a text, such as sequences that color or clear a terminal.

    Args:
        keep: Unprintable characters that stay as they are.
    """
    return "".join(one if one.isprintable() or one in keep else repr(one)[1:-1] for one in text)
