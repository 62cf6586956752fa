"""Messages signed and encrypted by certificates against CXF with WSS4J, both ways round, through a bad network.

Recorded ones are in tests/security/test_encryption.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interop_cells import cell
from java_contract import (
    BAD,
    COUNT,
    LIVE,
    PATIENCE,
    Operation,
    broker_before,
    connected,
    forwarder_words,
    served,
)
from java_peer import JavaPeer
from java_signers import (
    CXF,
    OURS,
    RM_1_1,
    both_ways,
    call_through_losses,
    encrypted_words,
    every_version,
    ours,
    refuse_cxf,
    send_through_losses,
    signed_words,
)
from waiting import until

import holdfast
from holdfast.broker.signature_config import EncryptionConfig, MessageCredentialsConfig, SignatureConfig
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="CXF", security="certificates and encryption")]
ORDERS: dict[str, dict[str, Any]] = {
    "signed-first": {},
    "encrypted-first": {"before_signing": True},
    "signature-encrypted": {"signature": True},
}
"""What CXF does first -> the settings of Encryption."""


@cell(role=("source", "destination"), setup="each cipher and order", pattern="request/reply", versions=[RM_1_1])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cipher", ["aes256-cbc", "aes128-cbc", "aes256-gcm", "aes128-gcm"])
async def test_cxf_and_holdfast_read_each_others_ciphers_and_orders(
    cxf: JavaPeer, tmp_path: Path, order: str, cipher: Any
) -> None:
    encrypt = holdfast.Encryption(cipher=cipher, **ORDERS[order])
    theirs = encrypted_words(tmp_path, RM_1_1, order=order, cipher=cipher)
    await both_ways(cxf, tmp_path, theirs, ours(tmp_path, encrypt=encrypt))


@cell(role=("source", "destination"), setup="each reference", pattern="request/reply", versions=[RM_1_1])
@pytest.mark.parametrize("recipient", ["token", "subject-key-identifier", "issuer-serial", "thumbprint"])
async def test_cxf_and_holdfast_name_each_others_certificates(cxf: JavaPeer, tmp_path: Path, recipient: Any) -> None:
    processor = ours(tmp_path, reference=recipient, encrypt=holdfast.Encryption())
    theirs = encrypted_words(tmp_path, RM_1_1, reference=recipient, recipient=recipient)
    await both_ways(cxf, tmp_path, theirs, processor)


@cell(role="destination", network=BAD)
@every_version
@pytest.mark.parametrize("operation", ["notify", "echo"])
async def test_cxf_sends_encrypted_messages_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation
) -> None:
    processor = ours(tmp_path, encrypt=holdfast.Encryption())
    await call_through_losses(cxf, tmp_path, operation, encrypted_words(tmp_path, versions), processor)


@cell(role="source", pattern="one-way", network=BAD)
@every_version
async def test_holdfast_sends_encrypted_messages_to_cxf_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    processor = ours(tmp_path, encrypt=holdfast.Encryption())
    await send_through_losses(cxf, tmp_path, versions, encrypted_words(tmp_path, versions), processor)


@cell(role="destination", setup="a client that only signs", pattern="no session", versions=[RM_1_1])
async def test_cxf_that_only_signs_reaches_no_handler(cxf: JavaPeer, tmp_path: Path) -> None:
    await refuse_cxf(cxf, tmp_path, signed_words(tmp_path, RM_1_1), ours(tmp_path, encrypt=holdfast.Encryption()))


@cell(role="both", broker="broker", pattern="one-way", network=BAD)
@every_version
async def test_a_broker_between_two_cxf_encrypts_each_leg(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    own, theirs = OURS.files(tmp_path), CXF.files(tmp_path).certificate
    signature = SignatureConfig(str(own.certificate), str(own.key), (str(theirs),), encryption=EncryptionConfig())
    service = await served(cxf, tmp_path / "log", **encrypted_words(tmp_path, versions))
    security = MessageCredentialsConfig(signature=signature)
    words: Any = {**forwarder_words(versions), "security": security, "offer": False}
    async with (
        LossyProxy(service.url, BAD, seed=7) as behind,
        broker_before(behind.url, tmp_path / "broker", signature=signature, **words) as broker,
        LossyProxy(broker.service.url, BAD, seed=8) as before,
    ):
        caller = await connected(cxf, before.url, "notify", decoupled=False, **encrypted_words(tmp_path, versions))
        await caller.call_through(before)
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        assert before.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))
