"""What the commands of a cluster show of its URL, without Kafka. Covers cluster/group/inspection.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.cluster.group import inspection
from holdfast.cluster.group.verification import verify_cluster
from holdfast.exceptions import StoreAway
from holdfast.testing.ports import free_ports


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (inspection.read_status, ()),
        (inspection.drain_node, ("a",)),
        (inspection.resume_node, ("a",)),
        (inspection.move_partitions, ([0], "a")),
        (inspection.release_partitions, ([0],)),
        (verify_cluster, ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_command_shows_no_cache_which_this_machine_need_not_have(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., object], given: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(inspection, "COMMAND_SECONDS", 0.1)
    location = f"kafka://127.0.0.1:{free_ports(1)[0]}/cluster?cache=/nowhere/cache&partition=3"
    with pytest.raises(StoreAway) as caught:
        command(location, *given)
    told = str(caught.value)
    assert "kafka://127.0.0.1" in told and not any(word in told for word in ("nowhere", "partition="))
