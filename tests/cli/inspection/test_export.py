"""Attachments of any size leave a queue and return: ``holdfast queues export`` and ``holdfast send --jsonl``.

Covers cli/inspection/export.py, cli/running/line_attachments.py and client/record_contents.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Attachment
from holdfast.client.data_plane import DataPlane
from holdfast.client.errors import RecordsTrimmed
from tests.cli.inspection.test_queues import put_cursor

LARGE = os.urandom(3 << 20) * 4
SMALL = b"\x00small"
BODY = '<claim><x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:film@test"/></claim>'


def send(url: str) -> None:
    with holdfast.sync.Source(url, store=":memory:") as source:
        given = [Attachment(LARGE, "video/mp4", "film@test")]
        source.send(BODY, action="urn:film", attachments=given, message_id="urn:film:1")
        source.send("<note/>", action="urn:note", attachments=[Attachment(SMALL, "text/plain", "note@test")])
        source.flush(60)


def settle(served: Any) -> None:
    asyncio.run_coroutine_threadsafe(served.app.handled(), served.loop).result(60)


@pytest.fixture
def filled(served: Any) -> Any:
    put_cursor(served.admin, "audit", dict.fromkeys("0123", 0))  # a reader, for whom records stay
    send(served.url)
    settle(served)
    return served


def test_large_attachments_are_exported_to_files_piece_by_piece(run: Any, filled: Any) -> None:
    tracemalloc.start()
    try:
        assert run("queues", "export", "inbox", "--admin", filled.admin, "--to", "out").code == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(LARGE)  # the server and the command together
    files = {path.suffixes[-1]: path.read_bytes() for path in Path("out").iterdir() if path.suffix != ".xml"}
    assert files == {".mp4": LARGE, ".txt": SMALL}


def test_a_line_has_attachments_in_base64_whatever_their_size(run: Any, filled: Any) -> None:
    assert run("queues", "export", "inbox", "--admin", filled.admin, "--jsonl", "all.jsonl").code == 0
    found = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    contents = {one["action"]: base64.b64decode(one["attachments"][0]["base64"]) for one in found}
    assert contents == {"urn:film": LARGE, "urn:note": SMALL}


@pytest.mark.parametrize("to", [(), ("--to", "files")])
def test_exported_lines_are_sent_again_with_their_attachments(run: Any, filled: Any, to: tuple[str, ...]) -> None:
    where = ("--admin", filled.admin, "--jsonl", "all.jsonl", *to)
    assert run("queues", "export", "inbox", *where).code == 0
    lines = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    kept = ("body", "action", "attachments")
    Path("again.jsonl").write_text("".join(json.dumps({one: line[one] for one in kept}) + "\n" for line in lines))
    got: dict[str, list[bytes]] = {}

    def take(message: holdfast.Message) -> None:
        got.setdefault(message.action, []).append(message.attachments[0].read())

    for action in ("urn:film", "urn:note"):
        filled.app.on(action)(take)
    result = run("send", "--to", filled.url, "--jsonl", "again.jsonl")
    assert result.code == 0, result.err
    settle(filled)
    assert got == {"urn:film": [LARGE], "urn:note": [SMALL]}


def test_lines_with_wrong_attachments_are_refused_with_a_reason(run: Any, served: Any) -> None:
    for attachments, reason in (
        ({}, "its attachments are not a list but dict"),
        ([1], "an attachment is not an object with the keys"),
        ([{"file": "a", "base64": ""}], "an attachment has both base64 and file"),
        ([{"content_id": "a"}], "an attachment has no base64 or file"),
        ([{"base64": "!"}], "the base64 of an attachment is not valid"),
        ([{"file": "missing"}], "the file 'missing' of an attachment cannot be read: No such file or directory"),
        ([{"file": "."}], "the file '.' of an attachment cannot be read: it is a directory"),
        ([{"base64": "", "content_id": "<a>"}], "the Content-ID '<a>' of an attachment is not valid"),
    ):
        line = {"body": "<n/>", "action": "urn:n", "attachments": attachments}
        Path("lines.jsonl").write_text(json.dumps(line) + "\n")
        result = run("send", "--to", served.url, "--jsonl", "lines.jsonl", "--store", ":memory:")
        assert (result.code, reason in result.err) == (1, True), result.err


def test_attachments_of_a_deleted_or_another_record_are_refused(run: Any, filled: Any) -> None:
    plane = DataPlane(filled.admin)
    ends = plane.ends("inbox")
    ((partition, (first, end)),) = [one for one in ends.partitions.items() if one[1][1] > one[1][0]]
    assert plane.content("inbox", ends.epoch, partition, first, 2 * len(LARGE)) == b""
    with pytest.raises(holdfast.exceptions.HoldfastError, match=r"404: record 1 has no attachments outside it"):
        plane.content("inbox", ends.epoch, partition, first + 1, 0)
    with pytest.raises(holdfast.exceptions.HoldfastError, match=f"ends at {end}"):
        plane.content("inbox", ends.epoch, partition, end, 0)
    with pytest.raises(holdfast.exceptions.HoldfastError, match=r"400: the offset cannot be read"):
        plane._json("GET", f"/queues/inbox/{partition}/contents/many")
    assert run("queues", "purge", "inbox", "--admin", filled.admin, "--yes").code == 0
    with pytest.raises(RecordsTrimmed, match="records below 2 are deleted"):
        plane.content("inbox", ends.epoch, partition, first, 0)
    plane.close()


@pytest.mark.parametrize(
    ("redirection", "file", "reason"),
    [
        ("", "/dev/full", "cannot write to /dev/full: No space left on device"),
        (">/dev/full", "-", "cannot write to standard output: No space left on device."),
        (">&-", "-", "cannot write to standard output: it is closed."),
    ],
)
def test_an_export_that_cannot_be_written_is_an_error(filled: Any, redirection: str, file: str, reason: str) -> None:
    words = [sys.executable, "-m", "holdfast", "queues", "export", "inbox", "--admin", filled.admin, "--jsonl", file]
    script = ["sh", "-c", f'exec "$@" {redirection}', "sh", *words]
    environment = os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
    result = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert result.stderr.startswith(f"holdfast: {reason}")
    assert "Traceback" not in result.stderr
