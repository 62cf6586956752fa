"""The command, on the journal of a destination that was served, stopped and started again.

Covers pipeline/jobs/audit.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from holdfast import Destination, Message, Source
from holdfast.endpoint.journal.files import HEADER, frames_of, segments
from holdfast.endpoint.journal.parquet import damage_of, to_parquet_all
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.pipeline.jobs import audit as audit_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACTION = "urn:test:submit"


async def served(store: Path, outbox: Path) -> None:
    """Two runs of a destination: the second goes on with the Sequence of the first."""
    async with contextlib.AsyncExitStack() as stack:
        source = None
        port = 0
        for number in (1, 2):
            app = Destination(store, partitions=1)

            @app.on(ACTION)
            async def take(_message: Message) -> None:
                pass

            service = Service(app, Listeners(port=port))
            await service.start()
            if source is None:
                source = await stack.enter_async_context(Source(service.url, outbox))
                port = int(service.url.rstrip("/").rpartition(":")[2])
            for _ in range(5):
                await source.send(f"<n>{number}</n>", action=ACTION)
            await source.flush(60)
            await app.handled()
            await service.close()


def rows(journal: Path) -> list[dict[str, Any]]:
    """All of it, once it is Parquet: whoever else makes that has ended then."""
    to_parquet_all(journal)
    return [row for one in segments(journal) for row in pq.read_table(one.path).to_pylist()]


def plant(journal: Path) -> None:
    """The last run has told the peer that it accepted a message which never came."""
    told = [row for one in segments(journal) if not damage_of(one) for row in pq.read_table(one.path).to_pylist()]
    sequence = next(row["sequence"] for row in told if row["event"] == "acknowledged")
    said = ("k", told[-1]["at"].timestamp(), [(sequence, 1_000, 1)])
    frames, _ = frames_of(told[-1]["run"], None, told[-1]["ordinal"] + 1, [said])
    (journal / "_9999.journal").write_bytes(HEADER + frames)


async def audited_from_afar(store: Path, *arguments: str) -> Result:
    """What the command says that is given the address of a server that runs on the store, and a token."""
    token = store.with_name("token")
    token.write_text("secret-of-the-test")
    service = Service(
        Destination(store, partitions=1), Listeners(port=0, admin=AdminListener(port=0, token=token.read_text()))
    )
    await service.start()
    try:
        given = ["--token-file", str(token), service.admin_url, *arguments]
        return await asyncio.to_thread(CliRunner().invoke, audit_job.audit_command, given)
    finally:
        await service.close()


def test_an_address_that_cannot_be_read_is_wrong_usage_before_spark_starts(tmp_path: Path) -> None:
    for place, more, why in (
        ("http://", [], "is not the URL of a server"),
        ("http://127.0.0.1:1", ["--token-file", str(tmp_path / "none")], "does not exist"),
        (str(tmp_path / "none"), [], "does not exist"),
        ("postgresql://u:secret@h/d", [], "postgresql://u@h/d has no journal"),
    ):
        result = CliRunner().invoke(audit_job.audit_command, [place, *more])
        assert (result.exit_code, why in result.output) == (2, True), result.output
        assert "secret" not in result.output


VIOLATED = "holdfast: a guarantee was broken: violations: 1,234"
UNSEEN = "holdfast: earlier runs of {} are in no journal that was named. "
DAMAGED = "holdfast: files of the journal are damaged or missing: 2. "


@pytest.mark.parametrize(
    ("found", "arguments", "exit_code", "told"),
    [
        ((0, 0, []), [], 0, []),
        ((0, 0, []), ["--strict"], 0, []),
        ((0, 2, []), [], 0, [DAMAGED]),
        ((0, 2, []), ["--strict"], 1, [DAMAGED]),
        ((1234, 0, []), [], 1, [VIOLATED]),
        ((1234, 2, []), [], 1, [VIOLATED, DAMAGED]),
        ((0, 0, [3]), [], 0, [UNSEEN.format("worker or cluster partition 3")]),
        ((0, 2, [0, 3]), ["--strict"], 1, [DAMAGED, UNSEEN.format("workers or cluster partitions 0, 3")]),
    ],
)
def test_the_exit_code_reports_violations_and_with_strict_also_damage(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    found: tuple[int, int, list[int]],
    arguments: list[str],
    exit_code: int,
    told: list[str],
) -> None:
    monkeypatch.setattr(audit_job, "command_session", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(audit_job, "_audit", lambda *_, **__: found)
    result = CliRunner().invoke(audit_job.audit_command, [str(tmp_path), *arguments])
    assert result.exit_code == exit_code, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == len(told)
    assert all(line.startswith(one) for line, one in zip(lines, told, strict=True)), lines


@pytest.mark.spark
@pytest.mark.nightly
def test_an_honest_run_ends_with_0_and_a_planted_violation_with_1(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared(*_: Any, **__: Any) -> contextlib.nullcontext[SparkSession]:
        return contextlib.nullcontext(spark)

    monkeypatch.setattr(audit_job, "command_session", shared)
    store, page = tmp_path / "inbox", tmp_path / "page.html"
    asyncio.run(served(store, tmp_path / "outbox"))

    result = asyncio.run(audited_from_afar(store, "--html", str(page), "--json"))
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0, result.output
    assert lines[0]["events"] > 30
    assert (lines[-1]["event"], lines[-1]["violations"], lines[-1]["cannot_say"]) == ("end", 0, 0)
    told = page.read_text(encoding="utf-8")
    assert "No violation was found." in told
    assert re.search(r"The event journal of http://\S+\. Sequences: [1-9]\d*\. Messages: [1-9]\d*\.", told)

    rows(store / "journal")
    plant(store / "journal")
    told = [str(store / "journal"), "--html", str(page), "--out", str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(audit_job.audit_command, told)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1, result.output
    (found,) = [line for line in lines if line["event"] == "violation"]
    assert (found["rule"], found["number"], found["count"]) == ("acknowledged, not delivered", 1_000, 1)
    assert "a guarantee was broken: violations: 1" in result.stderr
    assert "acknowledged, not delivered" in page.read_text(encoding="utf-8")
    tables = {path.name: DeltaTable(str(path)).to_pyarrow_table().num_rows for path in (tmp_path / "out").iterdir()}
    assert tables == {line["table"]: line["rows"] for line in lines if line["event"] == "table"}
    assert tables["violations"] == 1

    first = rows(store / "journal")[0]["run"]
    for one in segments(store / "journal"):
        if damage_of(one) or pq.read_table(one.path).to_pylist()[0]["run"] == first:
            one.path.unlink()
    result = CliRunner().invoke(audit_job.audit_command, [str(store / "journal")])
    assert UNSEEN.format("worker or cluster partition 0") in result.stderr


@pytest.mark.spark
@pytest.mark.nightly
def test_a_damaged_file_is_named_and_left_out_and_with_strict_the_audit_ends_with_1(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared(*_: Any, **__: Any) -> contextlib.nullcontext[SparkSession]:
        return contextlib.nullcontext(spark)

    monkeypatch.setattr(audit_job, "command_session", shared)
    store, page = tmp_path / "inbox", tmp_path / "page.html"
    asyncio.run(served(store, tmp_path / "outbox"))
    journal = store / "journal"
    rows(journal)
    damaged = segments(journal)[0].path
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3] ^= 1
    damaged.write_bytes(bytes(data))

    result = CliRunner().invoke(audit_job.audit_command, [str(store), "--html", str(page), "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0, result.output
    (hole,) = [line for line in lines if line.get("kind") == "damaged"]
    assert hole["why"] == f"damaged and skipped: {damaged}: its checksum is wrong"
    assert (lines[-1]["violations"], lines[-1]["damaged"]) == (0, 1)
    assert lines[0]["events"] > 10
    assert "files of the journal are damaged or missing: 1" in result.stderr
    assert str(damaged) in page.read_text(encoding="utf-8")
    assert CliRunner().invoke(audit_job.audit_command, [str(store), "--strict"]).exit_code == 1

    plant(journal)
    result = CliRunner().invoke(audit_job.audit_command, [str(store)])
    assert result.exit_code == 1
    assert "a guarantee was broken: violations: 1" in result.stderr
