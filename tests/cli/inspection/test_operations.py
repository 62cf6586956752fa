"""The commands that steer a running server: as their users run them, against a server that runs.

Covers cli/inspection/cursors.py, cli/inspection/export.py, cli/inspection/forwarders.py,
cli/inspection/idle_partitions.py and cli/inspection/sinks.py.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import pytest

import holdfast
from holdfast.cli.inspection.forwarders import _row as forwarder_row
from holdfast.cli.inspection.operations import duration, moved_text, place, places_text, planned_text
from holdfast.cli.main import COMMANDS, cli
from holdfast.core.records import Record
from holdfast.core.sinks.sink import Batch
from holdfast.core.versions import Versions
from holdfast.http.server.refusals import NEEDS_TLS
from holdfast.store.staged import blocks_of_records

NOUNS = ("sequences", "queues", "cursors", "forwarders", "dead-letters", "outbox", "sinks")


REFUSING = """
import holdfast


class Refusing(holdfast.Processor):
    def inbound(self, context):
        if context.is_application:
            raise holdfast.ProcessingError("Not today.")


app = holdfast.Destination(store=":memory:", processors=[Refusing()])
"""
"""A service that refuses each message."""


def commands() -> Iterator[tuple[str, str]]:
    context = click.Context(cli)
    for noun in NOUNS:
        group = cli.get_command(context, noun)
        assert isinstance(group, click.Group)
        yield from ((noun, verb) for verb in group.commands)


def send(url: str, count: int = 3) -> None:
    with holdfast.sync.Source(url, store=":memory:") as source:
        for number in range(count):
            source.send(f"<n>{number}</n>", action="urn:a")
        source.flush(60)


def settle(served: Any) -> None:
    asyncio.run_coroutine_threadsafe(served.app.handled(), served.loop).result(60)


def in_loop(served: Any, call: Callable[[], Any]) -> Any:
    async def do() -> Any:
        return call()

    return asyncio.run_coroutine_threadsafe(do(), served.loop).result(60)


@pytest.mark.parametrize(("noun", "verb"), list(commands()))
def test_each_command_teaches_with_two_examples(run: Any, noun: str, verb: str) -> None:
    result = run(noun, verb, "--help")
    assert result.code == 0
    assert result.out.count(f"  holdfast {noun} {verb} ") >= 2
    assert verb in run(noun, "--help").out


def test_the_list_of_commands_names_them_all() -> None:
    assert set(NOUNS) < set(COMMANDS)


def test_a_sequence_is_held_back_shown_so_and_let_go_on(run: Any, served: Any) -> None:
    admin = ("--admin", served.admin)
    with holdfast.sync.Source(served.url, store=":memory:") as source:
        source.send("<n/>", action="urn:a").acknowledged(60)
        (one,) = [
            one
            for one in json.loads(run("sequences", *admin, "--json").out)["sequences"]
            if one["role"] == "destination"
        ]
        beginning = one["identifier"].removeprefix("urn:uuid:")[:8]
        result = run("sequences", "suspend", beginning, *admin, "--reason", "too \x1b[2Jfast")
        assert (result.code, result.out) == (0, f"{one['identifier']} is suspended.\n")
        listed = run("sequences", *admin)
        assert "created, held back: too \\x1b[2Jfast" in listed.out
        assert json.loads(run("sequences", beginning, *admin, "--json").out)["suspended"].startswith("held back")
        assert run("sequences", "resume", beginning, *admin).code == 0
        result = run("sequences", "resume", beginning, *admin)
        assert (result.code, "is not suspended" in result.err) == (1, True)
        result = run("sequences", "close", beginning, *admin)
        assert (result.code, "--yes" in result.err) == (1, True)
        assert json.loads(run("sequences", "close", beginning, *admin, "--yes", "--json").out)["state"] == "closed"
        assert run("sequences", "terminate", beginning, *admin, "--yes").code == 0
    result = run("sequences", "suspend", "nothing", *admin)
    assert (result.code, "the Sequence nothing does not exist" in result.err) == (1, True)


def test_a_person_is_asked_before_something_is_destroyed(
    run: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, code in (("n\n", 1), ("y\n", 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        result = run("queues", "purge", "inbox", "--admin", served.admin)
        assert (result.code, "0 records of inbox would be deleted. Do it?" in result.err) == (code, True)


def test_a_queue_is_looked_into_exported_and_purged(run: Any, served: Any, tmp_path: Path) -> None:
    served_ = ("--admin", served.admin)
    run_json = lambda *arguments: json.loads(run(*arguments, *served_, "--json").out)  # noqa: E731
    put_reader(served, "audit")
    send(served.url)
    settle(served)
    (partition,) = [one for one in range(4) if run_json("queues", "peek", "inbox", "--partition", str(one))["messages"]]
    for where in ([], ["--partition", str(partition)]):
        result = run("queues", "peek", "inbox", *where, *served_, "--limit", "2")
        header, *lines = result.out.splitlines()
        assert header.split() == ["partition", "offset", "action", "sequence", "number", "age", "bytes", "body"]
        assert [line.split()[-1] for line in lines] == ["<n>0</n>", "<n>1</n>"]
        assert result.err == f"More records follow: --partition {partition} --from 2\n"
    assert [one["partition"] for one in run_json("queues", "peek", "inbox")["messages"]] == [partition] * 3
    assert run("queues", "peek", "inbox", *served_, "--from", "1").code == 2
    other = (partition + 1) % 4
    assert (
        f"Partition {other} of inbox has no records."
        in run("queues", "peek", "inbox", "--partition", str(other), *served_).out
    )

    assert run("queues", "export", "inbox", *served_, "--to", "out").out == "3 records are in out.\n"
    names = sorted(path.name for path in Path("out").iterdir())
    assert names == [f"{partition}-{offset:012}.xml" for offset in range(3)]
    assert Path("out", names[2]).read_bytes() == b"<n>2</n>"
    assert run_json("queues", "export", "inbox", "--jsonl", "all.jsonl")["exported"] == 3
    lines = Path("all.jsonl").read_text().splitlines()
    assert [(json.loads(line)["offset"], json.loads(line)["body"]) for line in lines] == [
        (number, f"<n>{number}</n>") for number in range(3)
    ]
    some = ("--partition", str(partition), "--from", "1", "--below", "2", "--jsonl", "some.jsonl")
    assert run_json("queues", "export", "inbox", *some)["exported"] == 1
    assert run("queues", "export", "inbox", *served_).code == 2
    assert run("queues", "export", "inbox", *served_, "--partition", "9", "--to", "out").code == 1

    result = run("queues", "purge", "inbox", *served_)
    assert result.code == 1
    assert "3 records of inbox would be deleted; audit has not passed 3 of them." in result.err
    assert run("queues", "purge", "inbox", *served_, "--yes").out == "3 records of inbox are deleted.\n"
    assert run("queues", "export", "inbox", *served_, "--jsonl", "none.jsonl").out.startswith("0 records")


def put_reader(served: Any, name: str) -> None:
    in_loop(served, lambda: served.app.running.queue.advance(name, {}, served.app.running.engine.clock()))


def test_cursors_are_listed_moved_and_forgotten(run: Any, served: Any, tmp_path: Path) -> None:
    admin = ("--admin", served.admin)
    put_reader(served, "audit")
    send(served.url)
    settle(served)
    for place_ in (admin, ("served",)):
        result = run("cursors", *place_)
        assert result.out.splitlines()[0].split() == [
            "queue",
            "cursor",
            "kind",
            "lag",
            "age",
            "idle",
            "out/s",
            "offsets",
        ]
        (line,) = [line for line in result.out.splitlines() if " audit " in line]
        assert re.split(r" {2,}", line)[:4] == ["inbox", "audit", "reader", "3"]
    assert json.loads(run("cursors", "audit", *admin, "--json").out)["lag"] == 3
    result = run("cursors", "reset", "inbox", "audit", *admin, "--to", "latest")
    assert (result.code, "--yes" in result.err, "audit of inbox would skip 3 messages." in result.err) == (
        1,
        True,
        True,
    )
    assert json.loads(run("cursors", "audit", *admin, "--json").out)["lag"] == 3
    assert run("cursors", "reset", "inbox", "audit", *admin, "--to", "latest", "--yes").code == 0
    assert json.loads(run("cursors", "audit", *admin, "--json").out)["lag"] == 0
    assert run("cursors", "reset", "inbox", "audit", *admin, "--ago", "1h", "--yes").code == 0
    assert json.loads(run("cursors", "audit", *admin, "--json").out)["lag"] == 3
    for wrong in ((), ("--to", "latest", "--ago", "1h"), ("--ago", "soon"), ("--time", "soon")):
        assert run("cursors", "reset", "inbox", "audit", *admin, *wrong, "--yes").code == 2

    handled = served.app.running.dispatcher.handling.succeeded
    assert run("cursors", "replay", "inbox", "handler", *admin, "--to", "earliest", "--yes").code == 0
    settle(served)
    assert served.app.running.dispatcher.handling.succeeded == handled + 3

    assert run("cursors", "delete", "inbox", "audit", *admin, "--yes").out == "audit of inbox is deleted.\n"
    result = run("cursors", "delete", "inbox", "audit", *admin, "--yes")
    assert (result.code, "the cursor 'audit' does not exist" in result.err) == (1, True)
    assert run("cursors", "delete", "inbox", "handler", *admin, "--yes").code == 1


def test_without_yes_a_command_refuses_what_does_not_exist(run: Any, served: Any) -> None:
    to = ("--to", "earliest")
    for words in (
        ("cursors", "reset", "inbox", "nosuch", *to),
        ("cursors", "replay", "inbox", "nosuch", *to),
        ("forwarders", "reset", "nosuch", *to),
        ("forwarders", "replay", "nosuch", *to),
        ("sequences", "close", "nosuch"),
        ("sequences", "terminate", "nosuch"),
    ):
        result = run(*words, "--admin", served.admin)
        assert (result.code, "nosuch" in result.err, "--yes" in result.err) == (1, True, False), result.err


def test_a_purge_says_at_once_that_it_needs_force_too(run: Any, served: Any) -> None:
    admin = ("--admin", served.admin)

    def forward() -> None:
        running = served.app.running
        for partition in range(4):
            key = f"forwarder/next/{partition}"
            running.engine.protocol.outbound.forward(
                key, "http://127.0.0.1:9/", [(Versions("1.1"), False)], running.queue, partition
            )
        running.engine.touch()

    in_loop(served, forward)
    send(served.url)
    settle(served)
    result = run("queues", "purge", "inbox", *admin)
    assert (result.code, "add --yes --force" in result.err) == (1, True), result.err
    result = run("queues", "purge", "inbox", *admin, "--yes")
    assert (result.code, "add --yes --force" in result.err) == (1, True), result.err
    result = run("queues", "purge", "inbox", *admin, "--force")
    assert (result.code, "To confirm, add --yes" in result.err) == (1, True), result.err
    result = run("queues", "purge", "inbox", *admin, "--below", "1")
    assert (result.code, "Name the partition.\n" in result.err) == (1, True), result.err


def test_a_move_is_planned_by_its_messages_and_told_by_its_partitions() -> None:
    before = {str(one): 10 for one in range(64)}
    assert planned_text({"before": before, "offsets": before}, "send") == "move past no message"
    answer = {"before": before, "offsets": before | {"3": 12, "9": 9}}
    assert planned_text(answer, "send") == "skip 2 messages and send 1 message again"
    assert moved_text(answer) == "is now at 12 of partition 3, 9 of partition 9"
    assert moved_text({"before": before, "offsets": before}).startswith("does not move: the queue has no message")


def test_a_place_in_many_partitions_is_told_by_number_and_in_short() -> None:
    assert places_text({"0": 3, "10": 2, "9": 1}) == "3 of partition 0, 1 of partition 9, 2 of partition 10"
    many = places_text({str(one): one for one in range(128)})
    assert many.endswith("7 of partition 7 and 120 more")
    assert places_text({str(one): 1200 for one in range(64)}) == "1,200 of each of 64 partitions"
    assert (places_text({"3": 7}), places_text({})) == ("7 of partition 3", "nowhere")


def close_while_suspended(run: Any, admin: tuple[str, ...]) -> None:
    """A suspended forwarder's Sequence does not close before it resumes: the answer and the listing say so."""

    def source() -> Any:
        return next(
            one for one in json.loads(run("sequences", *admin, "--json").out)["sequences"] if one.get("start") == 0
        )

    run("forwarders", "suspend", "next", *admin, "--reason", "moving")
    name = source()["identifier"]
    assert not source()["ending"]
    told = f"{name} closes once its sent messages are acknowledged. It waits: held back: moving.\n"
    assert run("sequences", "close", name, *admin, "--yes").out == told
    assert (source()["identifier"], source()["state"], source()["ending"]) == (name, "created", True)
    (line,) = [one for one in run("sequences", *admin).out.splitlines() if name in one]
    assert "created, ending, held back: moving" in line
    run("forwarders", "resume", "next", *admin)


