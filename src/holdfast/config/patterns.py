"""Patterns for texts, such as addresses and Actions: a star matches any characters. Matched in one pass."""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern; a star matches any characters.

    Only a star matches a star in the text: so the function also tells whether one pattern covers another.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
