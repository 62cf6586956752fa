"""MakeConnection with Metro: its client and its service, with quick and slow operations."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import LIVE, Shop, connected, poll_replies, served
from java_peer import JavaPeer
from java_stacks import metro as words
from wcf.destination import running_destination

import holdfast

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Metro", setup="MakeConnection", pattern="request/reply")]

VERSIONS = [holdfast.Versions("1.1", "2005/08", soap) for soap in ("1.1", "1.2")]
SOME = 3
each_soap = pytest.mark.parametrize("versions", VERSIONS, ids=["soap1.1", "soap1.2"])


@each_soap
@pytest.mark.parametrize("sleep", [0.0, 1.5], ids=["quick", "slow"])
@cell(role="destination")
async def test_a_metro_client_polls_a_destination_for_its_replies(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, sleep: float
) -> None:
    shop = Shop(tmp_path / "inbox", sleep=sleep, policy=holdfast.DestinationPolicy(reply_patience=0.6))
    async with running_destination(shop.app) as url:
        caller = await connected(metro, url, "echo", **words(versions, polls=True, interval=10_000))
        await caller.call(1, SOME)
        await caller.settle()
    assert shop.numbers == list(range(1, SOME + 1))


@each_soap
@cell(role="source", service="slow")
async def test_a_source_polls_a_slow_metro_service_for_its_replies(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    service = await served(metro, tmp_path / "log", **words(versions, polls=True, sleep=1500))
    await poll_replies(service.url, tmp_path / "outbox", versions, SOME)
    assert service.delivered("echo") == list(range(1, SOME + 1))
