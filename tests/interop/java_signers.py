"""Certificates of CXF and Holdfast for tests of signed and encrypted messages, and the settings of each side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from java_contract import (
    BAD,
    COUNT,
    PATIENCE,
    Operation,
    Shop,
    body,
    connected,
    correct_reply,
    exchange,
    served,
    source_to,
    values,
)
from java_peer import NAMESPACE, JavaPeer
from java_stacks import cxf as words
from signers import Issued, issue
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.security.names import CIPHERS, RSA_SHA1, RSA_SHA256
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.wire.names import SOAP_NS

CXF, OURS, OTHER = issue("CN=cxf,O=Example"), issue("CN=holdfast,O=Example"), issue("CN=other,O=Example")
RM_1_1 = holdfast.Versions("1.1", "2005/08", "1.1")
every_version = pytest.mark.parametrize(
    "versions",
    [holdfast.Versions("1.0", "2004/08", "1.1"), RM_1_1, holdfast.Versions("1.1", "2005/08", "1.2")],
    ids=["rm10-soap11", "rm11-soap11", "rm11-soap12"],
)
SUITES = {"rsa-sha256": RSA_SHA256, "Basic256Sha256": RSA_SHA1}
REFERENCES = {
    "token": "DirectReference",
    "subject-key-identifier": "SKIKeyIdentifier",
    "issuer-serial": "IssuerSerial",
    "thumbprint": "Thumbprint",
}


def signed_words(
    directory: Path,
    versions: holdfast.Versions,
    *,
    trusted: Issued = OURS,
    suite: str = "rsa-sha256",
    reference: str = "token",
) -> dict[str, Any]:
    """The settings of a CXF bus that signs, and demands signatures."""
    own = CXF.files(directory)
    return words(
        versions,
        security="signature",
        certificate=own.certificate,
        private=own.key,
        trusted=trusted.files(directory).certificate,
        algorithm=SUITES[suite],
        reference=REFERENCES[reference],
        envelope=SOAP_NS[versions.soap],
    )


def ours(directory: Path, trusted: Issued = CXF, **options: Any) -> holdfast.X509:
    return holdfast.X509(*OURS.files(directory), trusted=trusted.files(directory).certificate, **options)


def encrypted_words(
    directory: Path,
    versions: holdfast.Versions,
    *,
    order: str = "signed-first",
    cipher: str = "aes256-cbc",
    recipient: str = "subject-key-identifier",
    **options: Any,
) -> dict[str, Any]:
    """The settings of a CXF bus that signs and encrypts, and demands both."""
    encrypted = {
        "security": "encryption",
        "order": order,
        "cipher": CIPHERS[cipher],
        "recipient": REFERENCES[recipient],
    }
    return {**signed_words(directory, versions, **options), **encrypted}


async def both_ways(cxf: JavaPeer, directory: Path, theirs: dict[str, Any], processor: holdfast.X509) -> None:
    """Three requests of CXF, and three to CXF. It sends nothing again: nothing is lost, and it has to begin."""
    theirs = {**theirs, "interval": 60_000}
    shop = Shop(directory / "inbox", processors=[processor])
    async with running_destination(shop.app) as url:
        caller = await connected(cxf, url, "echo", decoupled=False, **theirs)
        await caller.call(1, 3, is_the_end=True)
    assert shop.numbers == [1, 2, 3]
    service = await served(cxf, directory / "log", **theirs)
    async with source_to(service.url, directory / "outbox", RM_1_1, processors=[processor]) as source:
        for number in range(1, 4):
            reply = await source.request(body("echo", number), action=f"{NAMESPACE}/echo", timeout=PATIENCE)
            assert values(reply) == correct_reply(number)


async def call_through_losses(
    cxf: JavaPeer,
    directory: Path,
    operation: Operation,
    theirs: dict[str, Any],
    processor: holdfast.Processor,
    faults: Faults = BAD,
) -> None:
    """Requests of CXF through a bad network."""
    shop = Shop(directory / "inbox", processors=[processor])
    async with running_destination(shop.app) as url, LossyProxy(url, faults, seed=3) as proxy:
        caller = await connected(cxf, proxy.url, operation, decoupled=False, **theirs)
        await caller.call_through(proxy)
        await until(lambda: shop.ends() == ["terminated"], PATIENCE)
        assert proxy.counts.lost > 0
    assert shop.numbers == list(range(1, COUNT + 1))


async def send_through_losses(
    cxf: JavaPeer,
    directory: Path,
    versions: holdfast.Versions,
    theirs: dict[str, Any],
    processor: holdfast.Processor,
    faults: Faults = BAD,
) -> None:
    """One-way messages to CXF through a bad network."""
    service = await served(cxf, directory / "log", **theirs)
    async with (
        LossyProxy(service.url, faults, seed=5) as proxy,
        source_to(proxy.url, directory / "outbox", versions, processors=[processor]) as source,
    ):
        await exchange(source, "notify", range(1, COUNT + 1))
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        await source.end(timeout=PATIENCE)
        assert proxy.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))


async def refuse_cxf(cxf: JavaPeer, directory: Path, theirs: dict[str, Any], processor: holdfast.Processor) -> None:
    """CXF gets no Sequence, and its message reaches no handler."""
    shop = Shop(directory / "inbox", processors=[processor])
    async with running_destination(shop.app) as url:
        caller = await connected(cxf, url, "echo", decoupled=False, **theirs)
        with pytest.raises(RuntimeError, match=r"Failed to send RM protocol message .*CreateSequence"):
            await caller.call(1, 1)
    assert not shop.numbers