def lose(app: holdfast.Destination) -> None:
    """The destination of the forwarder loses messages of the partition where some wait, and of another one."""
    outboxes = list(app.running.engine.protocol.outbound.outboxes.values())
    for count, is_idle in ((3, False), (2, True)):
        one = next(one for one in outboxes if one.records.is_empty is is_idle)
        one.lifecycle.retracted.add("urn:uuid:lost", ((1, count),))


def test_forwarders_are_listed_held_back_and_let_send_again(run: Any, served: Any, start: Any) -> None:
    other = start("receive", "--port", "0", "--store", ":memory:")
    url = other.url()
    admin = ("--admin", served.admin)
    assert run("forwarders", *admin).out == f"{served.admin} has no forwarders.\n"
    app = served.app
    put_reader(served, "keeper")

    def forward() -> None:
        for partition in range(4):
            app.running.engine.protocol.outbound.forward(
                f"forwarder/next/{partition}", url, [(Versions("1.1"), False)], app.running.queue, partition
            )
        app.running.engine.touch()

    in_loop(served, forward)
    assert run("forwarders", "suspend", "next", *admin, "--reason", "moving").out == "next is suspended.\n"
    send(served.url)
    _, first, idle = run("forwarders", *admin).out.splitlines()
    assert all("suspended: moving" in line for line in (first, idle))
    assert re.split(" {2,}", idle)[2] == "3 idle"
    assert [len(run(noun, *admin, "--all").out.splitlines()) for noun in ("forwarders", "cursors")] == [5, 7]
    for noun, place_ in itertools.product(("cursors", "queues"), (admin, ("served",))):
        folded = run(noun, *place_).out
        assert folded.count("outbound/forwarder/next/") == 1 and "outbound/forwarder/next: 3 idle" in folded
        assert run(noun, *place_, "--all").out.count("outbound/forwarder/next/") == 4
        assert run(noun, *place_, "--json").out.count('"outbound/forwarder/next/') == 4
    in_loop(served, lambda: lose(app))
    _, first, idle = run("forwarders", *admin).out.splitlines()
    assert [line.split()[-2:] for line in (first, idle)] == [["3", "3"], ["0", "2"]], "waiting, and retracted"
    with urlopen(f"{served.admin}/metrics") as answer:
        assert b'\nholdfast_forwarder_retracted_total{forwarder="next"} 5.0\n' in answer.read()
    listed = json.loads(run("forwarders", "next", *admin, "--json").out)["forwarders"]
    assert sorted(one["retracted"] for one in listed) == [0, 0, 2, 3]
    assert sum(one["waiting"] for one in listed) == 3
    assert run("forwarders", "resume", "next", *admin).out == "next is resumed.\n"
    assert run("forwarders", "suspend", "nobody", *admin).code == 1

    def waiting() -> int:
        return sum(one["waiting"] for one in json.loads(run("forwarders", *admin, "--json").out)["forwarders"])

    for _ in range(600):
        if not waiting():
            break
        asyncio.run(asyncio.sleep(0.1))
    assert waiting() == 0
    close_while_suspended(run, admin)
    result = run("forwarders", "replay", "next", *admin, "--to", "earliest")
    assert (result.code, "next would send 3 messages again. Nothing has" in result.err) == (1, True), result.err
    answer = json.loads(run("forwarders", "replay", "next", *admin, "--to", "earliest", "--yes", "--json").out)
    assert answer["offsets"] == {str(partition): 0 for partition in range(4)}
    result = run("forwarders", "reset", "next", *admin, "--to", "latest", "--yes")
    assert (result.code, len(result.out) < 80) == (0, True), result.out
    result = run("forwarders", "reset", "next", *admin, "--to", "latest", "--yes")
    assert result.out == "next does not move: the queue has no message between the old and the new position.\n"
    result = run("forwarders", "delete", "next", *admin, "--yes")
    assert (result.code, "is sending" in result.err) == (1, True)
    for partition in range(4):
        run("forwarders", "suspend", f"forwarder/next/{partition}", *admin)
    assert run("forwarders", "delete", "next", *admin).code == 1
    assert run("forwarders", "delete", "next", *admin, "--yes").out.startswith("next is deleted; ")
    assert run("forwarders", *admin).out == f"{served.admin} has no forwarders.\n"


