"""A destination whose store lost acknowledged messages tells their senders, and lets none wait behind a gap."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Destination, SequenceLost, Source, Versions
from holdfast.store import directory
from holdfast.store.rocksdb import evidence
from holdfast.store.rocksdb.repair import repair_store
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.testing.ports import free_ports

ACTION = "urn:test:submit"


def resume() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "send", "--resume", "--store", "outbox"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("rm", "told"), [("1.0", "SequenceTerminated"), ("1.1", "SequenceClosed")])
async def test_a_repair_that_loses_batches_closes_their_sequences(
    serve: Any, tmp_path: Path, rm: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    versions = Versions(rm)
    async with Source(service.url, ":memory:", versions=versions) as source:
        for number in range(40):
            await source.send(f"<n>{number}</n>", action=ACTION)
            if number % 8 == 7:
                await source.flush(60)
        killed = tmp_path / "killed"
        shutil.copytree(tmp_path / "inbox", killed)
        port = int(service.url.rsplit(":", 1)[1].split("/")[0])
        await service.close(0.5)
        (log,) = evidence.logs(killed / directory.ENGINE)
        data = bytearray(log.read_bytes())
        data[len(data) * 6 // 10] ^= 1
        log.write_bytes(data)
        done = repair_store(killed, do=True)
        assert "--restored" in done.gives_up[0]
        again = RocksDBStore(killed)
        kept = again.load().bounds["inbox", 0][1]
        again.close()
        assert 0 < kept < 40
        service = await serve(Destination(killed, partitions=1).keep(restored=True), port=port)
        await source.send("<n>40</n>", action=ACTION)
        await source.flush(60)
        assert source.incidents["sequence.replaced"] == 1
        assert f"code='{told}'" in caplog.text
    await service.close(0.5)
    again = RocksDBStore(killed)
    found = again.read("inbox", 0, kept, kept + 50)
    assert [one.body for _, one in found] == [b"<n>40</n>"]
    again.close()


@pytest.mark.parametrize("rm", ["1.0", "1.1", "1.2"])
async def test_a_source_names_all_that_a_restore_lost_and_sends_the_rest(
    serve: Any, tmp_path: Path, rm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a restart of the source and its resumption, and over two restores; after that, they are reported."""
    monkeypatch.chdir(tmp_path)
    ports = free_ports(1)
    url, lost = f"http://127.0.0.1:{ports[0]}/", []

    async def send(source: Source, *numbers: int) -> None:
        for number in numbers:
            await source.send(f"<n>{number}</n>", action=ACTION)
        await source.flush(60)

    for turn in range(2):
        service = await serve(Destination("inbox", partitions=1), port=ports[0])
        async with Source(url, "outbox", versions=Versions(rm)) as source:
            await send(source, *range(turn * 10, turn * 10 + 3))
            await service.close(0.5)
            shutil.copytree("inbox", "copy")
            service = await serve(Destination("inbox", partitions=1), port=ports[0])
            await send(source, *range(turn * 10 + 3, turn * 10 + 6))
            (sequence,) = (one["identifier"] for one in source.sequences())
            await service.close(0.5)
            shutil.rmtree("inbox")
            Path("copy").rename("inbox")
            service = await serve(Destination("inbox", partitions=1).keep(restored=True), port=ports[0])
            with contextlib.suppress(SequenceLost):
                await send(source, turn * 10 + 6)
            lost.append(f"4-6 of the Sequence {sequence}")
            assert source.progress.retracted.endswith("; ".join(lost))
        await service.close(0.5)
    service = await serve(Destination("inbox", partitions=1), port=ports[0])
    done = await asyncio.to_thread(resume)
    assert done.returncode == 1 and "; ".join(lost) in done.stderr
    assert "send these messages again" in done.stderr
    done = await asyncio.to_thread(resume)
    assert done.returncode == 0 and "no longer acknowledges" not in done.stderr
    await service.close(0.5)
    again = RocksDBStore(tmp_path / "inbox")
    found = [one.body for _, one in again.read("inbox", 0, 0, 50)]
    assert found == [b"<n>%d</n>" % number for number in (0, 1, 2, 6, 10, 11, 12, 16)]
    again.close()


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
async def test_what_a_source_accepts_on_an_older_copy_of_its_store_arrives(serve: Any, tmp_path: Path, rm: str) -> None:
    """Its Sequence is open, and a lost run has used the numbers of the new messages."""
    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    store, copy = tmp_path / "outbox", tmp_path / "copy"

    async def run(text: str, count: int) -> str:
        child = str(Path(__file__).with_name("outdated_child.py"))
        command = [sys.executable, child, str(store), service.url, text, str(count), rm]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
        assert not done.returncode, done.stderr
        return done.stdout

    await run("a", 10)
    shutil.copytree(store, copy)
    assert (await run("b", 50)).startswith("0 "), "a killed source goes on with its Sequence"
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    found, problem = (await run("c", 60)).split(" ", 1)
    assert found == "1" and "acknowledges message 60" in problem and "ends with message 10 in this store" in problem
    assert (await run("d", 5)).startswith("0 ")
    await service.close(0.5)
    inbox = RocksDBStore(tmp_path / "inbox")
    bodies = [one.body.decode() for _, one in inbox.read("inbox", 0, 0, 1000)]
    inbox.close()
    sent = {"a": 10, "b": 50, "c": 60, "d": 5}
    assert sorted(bodies) == sorted(f"<c>{text}{number}</c>" for text, count in sent.items() for number in range(count))
