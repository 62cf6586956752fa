"""SAML assertions against CXF with WSS4J and OpenSAML, both ways round, through a bad network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from interop_cells import SIX, cell
from java_contract import (
    COUNT,
    HARD,
    LIVE,
    LOSS,
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
from java_signers import CXF, OTHER, OURS, call_through_losses, refuse_cxf, send_through_losses
from java_signers import every_version as some_versions
from java_stacks import cxf as words
from saml import AUDIENCE, ISSUER, signed, unsigned
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.broker.signature_config import AssertionsConfig, MessageCredentialsConfig
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, cell(peer="CXF")]
RM11 = holdfast.Versions("1.1", "2005/08", "1.1")
every_version = pytest.mark.parametrize(
    "versions",
    [pytest.param(holdfast.Versions(*one), marks=[] if one == SIX[-1] else pytest.mark.nightly) for one in SIX],
    ids=map(" ".join, SIX),
)
both_kinds = pytest.mark.parametrize("saml", ["2.0", pytest.param("1.1", marks=pytest.mark.nightly)])
SLOW, SOME = 1500, 5
"""Milliseconds that a slow service takes, and the number of its requests."""


def saml_words(directory: Path, versions: holdfast.Versions, saml: str, **changed: Any) -> dict[str, Any]:
    """The settings of a CXF bus that issues assertions for alice, or demands those of our issuer."""
    own = CXF.files(directory)
    issued = {"saml": saml, "issuer": ISSUER, "audience": AUDIENCE}
    keys = {"certificate": own.certificate, "private": own.key, "trusted": OURS.files(directory).certificate}
    return words(versions, security="saml", **{**issued, **keys, **changed})


def validator(directory: Path, **options: Any) -> holdfast.SamlTokenValidator:
    return holdfast.SamlTokenValidator({ISSUER: CXF.files(directory).certificate}, audience=AUDIENCE, **options)


def assertion(directory: Path, saml: str, name: str = "alice", **changed: Any) -> holdfast.SamlToken:
    file = directory / f"{name}.xml"
    file.write_bytes(signed(unsigned(saml, time.time(), **changed), OURS))
    return holdfast.SamlToken(file)


@every_version
@both_kinds
@pytest.mark.parametrize("operation", [pytest.param("notify", marks=pytest.mark.nightly), "echo"])
@cell(role="destination", network=HARD)
async def test_cxf_sends_assertions_through_a_bad_network(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions, saml: str, operation: Operation
) -> None:
    # With WSS4J, a request that CXF repeats while its exchange is open fails there.
    theirs = saml_words(tmp_path, versions, saml, interval=300 if operation == "notify" else 3000)
    await call_through_losses(cxf_with_saml, tmp_path, operation, theirs, validator(tmp_path), HARD)


@both_kinds
@cell(role="destination", pattern="request/reply", versions=[RM11])
async def test_the_subject_of_an_assertion_is_the_user_of_the_message(
    cxf_with_saml: JavaPeer, tmp_path: Path, saml: str
) -> None:
    users: list[str] = []
    shop = Shop(tmp_path / "inbox", processors=[validator(tmp_path)])
    take = shop._take

    def look(message: holdfast.Message) -> None:
        users.append(message.user)
        take(message)

    shop._take = look  # type: ignore[method-assign]
    async with running_destination(shop.app) as url:
        caller = await connected(cxf_with_saml, url, "echo", decoupled=False, **saml_words(tmp_path, RM11, saml))
        await caller.call(1, 2, is_the_end=True)
    assert users == ["alice", "alice"]


@pytest.mark.parametrize("what", ["another issuer", "another audience", "an issuer's name without its key"])
@cell(role="destination", security="SAML 2.0", setup="an assertion that does not count", pattern="no session")
@cell(versions=[RM11])
async def test_an_assertion_of_cxf_that_does_not_count_reaches_no_handler(
    cxf_with_saml: JavaPeer, tmp_path: Path, what: str
) -> None:
    changed = {
        "another issuer": {"issuer": "urn:else"},
        "another audience": {"audience": "urn:else"},
        "an issuer's name without its key": {
            "certificate": OTHER.files(tmp_path).certificate,
            "private": OTHER.files(tmp_path).key,
        },
    }[what]
    theirs = saml_words(tmp_path, RM11, "2.0", **changed)
    await refuse_cxf(cxf_with_saml, tmp_path, theirs, validator(tmp_path))


@every_version
@both_kinds
@cell(role="source", pattern="one-way", network=HARD)
async def test_holdfast_sends_assertions_to_cxf_through_a_bad_network(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions, saml: str
) -> None:
    theirs = saml_words(tmp_path, versions, saml)
    await send_through_losses(cxf_with_saml, tmp_path, versions, theirs, assertion(tmp_path, saml), HARD)


@both_kinds
@cell(role="source", pattern="request/reply", versions=[RM11])
async def test_holdfast_asks_cxf_with_an_assertion(cxf_with_saml: JavaPeer, tmp_path: Path, saml: str) -> None:
    service = await served(cxf_with_saml, tmp_path / "log", **saml_words(tmp_path, RM11, saml))
    async with source_to(service.url, tmp_path / "outbox", RM11, processors=[assertion(tmp_path, saml)]) as source:
        await exchange(source, "echo", range(1, 4))
    assert service.delivered("echo") == [1, 2, 3]


@pytest.mark.nightly
@every_version
@both_kinds
@cell(role="both", broker="broker", pattern="one-way", network=HARD)
async def test_a_broker_between_two_cxf_has_assertions_on_each_leg(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions, saml: str
) -> None:
    service = await served(cxf_with_saml, tmp_path / "log", **saml_words(tmp_path, versions, saml))
    assertion(tmp_path, saml)
    security = MessageCredentialsConfig(assertion=str(tmp_path / "alice.xml"))
    said: Any = {**forwarder_words(versions), "security": security, "offer": False}
    checked = AssertionsConfig({ISSUER: str(CXF.files(tmp_path).certificate)}, (AUDIENCE,))
    async with (
        LossyProxy(service.url, HARD, seed=7) as behind,
        broker_before(behind.url, tmp_path / "broker", assertions=checked, **said) as broker,
        LossyProxy(broker.service.url, HARD, seed=8) as before,
    ):
        setup = saml_words(tmp_path, versions, saml)
        caller = await connected(cxf_with_saml, before.url, "notify", decoupled=False, **setup)
        await caller.call_through(before)
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        assert before.counts.lost > 0
        assert behind.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))


@pytest.mark.nightly
@some_versions
@both_kinds
@cell(role="source", pattern="request/reply", service="slow")
async def test_a_slow_cxf_service_answers_every_request_with_an_assertion(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions, saml: str
) -> None:
    theirs = saml_words(tmp_path, versions, saml, sleep=SLOW, ordered=False)
    service = await served(cxf_with_saml, tmp_path / "log", **theirs)
    processors = [assertion(tmp_path, saml)]
    async with source_to(service.url, tmp_path / "outbox", versions, processors=processors) as source:
        await exchange(source, "echo", range(1, SOME + 1), at_once=True)
    assert sorted(service.delivered("echo")) == list(range(1, SOME + 1))


@pytest.mark.nightly
@some_versions
@both_kinds
@pytest.mark.parametrize("milliseconds", [0, SLOW])
@cell(role="source", setup="listener", pattern="request/reply", network=LOSS)
async def test_a_source_with_assertions_and_a_listener_gets_every_reply(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions, saml: str, milliseconds: int
) -> None:
    theirs = saml_words(tmp_path, versions, saml, sleep=milliseconds, ordered=not milliseconds)
    service = await served(cxf_with_saml, tmp_path / "log", **theirs)
    async with (
        LossyProxy(service.url, LOSS, seed=5) as proxy,
        LossyProxy("http://127.0.0.1:9/", LOSS, seed=8) as back,
        source_to(proxy.url, tmp_path / "outbox", versions, back, processors=[assertion(tmp_path, saml)]) as source,
    ):
        await exchange(source, "echo", range(1, SOME + 1), at_once=bool(milliseconds))
        assert proxy.counts.lost > 0
    assert sorted(service.delivered("echo")) == list(range(1, SOME + 1))


@pytest.mark.nightly
@some_versions
@both_kinds
@cell(role="destination", setup="listener", pattern="request/reply", service="slow")
async def test_a_slow_handler_answers_a_cxf_client_with_assertions_and_a_listener(
    cxf_with_saml: JavaPeer, tmp_path: Path, versions: holdfast.Versions, saml: str
) -> None:
    shop = Shop(tmp_path / "inbox", SLOW / 1000, processors=[validator(tmp_path)])
    async with running_destination(shop.app) as url:
        caller = await connected(cxf_with_saml, url, "echo", decoupled=True, **saml_words(tmp_path, versions, saml))
        await caller.call(1, SOME, is_the_end=True)
        await caller.settle()
    assert shop.numbers == list(range(1, SOME + 1))
