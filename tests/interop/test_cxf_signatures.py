"""Messages signed by certificates against CXF with WSS4J, both ways round, through a bad network. Recorded ones are in
tests/security/test_signed_message.py."""

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
    OTHER,
    OURS,
    REFERENCES,
    RM_1_1,
    SUITES,
    both_ways,
    call_through_losses,
    every_version,
    ours,
    refuse_cxf,
    send_through_losses,
    signed_words,
)
from java_stacks import cxf as words
from waiting import until

import holdfast
from holdfast.broker.signature_config import MessageCredentialsConfig, SignatureConfig
from holdfast.testing.proxy import LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="CXF", security="certificates")]


@every_version
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(role="destination", network=BAD)
async def test_cxf_sends_signed_messages_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation
) -> None:
    await call_through_losses(cxf, tmp_path, operation, signed_words(tmp_path, versions), ours(tmp_path))


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("reference", REFERENCES)
@cell(role=("source", "destination"), setup="each reference and algorithm", pattern="one-way", versions=[RM_1_1])
async def test_cxf_and_holdfast_read_each_others_references_and_algorithms(
    cxf: JavaPeer, tmp_path: Path, suite: str, reference: str
) -> None:
    chosen: Any = {"suite": suite, "reference": reference}
    await both_ways(cxf, tmp_path, signed_words(tmp_path, RM_1_1, **chosen), ours(tmp_path, **chosen))


@every_version
@cell(role="source", pattern="one-way", network=BAD)
async def test_holdfast_sends_signed_messages_to_cxf_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    await send_through_losses(cxf, tmp_path, versions, signed_words(tmp_path, versions), ours(tmp_path))


@cell(role="destination", setup="a certificate that is not trusted", pattern="no session", versions=[RM_1_1])
async def test_cxf_with_a_certificate_that_is_not_trusted_reaches_no_handler(cxf: JavaPeer, tmp_path: Path) -> None:
    await refuse_cxf(cxf, tmp_path, signed_words(tmp_path, RM_1_1), ours(tmp_path, trusted=OTHER))


@every_version
@cell(role="both", broker="broker", pattern="one-way", network=BAD)
async def test_a_broker_between_two_cxf_signs_each_leg(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    own, theirs = OURS.files(tmp_path), CXF.files(tmp_path).certificate
    signature = SignatureConfig(str(own.certificate), str(own.key), (str(theirs),))
    service = await served(cxf, tmp_path / "log", **signed_words(tmp_path, versions))
    security = MessageCredentialsConfig(signature=signature)
    words_of_forwarder: Any = {**forwarder_words(versions), "security": security, "offer": False}
    async with (
        LossyProxy(service.url, BAD, seed=7) as behind,
        broker_before(behind.url, tmp_path / "broker", signature=signature, **words_of_forwarder) as broker,
        LossyProxy(broker.service.url, BAD, seed=8) as before,
    ):
        caller = await connected(cxf, before.url, "notify", decoupled=False, **signed_words(tmp_path, versions))
        await caller.call_through(before)
        await until(lambda: len(service.delivered("notify")) >= COUNT, PATIENCE)
        stranger = await connected(cxf, broker.service.url, "notify", decoupled=False, **words(versions))
        with pytest.raises(RuntimeError):
            await stranger.call(COUNT + 1, COUNT + 1)
        assert before.counts.lost > 0
    assert service.delivered("notify") == list(range(1, COUNT + 1))
