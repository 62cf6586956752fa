"""``holdfast dead-letters``: a stopped store, one that a server has open, and the server itself.

Covers client/stopped_store.py and endpoint/admin/resources/dead_letters.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.inspection.dead_letters import _row


def test_a_store_that_nobody_serves_is_listed_shown_and_steered(run: Any, desk: Any) -> None:
    result = run("dead-letters", "list", "destination")
    assert result.code == 0
    header, *lines = result.out.splitlines()
    assert header.split() == ["letter", "action", "sequence", "number", "attempts", "age", "error"]
    assert [re.split(" {2,}", line)[0].strip() for line in lines] == ["0", "1", "2"]
    assert lines[0].endswith("ConnectionError: the database\\x1b[2J is away"), "it does not clear the terminal"
    assert "\x1b" not in result.out

    result = run("dead-letters", "show", "destination", "1")
    assert result.code == 0
    assert "\nreason:\nTraceback" in result.out
    assert result.out.endswith("\nheaders: none\n\nbody:\n<n>1</n>\n")
    assert "\x1b" not in result.out
    assert json.loads(run("dead-letters", "show", "destination", "1", "--json").out)["body"] == "<n>1</n>"

    assert run("dead-letters", "discard", "destination", "0", "--yes").out == "1 dead letter is discarded; 2 left.\n"
    result = run("dead-letters", "retry", "destination", "2")
    assert result.out == "1 dead letter is tried again when destination is next served.\n"
    listed = json.loads(run("dead-letters", "list", "destination", "--json").out)
    assert [(one["letter"], one["retry"]) for one in listed["dead_letters"]] == [(1, False), (2, True)]

    desk.is_away = False
    desk.serve_once()
    assert desk.handled == ["2"]
    assert run("dead-letters", "retry", "destination", "--all", "--json").out == '{"retried": 1, "count": 1}\n'
    desk.serve_once()
    desk.serve_once()
    assert desk.handled == ["2", "1"], "once each"
    assert run("dead-letters", "list", "destination").out == "There are no dead letters in destination.\n"


def test_a_command_that_fails_halfway_tells_for_how_many_letters_it_is_done(run: Any, desk: Any) -> None:
    result = run("dead-letters", "discard", "destination", "0", "0", "1", "--yes")
    assert result.code == 1
    assert "the dead letter 0 does not exist; done for 1 of 3 dead letters" in result.err


def settle(served: Any) -> None:
    """Wait until all is handled, or a letter."""
    asyncio.run_coroutine_threadsafe(served.app.handled(), served.loop).result(60)


def test_a_server_that_runs_is_asked_and_its_store_can_be_looked_at(
    run: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away = True
    handled: list[str] = []

    def submit(message: holdfast.Message) -> None:
        if is_away:
            raise ConnectionError("away")
        handled.append(message.body.text or "")

    served.app.on("urn:submit")(submit)
    with holdfast.sync.Source(served.url, ":memory:") as source:
        for number in range(3):
            source.send(f"<n>{number}</n>", action="urn:submit").acknowledged(60)
    settle(served)
    admin = ("--admin", served.admin)
    for place in (admin, ("served",)):
        listed = json.loads(run("dead-letters", "list", *place, "--json").out)
        assert [one["letter"] for one in listed["dead_letters"]] == [0, 1, 2]
        assert "ConnectionError: away" in run("dead-letters", "show", *place, "2").out
    result = run("dead-letters", "list", *admin, "--limit", "2")
    assert len(result.out.splitlines()) == 3
    assert result.err == "The total is 3; for the next ones: --from 2\n"

    result = run("dead-letters", "retry", "served", "1")
    assert result.code == 1
    assert "--admin URL" in result.err

    for place in (admin, ()):
        result = run("dead-letters", "discard", *(place or ("served",)), "1")
        assert (result.code, "--yes" in result.err or "--admin" in result.err) == (1, True)

    is_away = False
    monkeypatch.setenv("HOLDFAST_ADMIN", served.admin)
    assert run("dead-letters", "retry", "1").out == "1 dead letter is tried again now.\n"
    monkeypatch.delenv("HOLDFAST_ADMIN")
    settle(served)
    assert handled == ["1"]
    monkeypatch.setattr("holdfast.cli.tables.DEFAULT_ADMIN", served.admin)
    assert run("dead-letters", "discard", "--all", "--yes").out == "2 dead letters are discarded; 0 left.\n"
    assert run("dead-letters", "list", *admin).out == f"There are no dead letters in {served.admin}.\n"
    assert "the dead letter 0 does not exist" in run("dead-letters", "retry", *admin, "0").err


@pytest.mark.parametrize("how", ["retry", "discard"])
@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ((), 2, "Give the numbers of the LETTERs"),
        (("destination",), 2, "Give the numbers of the LETTERs"),
        (("destination", "1", "--all"), 2, "--all means every dead letter: omit the numbers"),
        (("--all", "1"), 2, "--all means every dead letter: omit the numbers"),
        (("destination", "x"), 2, "'x' is not the number of a dead letter"),
        (("destination", "0", "7"), 1, "destination: the dead letter 7 does not exist"),
        (("no-such-store", "1"), 1, "no-such-store"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_nothing_is_changed(
    run: Any, desk: Any, how: str, arguments: tuple[str, ...], code: int, why: str
) -> None:
    result = run("dead-letters", how, *arguments)
    assert (result.code, why in result.err) == (code, True), result.err
    assert not (Path("no-such-store")).exists()
    listed = json.loads(run("dead-letters", "list", "destination", "--json").out)
    assert [(one["letter"], one["retry"]) for one in listed["dead_letters"]] == [(0, False), (1, False), (2, False)]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("holdfast.endpoint.handling.handlers.InvalidBody: no item", "InvalidBody: no item"),
        ("ConnectionError: db.example is away", "ConnectionError: db.example is away"),
        ("shop.example is away", "shop.example is away"),
    ],
)
def test_the_list_shows_an_error_without_its_package(error: str, shown: str) -> None:
    one = dict.fromkeys(("letter", "retry", "action", "sequence", "message_number", "attempts", "failed_at"), 0)
    assert _row({**one, "error": error}, 0.0)[-1] == shown


def test_a_letter_must_be_named_to_be_shown(run: Any, desk: Any) -> None:
    assert run("dead-letters", "show", "destination").code == 2
    result = run("dead-letters", "show", "destination", "9")
    assert (result.code, "the dead letter 9 does not exist" in result.err) == (1, True)


@pytest.mark.parametrize("command", ["list", "show", "retry", "discard"])
def test_each_of_its_commands_teaches_with_two_examples(run: Any, command: str) -> None:
    assert run("dead-letters", command, "--help").out.count(f"  holdfast dead-letters {command} ") >= 2


KILLS_ITSELF = """
import os, signal
from pathlib import Path
import holdfast

