"""Sinks at several workers: each is at one, whoever is asked, and stays there when there are more of them."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crew import Crew, wait_until

from holdfast.endpoint.worker import worker_of

SINKS = [f"s{number}" for number in range(6)]
"""Of which two workers have three each, by their hashes, and of three workers some would be elsewhere."""


def ask(admin: str, path: str, method: str = "GET", data: bytes | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(f"{admin}{path}", data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def stage(admin: str, sink: str, batch: int, token: str, rows: int) -> tuple[int, Any]:
    row = msgspec.msgpack.encode(["k", "inbox", None, "urn:a", None, f"<a>{sink}</a>".encode(), None, None, None])
    data = (struct.pack(">I", len(row)) + row) * rows + struct.pack(">IQ", 2**32 - 1, rows)
    return ask(admin, f"/sinks/{sink}/parts?query=q&batch={batch}&token={token}", "POST", data)


def publish(admin: str, sink: str, batch: int, *tokens: str, rows: int) -> tuple[int, Any]:
    asked = json.dumps({"query": "q", "tokens": tokens, "rows": rows}).encode()
    return ask(admin, f"/sinks/{sink}/batches/{batch}", "POST", asked)


def begin(directory: Path, workers: int) -> tuple[Crew, str]:
    crew = Crew(directory, "--port", "0", "--admin", "0", "--workers", str(workers))
    assert crew.url()
    return crew, crew.url().rstrip("/")


def records(admin: str) -> int:
    return int(ask(admin, "/queues/inbox")[1]["records"])


@pytest.mark.crash
def test_a_sink_stays_at_one_worker_whoever_is_asked_and_however_many_join(tmp_path: Path) -> None:
    crew, admin = begin(tmp_path, 2)
    try:
        for sink in SINKS:
            assert stage(admin, sink, 0, "t", 3)[1]["rows"] == 3
            assert publish(admin, sink, 0, "t", rows=3) == (200, {"published": True, "rows": 3, "attempt": ""})
        listed = ask(admin, "/sinks?limit=4")[1]
        rest = ask(admin, f"/sinks?after={listed['next']}")[1]["sinks"]
        assert sorted(one["name"] for one in [*listed["sinks"], *rest]) == SINKS
        assert (listed["count"], {worker_of(one["sequence"]) for one in [*listed["sinks"], *rest]}) == (6, {0, 1})
        status, told = stage(admin, "s0", 9, "u", 1)
        assert (status, told["why"]) == (409, "jump")
        assert stage(admin, "s0", 1, "u", 1)[0] == 200
        crew.kill(0)
        crew.kill(1)
        wait_until(lambda: records(admin) == 18)
        assert crew.end() == 0
        crew, admin = begin(tmp_path, 3)
        for sink in SINKS:
            assert publish(admin, sink, 0, "t", rows=3)[1] == {"published": False, "rows": 3, "attempt": ""}
        assert publish(admin, "s0", 1, "u", rows=1)[1]["published"] is True
        assert ask(admin, "/sinks/s1/bind", "POST", b'{"query": "other"}')[1]["query"] == "other"
        assert ask(admin, "/sinks/s2", "DELETE") == (204, None)
        assert ask(admin, "/sinks/s2", "DELETE")[0] == 404
        wait_until(lambda: records(admin) == 19)
        assert crew.end() == 0
    finally:
        crew.clean()
