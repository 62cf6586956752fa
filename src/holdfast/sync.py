"""``holdfast.sync``: the blocking Source, under the name that programs import it by. Owns nothing itself."""

from __future__ import annotations

from holdfast.endpoint.source.sync import Sent, Source

__all__ = ["Sent", "Source"]
