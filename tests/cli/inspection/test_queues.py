"""``holdfast queues``: a store, also while it is open, and a running server."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.queues.queue_limit import QueueLimit


def send(url: str, count: int = 3) -> None:
    with holdfast.sync.Source(url, store=":memory:") as source:
        for number in range(count):
            source.send(f"<n>{number}</n>", action="urn:a").acknowledged(60)


def put_cursor(admin: str, name: str, offsets: dict[str, int]) -> None:
    with urllib.request.urlopen(f"{admin}/queues") as answer:
        ((queue, described),) = json.load(answer)["queues"].items()
    body = json.dumps({"epoch": described["epoch"], "offsets": offsets}).encode()
    request = urllib.request.Request(f"{admin}/queues/{queue}/cursors/{name}", data=body, method="PUT")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def test_queues_are_listed_with_their_cursors_from_a_store_that_is_open(run: Any, served: Any, tmp_path: Path) -> None:
    send(served.url)
    put_cursor(served.admin, "audit", {})
    result = run("queues", str(tmp_path / "served"))
    assert result.code == 0
    header, *lines = result.out.splitlines()
    assert header.split() == ["queue", "records", "limit", "in/s", "keeps", "cursor", "kind", "lag", "age", "idle"]
    (line,) = [line for line in lines if "audit" in line]
    assert re.split(r" {2,}", line)[0] == "inbox"
    assert re.split(r" {2,}", line.strip())[-3] == "3"


def test_a_running_server_tells_what_its_queue_keeps_too(run: Any, served: Any) -> None:
    send(served.url)
    put_cursor(served.admin, "audit", {})
    listed = json.loads(run("queues", "--admin", served.admin, "--json").out)["queues"]
    inbox, dead_letters = listed
    assert (inbox["name"], dead_letters["name"]) == ("inbox", "dead-letters")
    assert inbox["retention"]
    (audit,) = [cursor for cursor in inbox["cursors"] if cursor["name"] == "audit"]
    assert (audit["kind"], audit["lag"]) == ("reader", 3)
    shown = json.loads(run("queues", "--admin", served.admin, "inbox", "--json").out)
    assert shown["epoch"] == inbox["epoch"]


def test_the_limit_of_a_queue_is_shown_and_that_it_is_full(run: Any, served: Any, tmp_path: Path) -> None:
    inbound, queue = served.app.running.engine.protocol.inbound, served.app.running.queue
    inbound.limits["inbox"] = QueueLimit(queue, 1_000)
    send(served.url, 1)

    def row(*place: str) -> list[str]:
        return re.split(" {2,}", run("queues", *place).out.splitlines()[1].strip())

    admin = ("--admin", served.admin)
    assert row(*admin)[:3] == ["inbox", "1", "1,000"]
    inbound.limits["inbox"] = QueueLimit(queue, 1)
    assert row(*admin)[:3] == ["inbox", "1", "1 full"]
    details = run("queues", *admin, "inbox").out
    assert re.search("^max messages +1$", details, re.MULTILINE) and re.search("^full +True$", details, re.MULTILINE)
    (inbox, _) = json.loads(run("queues", *admin, "--json").out)["queues"]
    assert (inbox["max_messages"], inbox["full"]) == (1, True)
    (stopped, _) = json.loads(run("queues", str(tmp_path / "served"), "--json").out)["queues"]
    assert (stopped["max_messages"], stopped["full"]) == (None, None), "the store does not know it"


def test_a_queue_that_is_not_there_is_an_error(run: Any, served: Any) -> None:
    result = run("queues", "--admin", served.admin, "orders")
    assert result.code == 1
    assert "the queue orders does not exist" in result.err


def test_a_store_without_queues_says_so(run: Any, tmp_path: Path) -> None:
    from holdfast.store import open_store

    open_store(tmp_path / "empty").close()
    assert run("queues", "empty").out == "There are no queues in empty.\n"


@pytest.mark.parametrize("noun", ["queues", "sequences", "cursors"])
def test_a_store_may_be_named_by_the_file_of_its_broker(run: Any, tmp_path: Path, noun: str) -> None:
    from holdfast.store import open_store

    (tmp_path / "elsewhere").mkdir()
    open_store(tmp_path / "elsewhere" / "data").close()
    (tmp_path / "elsewhere" / "a.toml").write_text("store = 'data'\n")
    told = f"there are no {noun} in {tmp_path}/elsewhere/data.".lower()
    assert told in run(noun, "elsewhere/a.toml").out.lower()
    assert told in run(noun, "show", "elsewhere/a.toml").out.lower()


def test_a_name_that_may_be_meant_as_a_store_is_told_that_there_is_none(
    run: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ADMIN", served.admin)
    for noun in ("queues", "sequences"):
        result = run(noun, "nosuch")
        assert (result.code, "If 'nosuch' is a STORE: no directory of that name" in result.err) == (1, True)
