"""Metro with user names and Timestamps over https, both ways round: a TransportBinding."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import LIVE, LOSS, PATIENCE, Shop, Work, connected, source_to
from java_peer import JavaPeer
from metro_grid import every_work, finish, served_for, two_versions
from metro_security import OVER_HTTPS, metro_side, tls_of_metro, users
from waiting import until
from wcf.destination import running_destination
from wcf.https import context_in, tls_before, tls_behind

import holdfast
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Metro", security=OVER_HTTPS)]


@two_versions
@every_work
@cell(role="destination")
async def test_metro_sends_user_names_over_https_to_a_destination(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, work: Work
) -> None:
    shop = Shop(tmp_path / "inbox", sleep=work.milliseconds / 1000, processors=[users(tmp_path)])
    context = context_in(tmp_path)
    setup = {**metro_side(tmp_path, versions, "client", OVER_HTTPS), "tls": tmp_path / "ca.pem"}
    async with (
        running_destination(shop.app) as url,
        LossyProxy(url, work.faults, seed=3) as proxy,
        tls_before(proxy.url, context) as secured,
    ):
        caller = await connected(metro, secured, work.operation, **setup)
        await caller.call(1, work.count)
        await caller.settle()
        await until(lambda: [one["state"] for one in shop.sequences("destination")] == ["terminated"], PATIENCE)
    assert shop.numbers == list(range(1, work.count + 1))
    assert (proxy.counts.lost > 0) == (work.faults is LOSS)


@two_versions
@every_work
@cell(role="source")
async def test_holdfast_sends_user_names_over_https_to_metro(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, work: Work
) -> None:
    keys, authority = tls_of_metro(tmp_path)
    setup = {**metro_side(tmp_path, versions, "server", OVER_HTTPS), "tls": keys}
    service = await served_for(metro, tmp_path / "log", setup, work)
    alice = holdfast.UsernameToken("alice", "secret")
    async with (
        tls_behind(service.url.replace("http:", "https:"), authority) as plain,
        LossyProxy(plain, work.faults, seed=5) as proxy,
        tls_before(proxy.url, context_in(tmp_path / "before")) as url,
    ):
        trusted = ssl.create_default_context(cafile=str(tmp_path / "before" / "ca.pem"))
        http = holdfast.SourceHTTP(ssl_context=trusted)
        async with source_to(url, tmp_path / "outbox", versions, processors=[alice], http=http) as source:
            await finish(work, source, service, proxy)
