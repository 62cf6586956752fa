"""``holdfast outbox``: what waits is listed, shown, given up and let go on, in a store and at a server.

Covers client/admin_client.py and endpoint/admin/resources/outboxes.py.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Attachment, PeerFault, Source, Versions
from holdfast.core.records import Record

PHOTO = [Attachment(bytes(100_000), "image/png", "1@test")]


@pytest.fixture
def stuck(served: Any, tmp_path: Path) -> str:
    """A store with a refused message of the key "a", one behind it, and three of the empty key that arrived."""
    served.app.settings.table.handlers["urn:good"] = served.app.settings.table.handlers.pop("")

    async def fill() -> None:
        async with Source(served.url, tmp_path / "outbox") as source:
            refused = await source.send("<first/>", action="urn:nobody", sequence_key="a", attachments=PHOTO)
            with pytest.raises(PeerFault, match="No handler here"):
                await refused.acknowledged(60)
            for number in range(3):
                await (await source.send(f"<n>{number}</n>", action="urn:good")).acknowledged(60)

    asyncio.run(fill())
    return "outbox"


def test_what_waits_is_listed_with_its_place_and_why_it_is_stopped(run: Any, stuck: str) -> None:
    result = run("outbox", "list", stuck)
    assert result.code == 0, result.err
    head, row = result.out.splitlines()
    assert head.split()[:2] == ["message", "action"]
    assert row.startswith("a/0") and "urn:nobody" in row and "sent, stopped: ActionNotSupported" in row
    assert "100,008" in row  # its body and its attachment
    assert run("outbox", stuck).out.splitlines()[1].split()[:2] == row.split()[:2]
    listed = json.loads(run("outbox", "list", stuck, "--json").out)
    assert listed["count"] == 1
    (one,) = listed["messages"]
    assert (one["message"], one["key"], one["offset"], one["number"], one["state"]) == ("a/0", "a", 0, 1, "sent")


def test_one_message_is_shown_whole(run: Any, stuck: str) -> None:
    result = run("outbox", "show", stuck, "a/0")
    assert result.code == 0 and "body:\n<first/>" in result.out
    assert json.loads(run("outbox", "show", stuck, "a/0", "--json").out)["body"] == "<first/>"
    for name in ("a/1", "0", "b/0", "a/x", "a"):
        missing = run("outbox", "show", stuck, name)
        assert missing.code == 1 and "is not waiting here" in missing.err


def test_a_message_is_discarded_only_on_request_and_later_messages_continue(run: Any, served: Any, stuck: str) -> None:
    asked = run("outbox", "discard", stuck, "a/0")
    assert asked.code == 1
    assert "is not discarded yet" in asked.err and "Its Sequence ends with it" in asked.err
    assert json.loads(run("outbox", "list", stuck, "--json").out)["count"] == 1
    done = run("outbox", "discard", stuck, "a/0", "--yes", "--json")
    assert (done.code, json.loads(done.out)) == (0, {"discarded": 1, "in_doubt": 0, "count": 0})
    assert "No message is waiting" in run("outbox", "list", stuck).out
    retried = run("outbox", "retry", stuck)
    assert retried.code == 0 and "1 stopped key resumes when outbox is next opened" in retried.out

    async def go_on() -> None:
        async with Source(served.url, Path(stuck).resolve()) as source:
            await (await source.send("<second/>", action="urn:good", sequence_key="a")).acknowledged(60)

    asyncio.run(go_on())
    assert [one for one in run("sequences", stuck).out.splitlines() if "stopped" in one] == []


def test_a_stopped_outbox_resumes_after_its_cause_is_fixed(run: Any, served: Any, stuck: str) -> None:
    served.app.settings.table.handlers["urn:nobody"] = lambda message: None
    assert run("outbox", "retry", stuck, "--sequence-key", "a").code == 0
    assert run("outbox", "retry", stuck, "--sequence-key", "b").code == 1

    async def go_on() -> None:
        async with Source(served.url, Path(stuck).resolve()) as source:
            await source.flush(60)

    asyncio.run(go_on())
    assert "No message is waiting" in run("outbox", "list", stuck).out


def test_a_running_server_is_asked_at_its_admin_listener(run: Any, served: Any) -> None:
    assert "No message is waiting" in run("outbox", "list", "--admin", served.admin).out
    listed = json.loads(run("outbox", "list", "--admin", served.admin, "--json").out)
    assert listed == {"messages": [], "count": 0, "enqueued": None}
    assert run("outbox", "show", "--admin", served.admin, "0").code == 1
    assert run("outbox", "discard", "--admin", served.admin, "to/http://x/0", "--yes").code == 1
    assert json.loads(run("outbox", "retry", "--admin", served.admin, "--json").out) == {"retried": 0, "count": 0}


def test_a_reply_that_a_running_server_cannot_deliver_is_seen_and_given_up(run: Any, served: Any) -> None:
    key = "to/http://127.0.0.1:9/"

    async def reply() -> None:
        engine = served.app.running.engine
        outbox = engine.protocol.outbound.open(key, "http://127.0.0.1:9/", [(Versions(), False)])
        for body in (b"<one/>", b"<two/>"):
            engine.protocol.submit(outbox, Record(key, 0, "urn:r", body, 1.0, f"urn:{body.decode()}"), engine.clock())
        await engine.durable()

    asyncio.run_coroutine_threadsafe(reply(), served.loop).result(60)
    listed = json.loads(run("outbox", "list", "--admin", served.admin, "--json").out)
    assert [one["message"] for one in listed["messages"]] == [f"{key}/0", f"{key}/1"]
    assert "<one/>" in run("outbox", "show", "--admin", served.admin, f"{key}/0").out
    asked = run("outbox", "discard", "--admin", served.admin, f"{key}/0")
    assert asked.code == 1 and "It was never sent" in asked.err
    done = run("outbox", "discard", "--admin", served.admin, f"{key}/0", "--yes", "--json")
    assert json.loads(done.out) == {"discarded": 1, "in_doubt": 0, "count": 1}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "./outbox"], "Give the place of the MESSAGE"),
        (["show", "outbox"], "is a STORE"),
        (["list", "none"], "none"),
    ],
)
def test_what_is_not_there_is_a_sentence(run: Any, tmp_path: Path, arguments: list[str], text: str) -> None:
    result = run("outbox", *arguments)
    assert result.code in (1, 2) and text in result.err
    assert not (tmp_path / "none").exists()
