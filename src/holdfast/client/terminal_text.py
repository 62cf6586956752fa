"""Texts of peers and servers, as a terminal may show them."""

from __future__ import annotations

LINES = "\n\t"
"""The unprintable characters that a text of several lines needs."""


def shown(text: str, keep: str = "") -> str:
    """Escape the unprintable characters in a text, such as sequences that color or clear a terminal.

    Args:
        text: The text.
        keep: Unprintable characters that stay as they are.
    """
    return "".join(one if one.isprintable() or one in keep else repr(one)[1:-1] for one in text)
