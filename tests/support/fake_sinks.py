"""The sinks of a server, small: what is staged and published is in memory, and rows with faults are refused."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

FIELDS = ("key", "queue", "to", "action", "headers", "body", "message_id", "relates_to", "reply_to")
Row = dict[str, Any]


class SinkRefusal(Exception):
    def __init__(self, status: int, error: str, **answer: Any) -> None:
        super().__init__(error)
        self.status = status
        self.answer = {"error": error, **answer}


def decode_rows(data: bytes) -> list[Row] | None:
    """The rows of a part, None of one that is cut off."""
    rows: list[Row] = []
    at = 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        at += 4
        if length == 0xFFFFFFFF:
            (count,) = struct.unpack_from(">Q", data, at)
            return rows if (count, at + 8) == (len(rows), len(data)) else None
        rows.append(dict(zip(FIELDS, msgspec.msgpack.decode(data[at : at + length]), strict=True)))
        at += length
    return None


def fault(row: Row) -> str:
    """Why a row cannot be sent, "" if it can."""
    return "the body is no XML element" if not re.match(rb"\s*<", row["body"]) else ""


@dataclass
class Sink:
    query: str
    last: dict[str, int] = field(default_factory=dict)
    staged: dict[str, tuple[str, int, list[Row]]] = field(default_factory=dict)
    published: list[tuple[str, int, list[Row]]] = field(default_factory=list)
    attempts: dict[tuple[str, int | None], str] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        return [row for _, _, rows in self.published for row in rows]

    @property
    def bodies(self) -> list[str]:
        return [row["body"].decode() for row in self.rows]


class Sinks:
    """``tokens`` are all that were ever staged; ``forgotten`` are sinks that were deleted."""

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.forgotten: dict[str, Sink] = {}
        self.tokens: list[str] = []
        self.fault: Callable[[Row], str] = fault

    def __getitem__(self, name: str) -> Sink:
        return self.sinks[name]

    def answer(self, method: str, steps: list[str], query: dict[str, str], body: bytes) -> dict[str, Any]:
        """What a request of ``/sinks/...`` does."""
        name, rest = steps[1], steps[2:]
        if method == "DELETE":
            if name not in self.sinks:
                raise SinkRefusal(404, f"no sink {name}")
            self.forgotten[name] = self.sinks.pop(name)
            return {}
        if method == "GET":
            if name not in self.sinks:
                raise SinkRefusal(404, f"no sink {name}")
            sink = self.sinks[name]
            batch = sink.last.get(sink.query)
            return {"query": sink.query, "batch": batch, "attempt": sink.attempts.get((sink.query, batch))}
        if rest == ["parts"]:
            return self._stage(name, query, body)
        asked = msgspec.json.decode(body)
        if rest[0] == "batches":
            return self._publish(name, int(rest[1]), asked)
        if rest == ["bind"]:
            self.sinks.setdefault(name, Sink(asked["query"])).query = asked["query"]
            return {}
        assert rest == ["discard"], steps
        for token in asked["tokens"]:
            self.sinks[name].staged.pop(token, None)
        return {}

    def _sink(self, name: str, query: str, batch: int, jumps: bool) -> Sink:
        sink = self.sinks.setdefault(name, Sink(query))
        if sink.query != query:
            raise SinkRefusal(409, f"sink {name} is bound to {sink.query}", why="bound", query=sink.query)
        last = sink.last.get(query, -1)
        if batch > last + 1 and not jumps:
            raise SinkRefusal(409, f"batch {batch} after {last}", why="jump")
        if batch < last and (query, batch) not in [one[:2] for one in sink.published]:
            raise SinkRefusal(409, f"batch {batch} was overtaken by {last}", why="overtaken")
        return sink

    def _stage(self, name: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
        batch, token = int(query["batch"]), query["token"]
        sink = self._sink(name, query["query"], batch, "jump" in query)
        rows = decode_rows(body)
        if rows is None:
            raise SinkRefusal(400, "the part is cut off")
        if batch <= sink.last.get(sink.query, -1):
            return {"rows": len(rows), "already": True, "attempt": sink.attempts.get((sink.query, batch))}
        if token in self.tokens:
            raise SinkRefusal(409, f"token {token} is known", why="token")
        refused = [
            {"row": at, "error": self.fault(row), "column": "body"} for at, row in enumerate(rows) if self.fault(row)
        ]
        if refused and query.get("refused") != "tell":
            raise SinkRefusal(422, refused[0].pop("error"), **refused[0])
        numbers = {one["row"] for one in refused}
        kept = [row for at, row in enumerate(rows) if at not in numbers]
        self.tokens.append(token)
        sink.staged[token] = (sink.query, batch, kept)
        return {"rows": len(kept), "refused": refused}

    def _publish(self, name: str, batch: int, asked: dict[str, Any]) -> dict[str, Any]:
        sink = self._sink(name, asked["query"], batch, asked.get("jump", False))
        if batch <= sink.last.get(sink.query, -1):
            return {"published": False, "rows": 0, "attempt": sink.attempts.get((sink.query, batch))}
        parts = [sink.staged.get(token, (None, None, [])) for token in asked["tokens"]]
        if any(part[:2] != (sink.query, batch) for part in parts):
            raise SinkRefusal(409, "a token is unknown", why="unknown")
        rows = [row for _, _, rows in parts for row in rows]
        if len(rows) != asked["rows"]:
            raise SinkRefusal(409, f"{len(rows)} rows are staged, not {asked['rows']}", why="count")
        sink.published.append((sink.query, batch, rows))
        sink.last[sink.query] = batch
        sink.attempts = {(sink.query, batch): asked.get("attempt", "")}
        sink.staged.clear()
        return {"published": True, "rows": len(rows), "attempt": asked.get("attempt", "")}