def test_the_list_of_forwarders_says_what_the_destination_refuses(
    run: Any, served: Any, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING)
    url = start("serve", "refusing:app", "--port", "0").url()
    app = served.app

    def forward() -> None:
        for partition in range(4):
            key = f"forwarder/next/{partition}"
            app.running.engine.protocol.outbound.forward(
                key, url, [(Versions("1.1"), False)], app.running.queue, partition
            )
        app.running.engine.touch()

    in_loop(served, forward)
    send(served.url)
    for _ in range(600):
        shown = run("forwarders", "--admin", served.admin).out
        if "refused" in shown:
            break
        asyncio.run(asyncio.sleep(0.1))
    assert "offset 0 refused" in shown and "Not today." in shown
    assert "given up after 10 times, in 10 min at the earliest" in shown


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "sending"),
        ({"last_answer": "fault Receiver: no"}, "sending, last response: fault Receiver: no"),
        ({"last_answer": "fault Receiver: no", "waiting": 0}, "sending"),
        ({"last_answer": "fault Receiver: no", "refused": "no"}, "the destination grants no Sequence: no"),
        ({"last_answer": "no", "state": "stopped", "stopped": "Expires"}, "stopped: Expires"),
    ],
)
def test_a_forwarders_state_says_what_is_wrong_with_the_last_answer(fields: dict[str, Any], state: str) -> None:
    shown = {"name": "next", "queue": "q", "partition": 0, "to": "http://h/", "state": "sending", "suspended": None}
    shown |= {"stopped": "", "waiting": 1, "flight": None, "sequence": None, "refused": None}
    assert forwarder_row({**shown, **fields}, 0.0)[4] == state


