"""What a node remembers of its cluster, and what it concludes from that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.cluster.memory import LONGEST_FILE, SAVE_SECONDS, NodeMemory


def test_what_was_seen_twice_is_remembered_after_a_restart(tmp_path: Path) -> None:
    memory = NodeMemory(str(tmp_path / "new"), "a")
    assert (memory.cluster, memory.trouble) == ("", "")
    memory.see("c1", {0: (2, 10), 3: (1, 4)}, 0.0)
    memory.see("c1", {0: (2, 12), 3: (1, 4)}, 0.5)
    assert NodeMemory(str(tmp_path / "new"), "a").lost({}) == [], "the file is not written again and again"
    memory.see("c1", {0: (2, 12), 3: (1, 4)}, 0.5 + SAVE_SECONDS)
    again = NodeMemory(str(tmp_path / "new"), "a")
    assert again.cluster == "c1"
    assert again.lost({0: (2, 12), 3: (9, 9)}) == []
    assert again.lost({0: (3, 11), 3: (0, 4)}) == [
        "batch 12 of cluster partition 0 was durable, but it has only 11",
        "the epoch of cluster partition 3 fell from 1 to 0",
    ]
    assert len(again.lost({})) == 2
    assert NodeMemory(str(tmp_path / "new"), "b").cluster == "", "each node has a file of its own"


def test_what_was_visible_for_a_moment_is_not_remembered() -> None:
    memory = NodeMemory(None, "a")
    memory.see("c1", {0: (2, 10)}, 0.0)
    memory.see("c1", {0: (2, 11)}, 1.0)
    memory.see("c1", {0: (2, 10)}, 2.0)
    assert memory.lost({0: (2, 10)}) == []
    assert memory.lost({0: (2, 9)}) != []


def test_what_processes_of_the_node_made_durable_is_remembered_at_once(tmp_path: Path) -> None:
    own = {0: (2, 10)}
    memory = NodeMemory(str(tmp_path), "a", lambda: own)
    memory.see("c1", {0: (2, 10)}, 0.0)
    own[0] = (2, 11)
    assert memory.lost({0: (2, 10)}) != []
    memory.save()
    again = NodeMemory(str(tmp_path), "a", lambda: {0: (3, 5)})  # a process of it opened an older copy
    assert again.lost({0: (3, 10)}) != [] and again.lost({0: (3, 11)}) == []


def test_a_restored_database_may_have_less() -> None:
    memory = NodeMemory(None, "a")
    for now in (0.0, 1.0):
        memory.see("c1", {0: (2, 10)}, now)
    memory.forget_batches()
    assert memory.lost({0: (1, 3)}) == [] and memory.cluster == "c1"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"cluster": "c"}',
        '{"cluster": "c", "batches": {"0": [1]}}',
        '{"cluster": "c", "batches": {"0": [1, Infinity]}}',
        '{"cluster": "c", "batches": {"0": [1, 1e999]}}',
        '{"cluster": "c", "batches": {"0": [1, "2"]}}',
        '{"cluster": "c", "batches": {"0": [1, -2]}}',
        '{"cluster": "c", "batches": {"0": [1, 9223372036854775808]}}',
        '{"cluster": null, "batches": {}}',
        '{"batches": {"0": [1, 2]}}',
        '{"cluster": "c", "batches": {}' + " " * LONGEST_FILE + "}",
        "\xff",
    ],
    ids=lambda content: content[:50].strip(),
)
def test_a_file_that_cannot_be_read_is_a_trouble_and_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_bytes(content.encode("latin-1"))
    memory = NodeMemory(str(tmp_path), "a")
    assert memory.cluster == ""
    assert memory.trouble.startswith(f"{tmp_path / 'a.json'} cannot be read: ")
    memory.see("c1", {}, 0.0)
    assert memory.trouble == ""
    assert NodeMemory(str(tmp_path), "a").cluster == "c1"


def test_the_file_is_durable_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, do=original: (done.append(name), do(*given)))
    NodeMemory(str(tmp_path), "a").meet("one", {}, 0.0)
    assert done == ["fsync", "replace"]


def test_a_file_that_cannot_be_written_is_a_trouble_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    memory = NodeMemory(str(tmp_path / "file"), "a")
    memory.see("c1", {}, 0.0)
    assert "cannot be written" in memory.trouble and memory.cluster == "c1"


def test_a_batch_counts_if_a_server_shows_it_twice_not_if_two_servers_show_it(tmp_path: Path) -> None:
    memory = NodeMemory(str(tmp_path), "a")
    memory.meet("c1", {0: (2, 10)}, 0.0)
    memory.see("c1", {0: (2, 11)}, 1.0)
    memory.meet("c1", {0: (2, 11)}, 2.0)
    assert memory.lost({0: (2, 10)}) == []
    memory.see("c1", {0: (2, 11)}, 3.0)
    assert memory.lost({0: (2, 10)}) != []
