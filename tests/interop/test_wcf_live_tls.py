"""What a .NET developer reads when the live WCF client cannot connect over https, and what Holdfast logs of it.

``docs/how-to/wcf.md`` has a table of these errors. ``WCF_CLIENT`` names the program; without it all of this is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from interop_cells import SIX, cell
from waiting import until
from wcf.destination import contract_app, key_of, running_destination
from wcf.https import certificate_in, context_in, lossy_path, tls_before
from wcf.live_client import Line, LiveWCFClient, needs_the_client
from wcf.network import LOSS

import holdfast
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.http.tls import ServerTLS

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.timeout(900),
    needs_the_client,
    cell(peer="WCF", role="destination", security="https", pattern="no session", versions=[SIX[3]]),
]


@contextlib.asynccontextmanager
async def https_service(directory: Path, *, demands_certificate: bool = False) -> AsyncIterator[str]:
    """A service at a port for https, whose certificate the client does not know."""
    certificate = certificate_in(directory)
    client_ca = str(directory / "ca.pem") if demands_certificate else None
    context = ServerTLS(str(certificate), client_ca=client_ca).context()
    service = Service(contract_app(":memory:", lambda message: None), Listeners(port=0, ssl_context=context))
    await service.start()
    try:
        yield service.url
    finally:
        await service.close(0.0)


async def opening(client: LiveWCFClient) -> Line:
    """What the client reports of ``open``."""
    return (await client.run("open; close"))[0]


@cell(pattern="mixed")
async def test_over_https_the_client_has_its_session(tmp_path: Path) -> None:
    async with https_service(tmp_path) as url:
        client = LiveWCFClient(url, binding="ws", trust_any="")
        await client.run("open; notify 1; echo 2; close")
    assert client.failed == []


@pytest.mark.nightly
@cell(pattern="mixed", network=LOSS)
async def test_over_https_with_a_fifth_of_requests_and_of_answers_lost_all_arrive(tmp_path: Path) -> None:
    handled: list[str] = []
    app = contract_app(":memory:", lambda message: handled.append(key_of(message)))
    async with running_destination(app) as inner, lossy_path(inner, 7, tmp_path) as (url, proxy):
        client = LiveWCFClient(url, binding="ws", trust_any="", retries="50")
        await client.run("open; notify 1..15; echo 16..25; close")
        await until(lambda: len(handled) == 25)
    assert client.failed == []
    assert proxy.counts.lost > 5
    assert handled == [f"wcf {number}" for number in range(1, 26)]


@pytest.mark.nightly
@cell(pattern="mixed", service="slow")
async def test_over_https_a_slow_service_is_called_once_and_answers(tmp_path: Path) -> None:
    handled: list[str] = []

    async def slowly(message: holdfast.Message) -> None:
        handled.append(key_of(message))
        await asyncio.sleep(5)

    async with (
        running_destination(contract_app(":memory:", slowly)) as inner,
        tls_before(inner, context_in(tmp_path)) as url,
    ):
        client = LiveWCFClient(url, binding="ws", trust_any="")
        await client.run("open; notify 1; echo 2; notify 3; echo 4; close")
    assert client.failed == []
    assert handled == [f"wcf {number}" for number in range(1, 5)]


@cell(setup="a user name that the service does not demand")
async def test_a_client_with_a_user_name_in_its_messages_reads_that_this_is_not_supported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    async with https_service(tmp_path) as url:
        line = await opening(LiveWCFClient(url, binding="ws", username="anna:secret", trust_any=""))
    assert (line["failed"], line["exception"]) == ("open", "MessageSecurityException")
    assert "does not support WS-Security" in line["cause"]
    assert "Set the client's security mode to Transport" in line["cause"]
    assert "fault.raised" in caplog.text and "MustUnderstand" in caplog.text


@cell(setup="http at a port for https")
async def test_a_client_that_speaks_http_to_a_port_for_https_reads_what_to_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    async with https_service(tmp_path) as url:
        line = await opening(LiveWCFClient(url.replace("https:", "http:")))
    assert (line["failed"], line["exception"]) == ("open", "ProtocolException")
    assert "This port speaks https. Change http to https in the URL." in line["said"]
    assert "request.refused" in caplog.text


@cell(setup="a demanded certificate missing")
async def test_a_client_without_the_demanded_certificate_is_refused_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    async with https_service(tmp_path, demands_certificate=True) as url:
        # For so long it repeats what is refused.
        line = await opening(LiveWCFClient(url, binding="ws", trust_any="", open_timeout="30"))
    assert (line["failed"], line["exception"]) == ("open", "CommunicationException")
    assert "An error occurred while sending the request" in line["said"]
    assert "connection.refused" in caplog.text and "certificate" in caplog.text
