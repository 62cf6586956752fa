"""Answers in JSON."""

from __future__ import annotations

import json

from holdfast.http.exchange import Exchange


def json_answer(exchange: Exchange, status: int, value: object, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    exchange.respond(status, json.dumps(value).encode() + b"\n", b"application/json", headers)
