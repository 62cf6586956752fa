"""Metro with a SymmetricBinding, both ways round: user names or certificates in each message, and conversations.

Each side of Metro has the policy that a destination publishes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import (
    CLEAN,
    LIVE,
    LOSS,
    PATIENCE,
    WORK,
    Shop,
    Work,
    broker_before,
    connected,
    forwarder_words,
    served,
    source_to,
)
from java_peer import JavaPeer
from java_signers import OURS
from metro_grid import every_work, finish, served_for, two_versions
from metro_security import METRO, SYMMETRIC, metro_side, symmetric, symmetric_client
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.broker.signature_config import ForwarderSymmetricConfig, MessageCredentialsConfig, SymmetricConfig
from holdfast.config.values import Secret
from holdfast.security.users import Users
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Metro")]

every_security = pytest.mark.parametrize("secured", SYMMETRIC)


@every_security
@two_versions
@every_work
@cell(role="destination")
async def test_metro_obeys_the_symmetric_binding_of_a_destination(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str, work: Work
) -> None:
    shop = Shop(tmp_path / "inbox", sleep=work.milliseconds / 1000, processors=[symmetric(tmp_path, secured)])
    async with running_destination(shop.app) as url, LossyProxy(url, CLEAN, seed=3) as proxy:
        caller = await connected(metro, proxy.url, work.operation, **metro_side(tmp_path, versions, "client", secured))
        await caller.call(1, 1)  # Metro does not repeat a request for a token
        proxy.faults = work.faults
        await caller.call(2, work.count)
        proxy.faults = CLEAN
        await caller.settle()
        await until(lambda: [one["state"] for one in shop.sequences("destination")] == ["terminated"], PATIENCE)
    assert shop.numbers == list(range(1, work.count + 1))
    assert (proxy.counts.lost > 0) == (work.faults is LOSS)


@every_security
@every_work
@two_versions
@cell(role="source")
async def test_holdfast_calls_the_symmetric_binding_of_metro(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str, work: Work
) -> None:
    """If each message has a key, Metro protects a repeated reply with the key of the first attempt of its request."""
    setup = metro_side(tmp_path, versions, "server", secured)
    service = await served_for(metro, tmp_path / "log", setup, work)
    processors = [symmetric_client(tmp_path, secured)]
    async with (
        LossyProxy(service.url, work.faults, seed=5) as proxy,
        source_to(proxy.url, tmp_path / "outbox", versions, processors=processors) as source,
    ):
        await finish(work, source, service, proxy)


@two_versions
@pytest.mark.parametrize("secured", SYMMETRIC[:2])
@cell(role="both", broker="broker", pattern="one-way", network=LOSS)
async def test_a_broker_between_two_metro_has_symmetric_keys_on_each_leg(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str
) -> None:
    work = WORK["notify-loss"]
    service = await served(metro, tmp_path / "log", **metro_side(tmp_path, versions, "server", secured))
    own, theirs = OURS.files(tmp_path), str(METRO.files(tmp_path).certificate)
    ours = str(own.certificate), str(own.key)
    listener = SymmetricConfig(*ours, confirm=False)
    users: Users | None = None
    if "certificate" in secured:
        listener = replace(listener, trusted=(theirs,), signed=False)
        key = ForwarderSymmetricConfig(theirs, own_certificate=ours[0], own_key=ours[1])
        forwarder = MessageCredentialsConfig(symmetric=key)
    else:
        (tmp_path / "users").write_text("alice:secret\n")
        users = Users(tmp_path / "users")
        key = ForwarderSymmetricConfig(theirs)
        forwarder = MessageCredentialsConfig("alice", Secret("secret", "a test"), symmetric=key)
    told = {**forwarder_words(versions), "security": forwarder}
    async with (
        LossyProxy(service.url, work.faults, seed=5) as behind,
        broker_before(behind.url, tmp_path / "broker", users=users, symmetric=listener, **told) as broker,
        LossyProxy(broker.service.url, CLEAN, seed=3) as before,
    ):
        caller = await connected(metro, before.url, "notify", **metro_side(tmp_path, versions, "client", secured))
        await caller.call(1, 1)
        before.faults = work.faults
        await caller.call(2, work.count)
        before.faults = CLEAN
        await caller.settle()
        await until(lambda: len(service.delivered("notify")) >= work.count, PATIENCE)
    assert service.delivered("notify") == list(range(1, work.count + 1))
    assert before.counts.lost > 0 and behind.counts.lost > 0
