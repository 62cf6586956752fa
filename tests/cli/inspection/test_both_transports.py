"""Every command that takes a STORE or ``--admin``: both answer the same, since both are the same admin interface.

Covers endpoint/admin/stopped.py.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Versions
from holdfast.core.records import Record
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from tests.cli.inspection.test_queues import put_cursor

RUNNING_ONLY = {"age", "idle", "rate", "rate_in", "retention", "flight", "bytes", "last_heard", "max_messages", "full"}
"""Fields of a queue, cursor or Sequence that depend on the moment, or that only a running server knows."""
KEY = "to/http://127.0.0.1:9/"


@pytest.fixture
def filled(served: Any) -> Any:
    """A running server with an ended Sequence, a reader, dead letters, and a reply that it cannot deliver."""

    @served.app.on("urn:submit")
    def submit(message: holdfast.Message) -> None:
        raise ConnectionError("away")

    with holdfast.sync.Source(served.url, ":memory:") as source:
        for number in range(3):
            source.send(f"<n>{number}</n>", action="urn:submit", sequence_key="UA").acknowledged(60)
        source.end("UA", timeout=60)
    put_cursor(served.admin, "audit", {"0": 0})

    async def settle() -> None:
        await served.app.handled()
        engine = served.app.running.engine
        outbox = engine.protocol.outbound.open(KEY, "http://127.0.0.1:9/", [(Versions(), False)])
        engine.protocol.submit(outbox, Record(KEY, 0, "urn:r", b"<r/>", 1.0, "urn:m"), engine.clock())
        await engine.durable()
        await engine.settled()

    asyncio.run_coroutine_threadsafe(settle(), served.loop).result(60)
    return served


def comparable(value: Any) -> Any:
    """The value without what depends on the moment."""
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if not isinstance(value, dict):
        return value
    is_message = "stored_at" in value or "message_number" in value
    return {name: comparable(one) for name, one in value.items() if is_message or name not in RUNNING_ONLY}


COMMANDS = [
    ("sequences", "show"),
    ("sequences", "show", "IDENTIFIER"),
    ("queues", "show"),
    ("queues", "show", "inbox"),
    ("cursors", "show"),
    ("cursors", "show", "audit"),
    ("outbox", "list"),
    ("outbox", "list", "--limit", "1"),
    ("outbox", "show", f"{KEY}/0"),
    ("dead-letters", "list"),
    ("dead-letters", "list", "--from", "1", "--limit", "1"),
    ("dead-letters", "show", "1"),
]


def test_every_inspection_of_an_open_store_answers_as_its_server_does(run: Any, filled: Any) -> None:
    listed = json.loads(run("sequences", "--admin", filled.admin, "--json").out)["sequences"]
    identifier = next(one["identifier"] for one in listed if one["identifier"])
    for noun, verb, *rest in COMMANDS:
        names = [identifier if one == "IDENTIFIER" else one for one in rest]
        asked = run(noun, verb, *names, "--admin", filled.admin, "--json")
        stored = run(noun, verb, "served", *names, "--json")
        assert (asked.code, stored.code) == (0, 0), (noun, verb, asked.err, stored.err)
        assert comparable(json.loads(stored.out)) == comparable(json.loads(asked.out)), (noun, verb, names)
        assert next(iter(json.loads(stored.out).values())) not in ([], ""), (noun, verb)
        tables = [run(noun, verb, *place, *names) for place in (("--admin", filled.admin), ("served",))]
        assert tables[0].out.split("\n")[0].split() == tables[1].out.split("\n")[0].split(), (noun, verb)
        assert tables[0].err == tables[1].err, (noun, verb)


def test_a_store_without_dead_letters_lists_the_queues_that_its_server_lists(run: Any, served: Any) -> None:
    places = ["--admin", served.admin], ["served"]
    asked, stored = (json.loads(run("queues", "show", *place, "--json").out) for place in places)
    assert [one["name"] for one in asked["queues"]] == ["inbox", "dead-letters"]
    assert comparable(stored) == comparable(asked)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("sequences show {} urn:none", "the Sequence urn:none does not exist in {}"),
        ("queues show {} none", "the queue none does not exist in {}"),
        ("cursors show {} none", "the cursor none does not exist in {}"),
        ("outbox show {} none/0", "{}: the message 'none/0' is not waiting here"),
        ("outbox discard {} none/0 --yes", "{}: the message 'none/0' is not waiting here"),
        ("outbox retry {} --sequence-key none", "{}: no message has the key 'none'"),
        ("dead-letters show {} 9", "{}: the dead letter 9 does not exist"),
        ("dead-letters retry {} 9", "{}: the dead letter 9 does not exist"),
        ("dead-letters discard {} 9 --yes", "{}: the dead letter 9 does not exist"),
    ],
)
def test_what_is_not_there_is_the_same_error_of_both(run: Any, served: Any, desk: Any, command: str, text: str) -> None:
    for place, shown in ((f"--admin {served.admin}", served.admin), ("destination", "destination")):
        found = run(*command.format(place).split())
        assert found.code == 1 and text.format(shown) in found.err, found.err


def test_changes_of_a_stopped_store_leave_what_its_server_leaves(run: Any, desk: Any, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "destination", tmp_path / "copy")
    commands = ["dead-letters discard {} 0 --yes --json", "dead-letters discard {} --all --yes --json"]

    async def serve() -> list[str]:
        app = holdfast.Destination(tmp_path / "copy")
        app.on("urn:submit")(lambda message: None)
        service = Service(app, Listeners(port=0, admin=AdminListener(port=0)))
        await service.start()
        out = []
        for command in commands:
            found = await asyncio.to_thread(run, *command.format(f"--admin {service.admin_url}").split())
            out.append(found.out)
        await service.close(1.0)
        return out

    stored = [run(*command.format("destination").split()).out for command in commands]
    assert asyncio.run(serve()) == stored == ['{"discarded": 1, "count": 2}\n', '{"discarded": 2, "count": 0}\n']
    left = [comparable(json.loads(run("queues", "show", place, "--json").out)) for place in ("destination", "copy")]
    assert left[0] == left[1]


def test_a_stopped_store_says_what_only_a_server_can_do(tmp_path: Path) -> None:
    from holdfast.client.admin_client import AdminClient
    from holdfast.client.stopped_store import StoreTransport
    from holdfast.exceptions import HoldfastError
    from holdfast.store import open_store

    open_store(tmp_path / "inbox").close()
    client = AdminClient(StoreTransport(str(tmp_path / "inbox")))
    for method, path in (("POST", "queues/inbox/purge"), ("GET", "sinks"), ("POST", "reload")):
        with pytest.raises(HoldfastError, match=f"a stopped store cannot answer {method} /{path}") as caught:
            client.ask(path, method)
        assert caught.value.remedy == "Start its server, then use --admin URL."
    client.close()
