"""Values that several requests and answers have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.endpoint.admin.routes import LARGEST_NUMBER, Shape

Offset = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
Text = Annotated[str, Meta(max_length=2000)]
Limit = Annotated[int, Meta(ge=1, le=LARGEST_NUMBER, description="Maximum number of entries, at most 1000.")]

MOST_LISTED = 1000
"""Maximum number of items in one response; the list continues from its ``next``."""


class Guess(Shape):
    """Where to start the search for the end of a batch: the ``guess`` of the previous response."""

    ended: Annotated[Offset, Meta(description="Microseconds since 1970.")]
    width: Annotated[Offset, Meta(description="Microseconds.")] = 0
