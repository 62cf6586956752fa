"""Metro with user names and Timestamps over https, both ways round: a TransportBinding."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import CLEAN, LIVE, LOSS, PATIENCE, WORK, Shop, Work, connected, exchange, served, source_to
from java_peer import JavaPeer
from metro_security import OVER_HTTPS, metro_side, tls_of_metro, users
from waiting import until
from wcf.destination import running_destination
from wcf.https import context_in, tls_before, tls_behind

import holdfast
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Metro", security=OVER_HTTPS)]

VERSIONS = [holdfast.Versions("1.0", "2005/08", "1.1"), holdfast.Versions("1.1", "2005/08", "1.2")]
every_version = pytest.mark.parametrize("versions", VERSIONS, ids=["rm10-soap11", "rm11-soap12"])
every_work = pytest.mark.parametrize("work", WORK.values(), ids=WORK)


@every_version
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


@every_version
@every_work
@cell(role="source")
async def test_holdfast_sends_user_names_over_https_to_metro(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, work: Work
) -> None:
    is_slow = work.milliseconds > 0
    keys, authority = tls_of_metro(tmp_path)
    setup = {**metro_side(tmp_path, versions, "server", OVER_HTTPS), "tls": keys}
    # In order, Metro does not answer all slow requests that are sent at once.
    service = await served(metro, tmp_path / "log", **{**setup, "sleep": work.milliseconds, "ordered": not is_slow})
    alice = holdfast.UsernameToken("alice", "secret")
    async with (
        tls_behind(service.url.replace("http:", "https:"), authority) as plain,
        LossyProxy(plain, work.faults, seed=5) as proxy,
        tls_before(proxy.url, context_in(tmp_path / "before")) as url,
    ):
        trusted = ssl.create_default_context(cafile=str(tmp_path / "before" / "ca.pem"))
        http = holdfast.SourceHTTP(ssl_context=trusted)
        async with source_to(url, tmp_path / "outbox", versions, processors=[alice], http=http) as source:
            await exchange(source, work.operation, range(1, work.count + 1), at_once=is_slow)
            await until(lambda: len(service.delivered(work.operation)) >= work.count, PATIENCE)
            proxy.faults = CLEAN  # Metro does not secure its fault for a Sequence that has ended, or sends none
            await source.end(timeout=PATIENCE)
    delivered = service.delivered(work.operation)
    assert (sorted(delivered) if is_slow else delivered) == list(range(1, work.count + 1))
    assert (proxy.counts.lost > 0) == (work.faults is LOSS)
