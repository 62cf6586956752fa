"""``holdfast store``: what is wrong with a store, and what a repair would give up, before it does anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.records import Batch, Record
from holdfast.store.rocksdb.store import RocksDBStore


def make(path: Path) -> None:
    store = RocksDBStore(path)
    for n in range(20):
        store.commit(Batch(appends=[("inbox", 0, n, Record("urn:s", n + 1, "urn:a", b"<x/>", 0.0))]))
    shutil.copytree(path, path.with_name("inbox"))
    store.close()


def damage(path: Path) -> None:
    (log,) = (path / "db").glob("*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)


def test_a_whole_store_is_said_to_be_whole_also_while_a_server_has_it_open(
    run: Any, served: Any, tmp_path: Path
) -> None:
    make(tmp_path / "made")
    result = run("store", "check", "inbox")
    assert (result.code, result.out) == (0, "inbox is undamaged: 20 records, up to batch 20.\n")
    assert run("store", "repair", "inbox").out == "inbox needs no repair.\n"
    with holdfast.sync.Source(served.url, store=":memory:") as source:
        source.send("<n/>", action="urn:a").acknowledged(60)
    result = run("store", "check", "served")
    assert result.code == 0
    assert "A process has the store open" in result.out


def test_a_damaged_store_is_checked_refused_repaired_and_used_again(run: Any, tmp_path: Path) -> None:
    make(tmp_path / "made")
    damage(tmp_path / "inbox")
    result = run("store", "check", "inbox")
    assert result.code == 1
    assert "was durable" in result.out
    assert result.out.endswith(
        "inbox is damaged. Restore a copy, or see what a repair would lose: holdfast store repair inbox\n"
    )
    facts = json.loads(run("store", "check", "inbox", "--json").out)
    assert facts["problems"]
    assert facts["serial"] < facts["durable"]
    result = run("store", "repair", "inbox")
    assert result.code == 1
    assert "The repair would lose:\n- everything after batch" in result.out
    assert run("store", "check", "inbox").code == 1, "nothing was done"
    result = run("store", "repair", "inbox", "--json")
    told = json.loads(result.out)
    assert (result.code, told["needed"], told["repaired"]) == (1, True, False)
    assert told["losses"][0].startswith("everything after batch")
    result = run("store", "repair", "--yes", "inbox")
    assert result.code == 0
    assert "was repaired. Lost:" in result.out
    result = run("store", "repair", "inbox", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"needed": False, "repaired": False, "losses": []})
    assert run("store", "check", "inbox").code == 0
    RocksDBStore(tmp_path / "inbox").close()


def test_a_changed_byte_of_a_table_is_told_by_its_own_path(run: Any, tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "inbox")
    store.commit(Batch(appends=[("inbox", 0, n, Record("urn:s", n + 1, "urn:a", b"<x/>", 0.0)) for n in range(20)]))
    store._db.flush()
    store.close()
    (table,) = (tmp_path / "inbox" / "db").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[20] ^= 0xFF
    table.write_bytes(data)
    result = run("queues", "inbox")
    assert result.code == 1
    assert str(Path("inbox", "db", table.name)) in result.err and "/holdfast-" not in result.err, result.err
    assert "Run: holdfast store check inbox" in result.err
    result = run("store", "repair", "inbox")
    assert result.code == 1
    assert f"not all of {table.name} is readable, so some of its records are lost." in result.err, result.err


def test_what_is_no_store_is_a_sentence(run: Any) -> None:
    for command in ("check", "repair"):
        result = run("store", command, "nowhere")
        assert result.code == 1
        assert result.err.startswith("holdfast: There is no store at nowhere.")
