"""UsernameToken and Timestamp against CXF with WSS4J, both ways round, through a bad network."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import (
    BAD,
    CLEAN,
    COUNT,
    LIVE,
    PATIENCE,
    Operation,
    body,
    broker_before,
    connected,
    correct_reply,
    forwarder_words,
    served,
    source_to,
    values,
)
from java_peer import NAMESPACE, JavaPeer
from java_signers import call_through_losses, refuse_cxf, send_through_losses
from java_stacks import cxf as words
from waiting import until

import holdfast
from holdfast.broker.signature_config import MessageCredentialsConfig
from holdfast.config.values import Secret
from holdfast.security.users import Users
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, cell(peer="CXF")]

every_version = pytest.mark.parametrize(
    "versions",
    [
        pytest.param(holdfast.Versions("1.0", "2004/08", "1.1"), marks=pytest.mark.nightly),
        holdfast.Versions("1.1", "2005/08", "1.2"),
    ],
    ids=["rm10-soap11", "rm11-soap12"],
)
RM11 = holdfast.Versions("1.1", "2005/08", "1.1")
both_kinds = pytest.mark.parametrize("kind", [pytest.param("text", marks=pytest.mark.nightly), "digest"])
ALICE = {"alice": "secret"}


@every_version
@both_kinds
@pytest.mark.parametrize("operation", [pytest.param("notify", marks=pytest.mark.nightly), "echo"])
@cell(role="destination", network=BAD)
async def test_cxf_sends_with_a_user_name_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, kind: str, operation: Operation
) -> None:
    users = holdfast.UsernameTokenValidator(ALICE, require_timestamp=True, require_digest=kind == "digest")
    # With WSS4J, a request that CXF repeats while its exchange is open fails there.
    theirs = words(versions, security=kind, interval=300 if operation == "notify" else 3000)
    await call_through_losses(cxf, tmp_path, operation, theirs, users)


@cell(role="destination", security="user name (digest)", setup="an unknown user", pattern="no session", versions=[RM11])
async def test_cxf_as_an_unknown_user_reaches_no_handler(cxf: JavaPeer, tmp_path: Path) -> None:
    theirs = words(RM11, security="digest", user="eve")
    await refuse_cxf(cxf, tmp_path, theirs, holdfast.UsernameTokenValidator(ALICE))


@every_version
@both_kinds
@cell(role="source", pattern="one-way", network=BAD)
async def test_holdfast_sends_to_cxf_with_a_user_name_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, kind: str
) -> None:
    alice = holdfast.UsernameToken("alice", "secret", digest=kind == "digest")
    await send_through_losses(cxf, tmp_path, versions, words(versions, security=kind), alice)


@both_kinds
@cell(role="source", pattern="request/reply", versions=[RM11])
async def test_holdfast_asks_cxf_with_a_user_name(cxf: JavaPeer, tmp_path: Path, kind: str) -> None:
    versions = RM11
    service = await served(cxf, tmp_path / "log", **words(versions, security=kind))
    alice = holdfast.UsernameToken("alice", "secret", digest=kind == "digest")
    async with source_to(service.url, tmp_path / "outbox", versions, processors=[alice]) as source:
        for number in range(1, 4):
            reply = await source.request(body("echo", number), action=f"{NAMESPACE}/echo", timeout=PATIENCE)
            assert values(reply) == correct_reply(number)


@pytest.mark.nightly
@every_version
@both_kinds
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(role="both", broker="broker", network=BAD)
async def test_a_broker_between_two_cxf_has_a_user_on_each_leg(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, kind: str, operation: Operation
) -> None:
    (tmp_path / "users").write_text("carol:different\nalice:secret\n")
    service = await served(cxf, tmp_path / "log", **words(versions, security=kind))
    security = MessageCredentialsConfig("alice", Secret("secret", "a test"), digest=kind == "digest")
    # CXF sends a reply once, and without an address a lost response loses it: see test_cxf.py.
    faults_behind = BAD if operation == "notify" else CLEAN
    words_of_forwarder = {**forwarder_words(versions), "security": security, "offer": operation == "echo"}
    async with (
        LossyProxy(service.url, faults_behind, seed=7) as behind,
        broker_before(behind.url, tmp_path / "broker", users=Users(tmp_path / "users"), **words_of_forwarder) as broker,
        LossyProxy(broker.service.url, BAD, seed=8) as before,
    ):
        caller = await connected(cxf, before.url, operation, decoupled=False, **words(versions, security=kind))
        await caller.call_through(before)
        await until(lambda: len(service.delivered(operation)) >= COUNT, PATIENCE)
        stranger = await connected(cxf, broker.service.url, operation, decoupled=False, **words(versions))
        with pytest.raises(RuntimeError):
            await stranger.call(COUNT + 1, COUNT + 1)
        assert before.counts.lost > 0
        assert behind.counts.lost > 0 or operation == "echo"
    assert service.delivered(operation) == list(range(1, COUNT + 1))


@cell(role="source", security="user name (digest)", setup="a wrong password", pattern="one-way", versions=[RM11])
async def test_cxf_refuses_a_wrong_password_and_the_messages_wait(cxf: JavaPeer, tmp_path: Path) -> None:
    versions = RM11
    service = await served(cxf, tmp_path / "log", **words(versions, security="digest"))
    wrong, right = (holdfast.UsernameToken("alice", password, digest=True) for password in ("wrong", "secret"))
    async with source_to(service.url, tmp_path / "outbox", versions, processors=[wrong]) as source:
        sent = await source.send(body("notify", 1), action=f"{NAMESPACE}/notify")
        with pytest.raises(holdfast.PeerFault) as refused:
            await sent.acknowledged(timeout=PATIENCE)
        assert "requires other credentials" in refused.value.remedy
    async with source_to(service.url, tmp_path / "outbox", versions, processors=[right]) as source:
        source.resume()
        await source.flush(timeout=PATIENCE)
        await until(lambda: service.delivered("notify") == [1], PATIENCE)
