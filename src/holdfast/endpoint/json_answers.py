"""Answers in JSON."""

from __future__ import annotations

import json

from holdfast.core.origin import without_secrets
from holdfast.http.exchange import Exchange

_CONTENT = ("headers", "body")
"""Fields that repeat a message: readers process it, so it stays as it is."""


def json_answer(exchange: Exchange, status: int, value: object, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    text = json.dumps(value)
    if without_secrets(text) != text:  # rarely, and it takes less time than to look into each value
        text = json.dumps(_shown(value))
    exchange.respond(status, text.encode() + b"\n", b"application/json", headers)


def _shown(value: object) -> object:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {
            _shown(name): one if name in _CONTENT and isinstance(one, str) else _shown(one)
            for name, one in value.items()
        }
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value
