"""Paging: a long list, a part at a time. Where it goes on is told by the key of the last that was shown."""

from __future__ import annotations

from collections.abc import Collection
from heapq import nsmallest
from typing import TypeVar

from holdfast.endpoint.admin.shapes import MOST_LISTED, Page

Item = TypeVar("Item")
Key = tuple[str, ...]
"""What tells one from the others, and the order that they are shown in. No part of it holds a line break."""


def page_of(items: Collection[tuple[Key, Item]], asked: Page) -> tuple[list[Item], str | None]:
    """The part of a list that is asked for.

    Args:
        items: All, each with its key.
        asked: Behind which, and how many.

    Returns:
        Those, in the order of their keys; and what to ask for next, None behind the last.
    """
    after = tuple(asked.after.split("\n"))
    rest = [one for one in items if one[0] > after] if asked.after else items
    shown = nsmallest(min(asked.limit, MOST_LISTED), rest, key=lambda one: one[0])
    following = "\n".join(shown[-1][0]) if len(rest) > len(shown) else None
    return [item for _, item in shown], following
