"""CXF with a SymmetricBinding, both ways round: keys for a certificate, user names, conversations.

CXF's client has nothing but the WSDL that the destination generates, and obeys its policy. CXF's service has that
policy, too. Attacks are in tests/security/symmetric.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interop_cells import cell
from java_contract import BAD, CLEAN, COUNT, LIVE, PATIENCE, Operation, Shop, connected, exchange, served, source_to
from java_peer import JavaPeer
from java_signers import CXF, OURS
from java_stacks import cxf as words
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import LossyProxy

RM11 = holdfast.Versions("1.1", "2005/08", "1.2")
pytestmark = [
    *LIVE,
    pytest.mark.nightly,
    cell(peer="CXF", security="symmetric key and user name", versions=[RM11]),
]


def validator(directory: Path, *, password: str = "secret", **options: Any) -> holdfast.SymmetricBindingValidator:
    users = holdfast.UsernameTokenValidator({"alice": password})
    return holdfast.SymmetricBindingValidator(*OURS.files(directory), users=users, **options)


def demanding(directory: Path, *, conversation: bool) -> dict[str, Any]:
    """The settings of a CXF service with the policy that a destination has."""
    policy = directory / "policy.xml"
    space = 'xmlns:wsp="http://www.w3.org/ns/ws-policy"'
    addressing = (
        '<wsam:Addressing xmlns:wsam="http://www.w3.org/2007/05/addressing/metadata"><wsp:Policy/></wsam:Addressing>'
    )
    rmp = 'xmlns:rmp="http://docs.oasis-open.org/ws-rx/wsrmp/200702"'
    delivery = "<wsp:Policy><rmp:ExactlyOnce/><rmp:InOrder/></wsp:Policy>"
    assurance = f"<rmp:DeliveryAssurance>{delivery}</rmp:DeliveryAssurance>"
    reliable = f"<rmp:RMAssertion {rmp}><wsp:Policy>{assurance}</wsp:Policy></rmp:RMAssertion>"
    demanded = validator(directory, conversation=conversation).policy(is_https=False)
    policy.write_text(f"<wsp:Policy {space}>{addressing}{reliable}{demanded}</wsp:Policy>")
    own, trusted = CXF.files(directory), OURS.files(directory).certificate
    files = {"certificate": own.certificate, "private": own.key, "trusted": trusted}
    return words(RM11, security="policy", policy=policy, **files)


def obedient(directory: Path, url: str) -> dict[str, Any]:
    """The settings of a CXF client that obeys the policy in the WSDL of a service."""
    own, trusted = CXF.files(directory), OURS.files(directory).certificate
    files = {"certificate": own.certificate, "private": own.key, "trusted": trusted}
    return words(RM11, security="policy", wsdl=f"{url.rstrip('/')}/?wsdl", **files)


@pytest.mark.parametrize("conversation", [False, True], ids=["user name", "conversation"])
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(role="destination", network=BAD)
async def test_cxf_obeys_the_symmetric_binding_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, operation: Operation, conversation: bool
) -> None:
    shop = Shop(tmp_path / "inbox", processors=[validator(tmp_path, conversation=conversation, confirm=False)])
    async with running_destination(shop.app) as url, LossyProxy(url, CLEAN, seed=3) as proxy:
        caller = await connected(cxf, proxy.url, operation, decoupled=False, **obedient(tmp_path, proxy.url))
        await caller.call(1, 1)  # CXF does not repeat a request for a token
        proxy.faults = BAD
        await caller.call(2, COUNT - 1)
        await caller.settle()
        proxy.faults = CLEAN
        await caller.call(COUNT, COUNT, is_the_end=True)
        await until(lambda: shop.ends() == ["terminated"], PATIENCE)
        assert proxy.counts.lost > 0
    assert shop.numbers == list(range(1, COUNT + 1))


def client(directory: Path, *, conversation: bool) -> holdfast.Processor:
    certificate = CXF.files(directory).certificate
    if conversation:
        return holdfast.SecureConversation("alice", "secret", certificate=certificate)
    return holdfast.SymmetricBinding("alice", "secret", certificate)


@pytest.mark.parametrize("conversation", [False, True], ids=["user name", "conversation"])
@cell(role="source", pattern="one-way", network=BAD)
async def test_holdfast_sends_to_the_symmetric_binding_of_cxf_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, conversation: bool
) -> None:
    service = await served(cxf, tmp_path / "log", **demanding(tmp_path, conversation=conversation))
    processors = [client(tmp_path, conversation=conversation)]
    async with (
        LossyProxy(service.url, BAD, seed=5) as proxy,
        source_to(proxy.url, tmp_path / "outbox", RM11, processors=processors) as source,
    ):
        await exchange(source, "notify", range(1, COUNT + 1))
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        await source.end(timeout=PATIENCE)
        assert proxy.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))


@pytest.mark.parametrize("conversation", [False, True], ids=["user name", "conversation"])
@cell(role="source", pattern="request/reply")
async def test_holdfast_calls_the_symmetric_binding_of_cxf(cxf: JavaPeer, tmp_path: Path, conversation: bool) -> None:
    """On a clean network: CXF does not repeat a reply that was lost in an HTTP response."""
    service = await served(cxf, tmp_path / "log", **demanding(tmp_path, conversation=conversation))
    processors = [client(tmp_path, conversation=conversation)]
    async with source_to(service.url, tmp_path / "outbox", RM11, processors=processors) as source:
        await exchange(source, "echo", range(1, 4))
        await source.end(timeout=PATIENCE)
    assert service.delivered("echo") == [1, 2, 3]
