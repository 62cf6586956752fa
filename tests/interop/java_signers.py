"""Certificates of CXF and Holdfast for tests of signed and encrypted messages, and the settings of each side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
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
from holdfast.core.versions import RM, SOAP, Addressing
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


# --- policies ---------------------------------------------------------------------------------------------------------

_ASSERTIONS = {
    RM.V1_0: '<r:RMAssertion xmlns:r="http://schemas.xmlsoap.org/ws/2005/02/rm/policy"/>',
    RM.V1_1: '<r:RMAssertion xmlns:r="http://docs.oasis-open.org/ws-rx/wsrmp/200702"><wsp:Policy><r:DeliveryAssurance>'
    "<wsp:Policy><r:ExactlyOnce/><r:InOrder/></wsp:Policy></r:DeliveryAssurance></wsp:Policy></r:RMAssertion>",
}
_ALTERNATIVE = re.compile(r"^<wsp:All>.*</wsp:All>$", re.MULTILINE)
_NAMESPACE = re.compile(r'"http[^"]*"')
_ADDRESSING = {
    Addressing.V2004_08: '<w:UsingAddressing xmlns:w="http://schemas.xmlsoap.org/ws/2004/08/addressing/policy"/>',
    Addressing.V2005_08: '<w:Addressing xmlns:w="http://www.w3.org/2007/05/addressing/metadata"><wsp:Policy/></w:Addressing>',
}


def demanding_policy(
    directory: Path, versions: holdfast.Versions, processor: holdfast.Processor, **changed: Any
) -> dict[str, Any]:
    """The settings of a CXF service with the policy that a destination with a processor has."""
    policy = directory / "policy.xml"
    space = 'xmlns:wsp="http://www.w3.org/ns/ws-policy"'
    demanded = processor.policy(is_https=False)
    policy.write_text(
        f"<wsp:Policy {space}>{_ADDRESSING[versions.addressing]}{_ASSERTIONS[versions.rm]}{demanded}</wsp:Policy>"
    )
    return words(versions, policy=policy, **_files(directory), **changed)


def _files(directory: Path) -> dict[str, Any]:
    own, trusted = CXF.files(directory), OURS.files(directory).certificate
    return {"security": "policy", "certificate": own.certificate, "private": own.key, "trusted": trusted}


async def obedient(
    directory: Path, url: str, versions: holdfast.Versions, at: str = "", **changed: Any
) -> dict[str, Any]:
    """The settings of a CXF client that obeys the policy in the WSDL of a service: its alternative for the versions.

    Args:
        directory: For files.
        url: The address of the service that has the WSDL.
        versions: Of the protocols.
        at: The address to call instead.
        changed: Further settings.
    """
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        wsdl = (await client.get(f"{url.rstrip('/')}/?wsdl")).text
    rm = _NAMESPACE.search(_ASSERTIONS[versions.rm])[0]
    addressing = _NAMESPACE.search(_ADDRESSING[versions.addressing])[0]
    (kept,) = [one for one in _ALTERNATIVE.findall(wsdl) if rm in one and addressing in one]
    reduced = _ALTERNATIVE.sub(lambda found: found[0] if found[0] == kept else "", wsdl)
    if versions.soap is SOAP.V1_1:
        reduced = reduced.replace("http://schemas.xmlsoap.org/wsdl/soap12/", "http://schemas.xmlsoap.org/wsdl/soap/")
    file = directory / "described.wsdl"
    file.write_text(reduced.replace(url, at or url))
    return words(versions, wsdl=file.as_uri(), **_files(directory), **changed)
