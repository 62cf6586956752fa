"""What the tests with Metro vary: versions, operations and networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from java_contract import BAD, CLEAN, LOSS, PATIENCE, WORK, Work, exchange, served
from java_peer import JavaPeer
from served_process import Served
from waiting import until

import holdfast
from holdfast.testing.proxy import LossyProxy

VERSIONS = [holdfast.Versions(rm, "2005/08", soap) for rm in ("1.0", "1.1") for soap in ("1.1", "1.2")]
every_version = pytest.mark.parametrize(
    "versions", VERSIONS, ids=[f"rm{v.rm.value}-soap{v.soap.value}" for v in VERSIONS]
)
every_operation = pytest.mark.parametrize("operation", ["notify", "echo"])
every_network = pytest.mark.parametrize("faults", [CLEAN, BAD], ids=["clean", "bad"])

two_versions = pytest.mark.parametrize(
    "versions",
    [holdfast.Versions("1.0", "2005/08", "1.1"), holdfast.Versions("1.1", "2005/08", "1.2")],
    ids=["rm10-soap11", "rm11-soap12"],
)
"""For tests of security, which take longer."""
every_work = pytest.mark.parametrize("work", WORK.values(), ids=WORK)


async def served_for(metro: JavaPeer, log: Path, setup: dict[str, Any], work: Work) -> Served:
    """Start Metro's service for some work."""
    # In order, Metro does not answer all slow requests that are sent at once.
    return await served(metro, log, **{**setup, "sleep": work.milliseconds, "ordered": not work.milliseconds})


async def finish(work: Work, source: holdfast.Source, service: Served, proxy: LossyProxy) -> None:
    """Do the work through a proxy, and end the Sequence: the service gets each message once, and in order unless it is
    slow."""
    is_slow = work.milliseconds > 0
    await exchange(source, work.operation, range(1, work.count + 1), at_once=is_slow)
    await until(lambda: len(service.delivered(work.operation)) >= work.count, PATIENCE)
    proxy.faults = CLEAN  # Metro does not secure its fault for a Sequence that has ended, or sends none
    await source.end(timeout=PATIENCE)
    delivered = service.delivered(work.operation)
    assert (sorted(delivered) if is_slow else delivered) == list(range(1, work.count + 1))
    assert (proxy.counts.lost > 0) == (work.faults is LOSS)
