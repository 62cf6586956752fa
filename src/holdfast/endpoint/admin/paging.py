"""Paging: a long list, one page at a time. The key of the last item on a page marks where the next page begins."""

from __future__ import annotations

from collections.abc import Collection
from heapq import nsmallest
from typing import TypeVar

from holdfast.core.origin import without_secrets
from holdfast.endpoint.admin.shapes.requests import Page
from holdfast.endpoint.admin.shapes.values import MOST_LISTED

Item = TypeVar("Item")
Key = tuple[str, ...]
"""Unique key of an item, which also determines the order. No part of it contains a line break."""


def page_of(items: Collection[tuple[Key, Item]], asked: Page) -> tuple[list[Item], str | None]:
    """Return the requested page of a list.

    Returns:
        The items of the page, in the order of their keys; and the ``after`` of the next page, None after the last page.
    """
    # In the order in which clients see the keys: they send back the last one as it was shown.
    items = [(_shown(key), item) for key, item in items]
    after = tuple(without_secrets(asked.after).split("\n"))
    rest = [one for one in items if one[0] > after] if asked.after else items
    # Cheaper than a sort: the list may be long, and a page is short.
    shown = nsmallest(min(asked.limit, MOST_LISTED), rest, key=lambda one: one[0])
    following = "\n".join(shown[-1][0]) if len(rest) > len(shown) else None
    return [item for _, item in shown], following


def _shown(key: Key) -> Key:
    # Nearly no key has a secret. One look at all its parts costs a third of one look at each.
    return tuple(map(without_secrets, key)) if "holdfast" in "".join(key).lower() else key
