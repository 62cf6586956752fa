"""Operations of a live CXF service, called by name from the WSDL that it serves, and with a zeep client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import zeep
from interop_cells import cell
from java_contract import HURRIED, LIVE, PeerService, served
from java_peer import JavaPeer
from java_stacks import cxf as words

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy
from holdfast.zeep import Transport

VERSIONS = [
    pytest.param(holdfast.Versions("1.1", "2005/08", "1.1"), id="rm1.1-soap1.1"),
    pytest.param(holdfast.Versions("1.0", "2004/08", "1.1"), id="rm1.0-soap1.1", marks=pytest.mark.nightly),
    pytest.param(holdfast.Versions("1.1", "2005/08", "1.2"), id="rm1.1-soap1.2", marks=pytest.mark.nightly),
]
LOSSY = Faults(lose_request=0.2)
"""CXF does not repeat a reply that was lost in an HTTP response."""
pytestmark = [*LIVE, cell(peer="CXF", role="source", network=LOSSY)]


async def service_of(cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions) -> PeerService:
    (tmp_path / "log").write_text("")
    return await served(cxf, tmp_path / "log", **words(versions))


@pytest.mark.parametrize("versions", VERSIONS)
@cell(setup="called by name", pattern="request/reply")
async def test_a_source_calls_cxf_by_name_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    service = await service_of(cxf, tmp_path, versions)
    async with LossyProxy(service.url, LOSSY, seed=5) as proxy:
        made = await holdfast.Source.from_wsdl(
            f"{service.url}?wsdl", tmp_path / "outbox", to=proxy.url, versions=versions, policy=HURRIED
        )
        async with made as source:
            for number in range(1, 9):
                text = f'<{number}> & "quoted"'
                reply = await source.call("echo", key="k", number=number, body=text)
                assert reply == {"key": "k", "number": number, "body": text, "data": None}
    assert service.delivered("echo") == [*range(1, 9)]


@pytest.mark.parametrize("versions", VERSIONS[:1])
@cell(setup="called by zeep", pattern=("one-way", "request/reply"))
async def test_a_zeep_client_calls_cxf_reliably(cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions) -> None:
    service = await service_of(cxf, tmp_path, versions)

    def program() -> list[Any]:
        with Transport(tmp_path / "outbox", versions=versions, policy=HURRIED) as transport:
            client = zeep.Client(f"{service.url}?wsdl", transport=transport)
            for number in range(1, 6):
                with transport.call() as call:
                    assert client.service.notify(key="k", number=number, body=f'<{number}> & "quoted"') is None
            assert isinstance(call.sent, holdfast.sync.Sent)
            call.sent.acknowledged(60)
            return [client.service.echo(key="k", number=1, body='<1> & "quoted"')]

    (reply,) = await asyncio.to_thread(program)
    assert (reply.key, reply.number) == ("k", 1)
