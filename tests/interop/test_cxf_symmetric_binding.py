"""CXF with a SymmetricBinding, both ways round: keys for a certificate, user names, conversations.

CXF's client has nothing but the WSDL that the destination generates, reduced to one version, and obeys its policy.
CXF's service has that policy, too. Attacks are in tests/security/symmetric.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from interop_cells import SIX, cell
from java_contract import (
    CLEAN,
    COUNT,
    HARD,
    LIVE,
    PATIENCE,
    Operation,
    Shop,
    broker_before,
    connected,
    exchange,
    forwarder_words,
    served,
    source_to,
)
from java_peer import JavaPeer
from java_signers import CXF, OURS, demanding_policy, obedient
from java_signers import every_version as some_versions
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.broker.signature_config import ForwarderSymmetricConfig, MessageCredentialsConfig, SymmetricConfig
from holdfast.config.values import Secret
from holdfast.endpoint.inspection import describe_protocol
from holdfast.security.users import Users
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="CXF")]
every_version = pytest.mark.parametrize("versions", [holdfast.Versions(*one) for one in SIX], ids=map(" ".join, SIX))
Proof = Literal["user name", "conversation", "certificate", "unsigned certificate"]
every_proof = pytest.mark.parametrize("proof", get_args(Proof)[:3])
"""What proves a client: a user name in each message, or in the request for a token; or an endorsing certificate, which
the signature with the symmetric key is over, or not."""
SLOW, SOME = 1500, 5
"""Milliseconds that a slow service takes, and the number of its requests."""


def validator(directory: Path, proof: Proof, *, confirm: bool = True) -> holdfast.SymmetricBindingValidator:
    users: Any = holdfast.UsernameTokenValidator({"alice": "secret"})
    if "certificate" in proof:
        users = holdfast.EndorsingCertificates(CXF.files(directory).certificate, signed=proof == "certificate")
    files, has_token = OURS.files(directory), proof == "conversation"
    return holdfast.SymmetricBindingValidator(*files, users=users, conversation=has_token, confirm=confirm)


def demanding(directory: Path, versions: holdfast.Versions, proof: Proof) -> dict[str, Any]:
    """The settings of a CXF service with the policy that a destination has."""
    return demanding_policy(directory, versions, validator(directory, proof))


def accepted(app: holdfast.Destination) -> list[int]:
    """The highest message number in the Sequence of the only sender."""
    engine = app.running.engine
    shown = describe_protocol(engine.protocol, engine.clock())
    return [int(one["ranges"].rpartition("-")[2]) for one in shown if one["role"] == "destination"]


@every_version
@every_proof
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(role="destination", network=HARD)
async def test_cxf_obeys_the_symmetric_binding_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation, proof: Proof
) -> None:
    shop = Shop(tmp_path / "inbox", processors=[validator(tmp_path, proof, confirm=False)])
    async with running_destination(shop.app) as url, LossyProxy(url, CLEAN, seed=3) as proxy:
        caller = await connected(
            cxf, proxy.url, operation, decoupled=False, **await obedient(tmp_path, proxy.url, versions)
        )
        await caller.call(1, 1)  # CXF does not repeat a request for a token
        proxy.faults = HARD
        await caller.call_on(lambda: accepted(shop.app), 2, COUNT - 1, is_the_end=False)
        await caller.settle()
        proxy.faults = CLEAN
        await caller.call(COUNT, COUNT, is_the_end=True)
        await until(lambda: shop.ends() == ["terminated"], PATIENCE)
        assert proxy.counts.lost > 0
    assert shop.numbers == list(range(1, COUNT + 1))


def client(directory: Path, proof: Proof) -> holdfast.Processor:
    certificate = CXF.files(directory).certificate
    if "certificate" in proof:
        return holdfast.EndorsedSymmetricBinding(*OURS.files(directory), certificate)
    if proof == "conversation":
        return holdfast.SecureConversation("alice", "secret", certificate=certificate)
    return holdfast.SymmetricBinding("alice", "secret", certificate)


@every_version
@every_proof
@cell(role="source", pattern="one-way", network=HARD)
async def test_holdfast_sends_to_the_symmetric_binding_of_cxf_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, proof: Proof
) -> None:
    service = await served(cxf, tmp_path / "log", **demanding(tmp_path, versions, proof))
    processors = [client(tmp_path, proof)]
    async with (
        LossyProxy(service.url, HARD, seed=5) as proxy,
        source_to(proxy.url, tmp_path / "outbox", versions, processors=processors) as source,
    ):
        await exchange(source, "notify", range(1, COUNT + 1))
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        await source.end(timeout=PATIENCE)
        assert proxy.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))


@every_version
@every_proof
@cell(role="source", pattern="request/reply")
async def test_holdfast_calls_the_symmetric_binding_of_cxf(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, proof: Proof
) -> None:
    """On a clean network: CXF does not repeat a reply that was lost in an HTTP response."""
    service = await served(cxf, tmp_path / "log", **demanding(tmp_path, versions, proof))
    processors = [client(tmp_path, proof)]
    async with source_to(service.url, tmp_path / "outbox", versions, processors=processors) as source:
        await exchange(source, "echo", range(1, 4))
        await source.end(timeout=PATIENCE)
    assert service.delivered("echo") == [1, 2, 3]


@some_versions
@every_proof
@pytest.mark.parametrize(
    ("faults", "milliseconds"),
    [(CLEAN, SLOW), (Faults(lose_request=0.2), 0), (Faults(lose_request=0.2), SLOW)],
    ids=["slow", "loss", "slow-loss"],
)
@cell(role="source", pattern="request/reply")
async def test_cxf_answers_every_request_with_a_symmetric_key(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, proof: Proof, faults: Faults, milliseconds: int
) -> None:
    """Only requests are lost: CXF does not repeat a reply that was lost in an HTTP response."""
    theirs = {**demanding(tmp_path, versions, proof), "sleep": milliseconds, "ordered": not milliseconds}
    service = await served(cxf, tmp_path / "log", **theirs)
    processors = [client(tmp_path, proof)]
    async with (
        LossyProxy(service.url, faults, seed=5) as proxy,
        source_to(proxy.url, tmp_path / "outbox", versions, processors=processors) as source,
    ):
        await exchange(source, "echo", range(1, SOME + 1), at_once=milliseconds > 0)
        assert (proxy.counts.lost > 0) == (faults is not CLEAN)
    assert sorted(service.delivered("echo")) == list(range(1, SOME + 1))


@every_version
@every_proof
@cell(role="both", broker="broker", pattern="one-way", network=HARD)
async def test_a_broker_between_two_cxf_has_symmetric_keys_on_each_leg(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, proof: Proof
) -> None:
    own, theirs = OURS.files(tmp_path), str(CXF.files(tmp_path).certificate)
    service = await served(cxf, tmp_path / "log", **demanding(tmp_path, versions, proof))
    has_token = proof == "conversation"
    listener = SymmetricConfig(str(own.certificate), str(own.key), conversation=has_token, confirm=False)
    users: Users | None = None
    if proof == "certificate":
        listener = replace(listener, trusted=(theirs,))
        endorsing = ForwarderSymmetricConfig(theirs, own_certificate=str(own.certificate), own_key=str(own.key))
        security = MessageCredentialsConfig(symmetric=endorsing)
    else:
        (tmp_path / "users").write_text("carol:different\nalice:secret\n")
        users = Users(tmp_path / "users")
        password, symmetric = Secret("secret", "a test"), ForwarderSymmetricConfig(theirs)
        security = MessageCredentialsConfig("alice", password, conversation=has_token, symmetric=symmetric)
    said: Any = {**forwarder_words(versions), "security": security, "offer": False}
    async with (
        LossyProxy(service.url, HARD, seed=7) as behind,
        broker_before(behind.url, tmp_path / "broker", users=users, symmetric=listener, **said) as broker,
        LossyProxy(broker.service.url, CLEAN, seed=8) as before,
    ):
        shop = Shop(tmp_path / "described", processors=[validator(tmp_path, proof, confirm=False)])
        async with running_destination(shop.app) as url:  # the broker's WSDL names no operations
            setup = await obedient(tmp_path, url, versions, at=before.url)
        caller = await connected(cxf, before.url, "notify", decoupled=False, **setup)
        await caller.call(1, 1)  # CXF does not repeat a request for a token
        before.faults = HARD
        await caller.call_on(lambda: accepted(broker.destination), 2, COUNT - 1, is_the_end=False)
        await caller.settle()
        before.faults = CLEAN
        await caller.call(COUNT, COUNT, is_the_end=True)
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        assert before.counts.lost > 0
        assert behind.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))


@pytest.mark.parametrize("proof", ["unsigned certificate"])
@cell(role=("source", "destination"), pattern="request/reply", rm="1.1", addressing="2005/08", soap="1.2")
async def test_cxf_endorses_without_signing_its_certificate(cxf: JavaPeer, tmp_path: Path, proof: Proof) -> None:
    """``EndorsingSupportingTokens``, as client and as service."""
    versions = holdfast.Versions("1.1", "2005/08", "1.2")
    shop = Shop(tmp_path / "inbox", processors=[validator(tmp_path, proof)])
    async with running_destination(shop.app) as url:
        caller = await connected(cxf, url, "echo", decoupled=False, **await obedient(tmp_path, url, versions))
        await caller.call(1, COUNT, is_the_end=True)
    assert shop.numbers == list(range(1, COUNT + 1))
    service = await served(cxf, tmp_path / "log", **demanding(tmp_path, versions, proof))
    async with source_to(service.url, tmp_path / "outbox", versions, processors=[client(tmp_path, proof)]) as source:
        await exchange(source, "echo", range(1, 4))
    assert service.delivered("echo") == [1, 2, 3]
