"""Patterns over texts, such as addresses and Actions: a star stands for whatever is there. Looked at in one pass."""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """Whether a text is what a pattern says; a star stands for whatever is there.

    A star in the text is taken by a star alone: so a pattern in the text's place is covered if this is so.
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
