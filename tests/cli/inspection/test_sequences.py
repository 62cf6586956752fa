"""``holdfast sequences``: a store, also while it is open, and a running server.

Covers cli/inspection/listing.py.
"""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.tables import age_text


def send(url: str, store: Path | str = ":memory:", count: int = 3) -> None:
    with holdfast.sync.Source(url, store=store) as source:
        for number in range(count):
            source.send(f"<n>{number}</n>", action="urn:a", sequence_key="UA").acknowledged(60)
        source.end("UA", timeout=60)


def test_a_store_that_a_server_has_open_is_listed(run: Any, served: Any, tmp_path: Path) -> None:
    send(served.url)
    result = run("sequences", str(tmp_path / "served"))
    assert result.code == 0
    header, line = result.out.splitlines()
    assert header.split() == ["identifier", "role", "state", "messages", "ranges", "gaps", "waiting", "age"]
    assert line.split()[1:6] == ["destination", "terminated", "3", "1-3", "none"]
    identifier = line.split()[0]
    assert identifier.startswith("urn:uuid:")

    shortened = identifier[: len("urn:uuid:") + 8]
    for asked in (identifier, shortened, shortened.removeprefix("urn:uuid:")):
        result = run("sequences", str(tmp_path / "served"), asked)
        assert result.code == 0
        shown = dict(line.split("  ", 1) for line in result.out.splitlines() if "  " in line)
        assert shown["identifier"].strip() == identifier
        assert shown["versions"].strip() == "RM 1.1, WSA 2005/08, SOAP 1.2"


def test_a_running_server_is_asked_over_its_admin_listener(run: Any, served: Any) -> None:
    assert run("sequences", "--admin", served.admin).out == f"There are no Sequences in {served.admin}.\n"
    send(served.url)
    listed = json.loads(run("sequences", "--admin", served.admin, "--json").out)["sequences"]
    (one,) = [one for one in listed if one["role"] == "destination"]
    assert (one["count"], one["gaps"]) == (3, "none")
    shown = json.loads(run("sequences", "--admin", served.admin, one["identifier"], "--json").out)
    assert shown["identifier"] == one["identifier"]


def test_an_outbox_shows_what_is_not_acknowledged_yet(run: Any, tmp_path: Path) -> None:
    with holdfast.sync.Source("http://127.0.0.1:9/", store=tmp_path / "outbox") as source:
        source.send("<n>1</n>", action="urn:a", sequence_key="UA")
        result = run("sequences", "outbox")
    assert result.code == 0
    columns = re.split(" {2,}", result.out.splitlines()[1])
    assert columns[:2] == ["(none yet: 'UA')", "source"]
    assert columns[2] in ("none", "creating"), "whether the Sequence was asked for by then is chance"
    assert columns[3:7] == ["0", "none", "none", "1"]


def test_what_cannot_be_shown_is_a_sentence(run: Any, served: Any, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        unused = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for arguments, text in (
            (["./nowhere"], "There is no store at nowhere"),
            (["nowhere", "urn:s"], "There is no store at nowhere"),
            (["--admin", unused], "cannot be read: Connection refused\n"),
            (["--admin", served.url], "cannot be read"),
            (["served", "urn:nothing"], "the Sequence urn:nothing does not exist in served"),
        ):
            result = run("sequences", *arguments)
            assert result.code == 1, arguments
            assert text in result.err
            assert "Traceback" not in result.err
    send(served.url)
    send(served.url)
    result = run("sequences", "served", "urn:uuid:")
    assert result.code == 1
    assert "2 Sequences begin with urn:uuid:" in result.err


@pytest.mark.parametrize("arguments", [["--admin", "localhost:1"], ["--admin", "http://x", "inbox", "urn:s"]])
def test_wrong_usage_is_told(run: Any, arguments: list[str]) -> None:
    assert run("sequences", *arguments).code == 2


def test_an_argument_that_is_a_store_wins_over_the_listener_of_the_environment(
    run: Any, served: Any, desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every command that takes a STORE, or a listener in its place."""
    send(served.url)
    with holdfast.sync.Source("http://127.0.0.1:9/", store="outbox") as source:
        for number in range(2):
            source.send(f"<n>{number}</n>", action="urn:a", sequence_key="a")
    monkeypatch.setenv("HOLDFAST_ADMIN", "http://127.0.0.1:1")
    for command in ("sequences", "queues", "outbox list", "dead-letters list", "cursors"):
        found = run(*command.split(), "served")
        assert found.code == 0, (command, found.err)
    for command in (
        "dead-letters show destination 0",
        "dead-letters retry destination 0",
        "dead-letters retry destination --all",
        "dead-letters discard destination 0 1 --yes",
        "dead-letters discard destination --all --yes",
        "outbox show outbox a/0",
        "outbox discard outbox a/0 --yes",
        "outbox retry outbox",
    ):
        found = run(*command.split())
        assert found.code == 0, (command, found.err)
    assert run("sequences", "served", "urn:s", "--admin", served.admin).code == 2, "both were given by hand"
    assert run("dead-letters", "retry", "served", "--all", "--admin", served.admin).code == 2


def test_a_name_that_is_no_place_is_looked_for_at_the_server(
    run: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.tables.DEFAULT_ADMIN", served.admin)
    for variable in (None, served.admin):
        if variable is not None:
            monkeypatch.setenv("HOLDFAST_ADMIN", variable)
        assert "the queue orders does not exist in" in run("queues", "orders").err
        Path("inbox").mkdir(exist_ok=True)
        Path("inbox", "readme.txt").touch()
        assert "the queue q" in run("queues", "q" * 300).err, "longer than a file's name may be"
        assert re.match("name +inbox\n", run("queues", "inbox").out)
    monkeypatch.delenv("HOLDFAST_ADMIN")
    monkeypatch.setattr("holdfast.cli.tables.DEFAULT_ADMIN", "http://127.0.0.1:1")
    assert "If 'orders' is a STORE: no directory of that name holds a store." in run("queues", "orders").err


@pytest.mark.parametrize("left", ["HOLDFAST", "HOLDFAST.new", "db/CURRENT"])
def test_a_directory_with_a_store_or_its_remains_is_accepted_as_a_place(run: Any, tmp_path: Path, left: str) -> None:
    (tmp_path / "orders" / left).parent.mkdir(parents=True)
    (tmp_path / "orders" / left).touch()
    found = run("queues", "orders")
    assert (found.code, "orders" in found.err, "127.0.0.1" in found.err) == (1, True, False), found.err


def test_a_path_is_a_place_whatever_lies_there(run: Any, tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    for place in ("./orders", "orders/", str(tmp_path / "orders")):
        assert "There is no store at" in run("queues", place).err


def test_without_a_store_the_broker_of_this_machine_is_asked(
    run: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.tables.DEFAULT_ADMIN", served.admin)
    assert run("sequences").out == f"There are no Sequences in {served.admin}.\n"
    monkeypatch.setenv("HOLDFAST_ADMIN", "http://127.0.0.1:1")
    refused = run("sequences")
    assert refused.code == 1 and "HOLDFAST_ADMIN" in refused.err


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_an_age_is_told_in_the_unit_that_suits_it(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text