app = holdfast.Destination("inbox", handling=holdfast.HandlingPolicy(attempts=1))

@app.on("urn:submit")
def submit(message):
    if Path("away").exists():
        raise ConnectionError("away")
    if Path("deadly").exists():
        Path("deadly").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    with open("handled", "a") as file:
        file.write(message.body.text)
"""


@pytest.mark.crash
def test_a_kill_in_the_middle_of_a_retry_neither_loses_nor_doubles_the_letter(
    run: Any, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "desk.py").write_text(KILLS_ITSELF)
    (tmp_path / "away").touch()
    serve = ("serve", "desk:app", "--port", "0", "--admin", "0")

    def served() -> tuple[Any, str, str]:
        server = start(*serve)
        return server, server.url(), server.line().rpartition(" ")[2]

    server, url, admin = served()
    with holdfast.sync.Source(url, ":memory:") as source:
        for number in range(3):
            source.send(f"<n>{number}</n>", action="urn:submit")
        source.flush(60)
    count = 0
    while count < 3:
        count = json.loads(run("dead-letters", "list", "--admin", admin, "--json").out)["count"]
    (tmp_path / "away").unlink()
    (tmp_path / "deadly").touch()
    run("dead-letters", "retry", "--admin", admin, "--all")  # answered or not: it may be killed before that
    assert server.end().code == -9
    assert json.loads(run("dead-letters", "list", "inbox", "--json").out)["count"] == 3

    server, _, admin = served()
    while count:
        count = json.loads(run("dead-letters", "list", "--admin", admin, "--json").out)["count"]
    assert (tmp_path / "handled").read_text() == "012"
