"""SAML assertions in signed messages against CXF with WSS4J and OpenSAML, both ways round.

CXF's client has nothing but the WSDL that the destination generates, reduced to one version, and obeys its policy.
CXF's service has that policy, too. Attacks are in tests/security/saml.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from interop_cells import cell
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
from java_signers import (
    CXF,
    OTHER,
    OURS,
    RM_1_1,
    demanding_policy,
    encrypted_words,
    every_version,
    obedient,
    ours,
    refuse_cxf,
    send_through_losses,
    signed_words,
)
from oasis_wire import Wire
from saml import AUDIENCE, ISSUER, key_info, signed, unsigned
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.broker.signature_config import AssertionsConfig, MessageCredentialsConfig, SignatureConfig
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, cell(peer="CXF", security="certificates")]
METHODS = ("bearer", "sender-vouches", "holder-of-key")
both_kinds = pytest.mark.parametrize("saml", ["2.0", "1.1"])
each_method = pytest.mark.parametrize(
    ("saml", "method"), [("2.0", "bearer"), ("1.1", "sender-vouches"), ("2.0", "holder-of-key")]
)
SUITE: Any = "Basic256Sha256"
"""CXF refuses rsa-sha256 under this policy."""
ONCE = {"interval": 60_000}
"""A client that sends nothing again: with WSS4J, a request that CXF repeats while its exchange is open fails there."""


def checks(directory: Path, method: str, *, issuer: Any = CXF, reference: Any = "token") -> holdfast.X509:
    """What a destination demands. CXF issues the assertions itself."""
    theirs = CXF.files(directory).certificate
    options: dict[str, Any] = {"attesters": theirs} if method == "sender-vouches" else {}
    saml = holdfast.SamlTokenValidator(
        {ISSUER: issuer.files(directory).certificate}, audience=AUDIENCE, confirmations=[method], **options
    )
    return holdfast.X509(*OURS.files(directory), trusted=theirs, suite=SUITE, reference=reference).with_saml(saml)


def sends(directory: Path, saml: str, method: str, reference: Any = "token") -> holdfast.X509:
    """What a source sends. We issue the assertions ourselves."""
    key = key_info(OURS) if method == "holder-of-key" else ""
    file = directory / "alice.xml"
    file.write_bytes(signed(unsigned(saml, time.time(), method=method, key=key), OURS))
    certificate = CXF.files(directory).certificate
    x509 = holdfast.X509(*OURS.files(directory), trusted=certificate, suite=SUITE, reference=reference)
    return x509.with_saml(holdfast.SamlToken(file))


def noted_users(shop: Shop) -> list[str]:
    """Return the list of users that the shop fills, in the order of their messages."""
    users, take = list[str](), shop._take

    def look(message: holdfast.Message) -> None:
        users.append(message.user)
        take(message)

    shop._take = look  # type: ignore[method-assign]
    return users


def issued(saml: str, method: str) -> dict[str, Any]:
    return {"saml": saml, "method": method, "issuer": ISSUER, "audience": AUDIENCE}


@cell(role="destination", pattern="request/reply", versions=[RM_1_1])
async def test_cxf_obeys_the_demand_for_a_signed_assertion(cxf_with_saml: JavaPeer, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "inbox", processors=[checks(tmp_path, "holder-of-key")])
    users = noted_users(shop)
    async with running_destination(shop.app) as url:
        theirs = await obedient(tmp_path, url, RM_1_1, **issued("2.0", "holder-of-key"), **ONCE)
        caller = await connected(cxf_with_saml, url, "echo", decoupled=False, **theirs)
        await caller.call(1, 2, is_the_end=True)
    assert users == ["alice", "alice"]


@cell(role="source", pattern="request/reply", versions=[RM_1_1])
async def test_holdfast_signs_assertions_for_a_service_of_cxf(cxf_with_saml: JavaPeer, tmp_path: Path) -> None:
    theirs = demanding_policy(tmp_path, RM_1_1, checks(tmp_path, "bearer"), **issued("2.0", "bearer"))
    service = await served(cxf_with_saml, tmp_path / "log", **theirs)
    processors = [sends(tmp_path, "2.0", "bearer")]
    async with source_to(service.url, tmp_path / "outbox", RM_1_1, processors=processors) as source:
        await exchange(source, "echo", range(1, 4))
    assert service.delivered("echo") == [1, 2, 3]


@pytest.mark.nightly
@both_kinds
@pytest.mark.parametrize("method", METHODS[1:])
@cell(role="destination", setup="WSS4J's SAMLTokenSigned", pattern="request/reply", versions=[RM_1_1])
async def test_cxf_names_its_key_by_an_assertion_or_vouches_for_it(
    cxf_with_saml: JavaPeer, tmp_path: Path, saml: str, method: str
) -> None:
    """A WSS4J without a policy, whose signature names the key of a holder by the assertion."""
    theirs = {**signed_words(tmp_path, RM_1_1), **issued(saml, method), **ONCE}
    shop = Shop(tmp_path / "inbox", processors=[checks(tmp_path, method)])
    async with running_destination(shop.app) as url:
        caller = await connected(cxf_with_saml, url, "echo", decoupled=False, **theirs)
        await caller.call(1, 2, is_the_end=True)
    assert shop.numbers == [1, 2]


@pytest.mark.nightly
@both_kinds
@pytest.mark.parametrize("method", METHODS[1:])
@cell(role="source", setup="WSS4J's SAMLTokenSigned", pattern="request/reply", versions=[RM_1_1])
async def test_wss4j_without_a_policy_accepts_our_signed_assertions(
    cxf_with_saml: JavaPeer, tmp_path: Path, saml: str, method: str
) -> None:
    theirs = {**signed_words(tmp_path, RM_1_1, suite=SUITE), **issued(saml, method)}
    service = await served(cxf_with_saml, tmp_path / "log", **theirs)
    processors = [sends(tmp_path, saml, method, "assertion" if method == "holder-of-key" else "token")]
    async with source_to(service.url, tmp_path / "outbox", RM_1_1, processors=processors) as source:
        await exchange(source, "echo", range(1, 4))
    assert service.delivered("echo") == [1, 2, 3]


@pytest.mark.nightly
@both_kinds
@cell(role="destination", setup="an assertion as the InitiatorToken", pattern="request/reply", versions=[RM_1_1])
async def test_cxf_signs_with_the_key_of_the_assertion_that_the_destination_demands(
    cxf_with_saml: JavaPeer, tmp_path: Path, saml: str
) -> None:
    shop = Shop(tmp_path / "inbox", processors=[checks(tmp_path, "holder-of-key", reference="assertion")])
    users = noted_users(shop)
    async with running_destination(shop.app) as url:
        theirs = await obedient(tmp_path, url, RM_1_1, **issued(saml, "holder-of-key"), **ONCE)
        caller = await connected(cxf_with_saml, url, "echo", decoupled=False, **theirs)
        await caller.call(1, 2, is_the_end=True)
    assert users == ["alice", "alice"]


@pytest.mark.nightly
@both_kinds
@cell(role="source", setup="an assertion as the InitiatorToken", pattern="request/reply", versions=[RM_1_1])
async def test_a_cxf_service_accepts_an_assertion_as_the_initiator_token(
    cxf_with_saml: JavaPeer, tmp_path: Path, saml: str
) -> None:
    demanded = checks(tmp_path, "holder-of-key", reference="assertion")
    theirs = demanding_policy(tmp_path, RM_1_1, demanded, **issued(saml, "holder-of-key"))
    service = await served(cxf_with_saml, tmp_path / "log", **theirs)
    processors = [sends(tmp_path, saml, "holder-of-key", "assertion")]
    async with source_to(service.url, tmp_path / "outbox", RM_1_1, processors=processors) as source:
        await exchange(source, "echo", range(1, 4))
    assert service.delivered("echo") == [1, 2, 3]


@pytest.mark.nightly
@every_version
@each_method
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(role="destination", network=HARD)
async def test_cxf_sends_signed_assertions_through_a_bad_network(
    cxf_with_saml: JavaPeer,
    tmp_path: Path,
    versions: holdfast.Versions,
    saml: str,
    method: str,
    operation: Operation,
) -> None:
    shop = Shop(tmp_path / "inbox", processors=[checks(tmp_path, method)])
    async with running_destination(shop.app) as url, LossyProxy(url, CLEAN, seed=3) as proxy:
        theirs = await obedient(tmp_path, proxy.url, versions, **issued(saml, method))
        proxy.faults = HARD
        theirs |= {"interval": 300 if operation == "notify" else 3000}
        caller = await connected(cxf_with_saml, proxy.url, operation, decoupled=False, **theirs)
        await caller.call_through(proxy)
        # This CXF may leave its Sequence open if it sent another message again just before the last one.
        await until(lambda: len(shop.numbers) >= COUNT, PATIENCE)
        assert proxy.counts.lost > 0
    assert shop.numbers == list(range(1, COUNT + 1))


@pytest.mark.nightly
@every_version
@each_method
@cell(role="source", pattern="one-way", network=HARD)
async def test_holdfast_sends_signed_assertions_to_cxf_through_a_bad_network(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions, saml: str, method: str
) -> None:
    theirs = demanding_policy(tmp_path, versions, checks(tmp_path, method), **issued(saml, method))
    await send_through_losses(cxf_with_saml, tmp_path, versions, theirs, sends(tmp_path, saml, method), HARD)


@pytest.mark.nightly
@both_kinds
@cell(role="both", broker="broker", pattern="one-way", versions=[RM_1_1], network=HARD)
async def test_a_broker_between_two_cxf_signs_an_assertion_on_each_leg(
    cxf_with_saml: JavaPeer, tmp_path: Path, saml: str
) -> None:
    """CXF holds the key of its assertion; the broker bears another one."""
    service = await served(
        cxf_with_saml,
        tmp_path / "log",
        **demanding_policy(tmp_path, RM_1_1, checks(tmp_path, "bearer"), **issued(saml, "bearer")),
    )
    sends(tmp_path, saml, "bearer")  # which writes the assertion
    own, certificate = OURS.files(tmp_path), str(CXF.files(tmp_path).certificate)
    signature = SignatureConfig(str(own.certificate), str(own.key), (certificate,), suite=SUITE)
    security = MessageCredentialsConfig(signature=signature, assertion=str(tmp_path / "alice.xml"))
    told: Any = {**forwarder_words(RM_1_1), "security": security, "offer": False}
    checked = AssertionsConfig({ISSUER: certificate}, (AUDIENCE,))
    async with (
        LossyProxy(service.url, HARD, seed=7) as behind,
        broker_before(behind.url, tmp_path / "broker", signature=signature, assertions=checked, **told) as broker,
        LossyProxy(broker.service.url, HARD, seed=8) as before,
    ):
        theirs = {**signed_words(tmp_path, RM_1_1), **issued(saml, "holder-of-key")}
        caller = await connected(cxf_with_saml, before.url, "notify", decoupled=False, **theirs)
        await caller.call_through(before)
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        assert before.counts.lost > 0
        assert behind.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))


@pytest.mark.nightly
@every_version
@cell(role="destination", security="certificates and encryption", setup="an encrypted assertion")
@cell(pattern="request/reply")
async def test_an_encrypted_assertion_of_cxf_is_decrypted(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    """As ``SignedEncryptedSupportingTokens`` demands: WSS4J replaces the assertion by an EncryptedData."""
    theirs = CXF.files(tmp_path).certificate
    saml = holdfast.SamlTokenValidator(
        {ISSUER: theirs}, audience=AUDIENCE, confirmations=["sender-vouches"], attesters=theirs
    )
    processor = ours(tmp_path, suite=SUITE, encrypt=holdfast.Encryption()).with_saml(saml)
    shop = Shop(tmp_path / "inbox", processors=[processor])
    users = noted_users(shop)
    setup = {**encrypted_words(tmp_path, versions, suite=SUITE), **issued("2.0", "sender-vouches"), **ONCE}
    async with running_destination(shop.app) as url, Wire(url) as wire:
        caller = await connected(cxf_with_saml, wire.url, "echo", decoupled=False, **setup)
        await caller.call(1, 1)
        assert all(b"Assertion" not in block for one in wire.asked for block in one.headers)
    assert users == ["alice"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "what", ["an issuer's name without its key", "another audience", "another method", "no assertion"]
)
@cell(role="destination", setup="an assertion that does not count", pattern="no session", versions=[RM_1_1])
async def test_a_signed_message_of_cxf_whose_assertion_does_not_count_reaches_no_handler(
    cxf_with_saml: JavaPeer, tmp_path: Path, what: str
) -> None:
    processor = checks(tmp_path, "holder-of-key", issuer=OTHER if "key" in what else CXF)
    theirs = {
        **signed_words(tmp_path, RM_1_1),
        **issued("2.0", "sender-vouches" if "method" in what else "holder-of-key"),
    }
    if what == "another audience":
        theirs |= {"audience": "urn:else"}
    if what == "no assertion":
        theirs |= {"saml": "no"}
    await refuse_cxf(cxf_with_saml, tmp_path, theirs, processor)
