"""CXF's client against a destination with a SymmetricBinding: keys for its certificate, user names, conversations.

The client has nothing but the WSDL that the destination generates, and obeys its policy. Attacks are in
tests/security/symmetric.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interop_cells import cell
from java_contract import BAD, CLEAN, COUNT, LIVE, PATIENCE, Operation, Shop, connected
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
    cell(peer="CXF", role="destination", security="symmetric key and user name", versions=[RM11]),
]


def validator(directory: Path, *, password: str = "secret", **options: Any) -> holdfast.SymmetricBindingValidator:
    users = holdfast.UsernameTokenValidator({"alice": password})
    return holdfast.SymmetricBindingValidator(*OURS.files(directory), users=users, **options)


def obedient(directory: Path, url: str) -> dict[str, Any]:
    """The settings of a CXF client that obeys the policy in the WSDL of a service."""
    own, trusted = CXF.files(directory), OURS.files(directory).certificate
    files = {"certificate": own.certificate, "private": own.key, "trusted": trusted}
    return words(RM11, security="policy", wsdl=f"{url.rstrip('/')}/?wsdl", **files)


@pytest.mark.parametrize("conversation", [False, True], ids=["user name", "conversation"])
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(network=BAD)
async def test_cxf_obeys_the_symmetric_binding_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, operation: Operation, conversation: bool
) -> None:
    shop = Shop(tmp_path / "inbox", processors=[validator(tmp_path, conversation=conversation)])
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