def test_sinks_are_listed_bound_and_forgotten(run: Any, served: Any) -> None:
    admin = ("--admin", served.admin)
    assert run("sinks", *admin).out == f"{served.admin} has no sinks: no external writer writes to it.\n"

    def publish() -> None:
        staging, batch = served.app.running.engine.protocol.staging, Batch("alerts", "q1", 0)
        now = served.app.running.engine.clock()
        (block,) = blocks_of_records([("inbox", Record("", 0, "urn:a", b"<a/>", now))], now)
        staging.stage(batch, "t", 0, block, now)
        staging.publish(batch, ["t"], 1, now)
        staging.stage(Batch("alerts", "q1", 1), "u", 0, block, now)
        served.app.running.engine.touch()

    in_loop(served, publish)
    assert re.search(r"alerts +q1 +0 +1 +\d +1 ", run("sinks", *admin).out)
    assert json.loads(run("sinks", "alerts", *admin, "--json").out)["batch"] == 0
    assert json.loads(run("sinks", *admin, "--json").out)["sinks"][0]["query"] == "q1"
    result = run("sinks", "bind", "alerts", "q2", *admin)
    assert (result.code, "delete 1 staged rows" in result.err) == (1, True)
    assert run("sinks", "bind", "alerts", "q2", *admin, "--yes").out == "alerts accepts the batches of q2.\n"
    assert "none" in run("sinks", *admin).out
    result = run("sinks", "bind", "other", "q3", "--after", "7", *admin)
    assert (result.code, "from batch 8" in result.err) == (1, True)
    assert (
        run("sinks", "bind", "other", "q3", "--after", "7", *admin, "--yes").out == "other accepts the batches of q3.\n"
    )
    assert json.loads(run("sinks", "other", *admin, "--json").out)["batch"] == 7
    assert run("sinks", "forget", "other", *admin, "--yes").code == 0
    assert run("sinks", "forget", "alerts", *admin).code == 1
    assert run("sinks", "forget", "alerts", *admin, "--yes").out.startswith("alerts is forgotten; ")
    result = run("sinks", "forget", "alerts", *admin, "--yes")
    assert (result.code, "the sink 'alerts' does not exist" in result.err) == (1, True)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("2d", 172800), ("1w", 604800)])
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5", "-1s", "nans", "1e99d", "5x"])
def test_what_is_no_duration_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.UsageError):
        duration(text)


def test_a_time_without_a_zone_is_utc() -> None:
    assert place(None, None, "1970-01-02", None) == {"time": 86400.0}
    assert place(None, None, "1970-01-02T01:00+01:00", None) == {"time": 86400.0}


def test_an_https_listener_asked_by_http_is_named_with_the_remedy(run: Any) -> None:
    """The server answers such a request itself, in plain text: tests/http/test_tls.py."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_in_plain, args=(listener,))
        thread.start()
        result = run("queues", "--admin", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert result.code == 1
    assert result.err.endswith("cannot be read: this port speaks https\n  Change http to https in the URL.\n")


def answer_in_plain(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        said = NEEDS_TLS.text.encode()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))


@pytest.mark.parametrize(
    "arguments",
    [
        ("dead-letters", "list", "--from"),
        ("queues", "peek", "inbox", "--partition", "0", "--from"),
        ("queues", "peek", "inbox", "--partition"),
        ("queues", "purge", "inbox", "--below"),
        ("cursors", "reset", "inbox", "audit", "--offset"),
    ],
)
def test_a_number_that_no_server_has_is_wrong_usage(run: Any, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "9" * 23)
    assert result.code == 2
    assert "is not in the range" in result.err
