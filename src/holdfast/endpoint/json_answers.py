"""Answers in JSON."""

from __future__ import annotations

import json

from holdfast.core.origin import without_secrets
from holdfast.http.exchange import Exchange


def json_answer(exchange: Exchange, status: int, value: object, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    exchange.respond(status, without_secrets(json.dumps(value)).encode() + b"\n", b"application/json", headers)
