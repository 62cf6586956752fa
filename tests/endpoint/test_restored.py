"""A destination whose store lost acknowledged messages tells their senders, and lets none wait behind a gap."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast import Destination, Source, Versions
from holdfast.store import directory
from holdfast.store.rocksdb import evidence
from holdfast.store.rocksdb.repair import repair_store
from holdfast.store.rocksdb.store import RocksDBStore

ACTION = "urn:test:submit"


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
