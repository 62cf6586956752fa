"""Holdfast's Source against a live service of Metro's, slower than a retransmission timeout, through a bad network.

The service is built by Maven when a JDK and Maven are there and bring its jars; otherwise all of this is skipped.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import cxf_peer
import pytest

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy, Relayed

pytestmark = [
    pytest.mark.interop,
    pytest.mark.cxf,  # one worker starts the JVMs
    pytest.mark.nightly,
    pytest.mark.timeout(400),  # the first one builds the service
    pytest.mark.skipif(cxf_peer.available() is not None, reason=cxf_peer.available() or ""),
]

PATIENCE = 120
"""Seconds for what takes one on a machine at rest."""
SLOW = 1200
"""Milliseconds that a call takes: more than each retransmission timeout here."""
HURRIED = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.5, floor=0.2, cap=1.0))
versions = pytest.mark.parametrize("rm", ["1.0", "1.1"])


@pytest.fixture(scope="session")
def class_path(pytestconfig: pytest.Config) -> str:
    assert pytestconfig.cache is not None
    project = Path(__file__).with_name("metro") / "java"
    try:
        return cxf_peer.build(pytestconfig.cache.mkdir("metro"), project)
    except cxf_peer.Unavailable as error:
        pytest.skip(str(error))


@asynccontextmanager
async def shop(class_path: str, rm: str, milliseconds: int, errors: Path) -> AsyncIterator[str]:
    """The service, from its start to its end; its URL."""
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path, "shop.Shop", rm, str(milliseconds)]
    with errors.open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        url = await asyncio.to_thread(process.stdout.readline)
        assert url.startswith("http://"), errors.read_text()[-4000:]
        yield url.strip()
    finally:
        process.stdin.close()
        process.wait(30)


async def ask(source: holdfast.Source, number: int) -> str | None:
    body = f"<t:ask xmlns:t='urn:metro'><arg0>{number}</arg0></t:ask>"
    return (await source.request(body, action="urn:metro/ask", timeout=PATIENCE)).body.findtext("return")


@versions
@pytest.mark.parametrize("loss", [0.0, 0.2])
async def test_a_slow_service_answers_every_request_and_the_sequence_ends(
    class_path: str, tmp_path: Path, rm: str, loss: float
) -> None:
    spoken = holdfast.Versions(rm, "2005/08", "1.1")
    async with (
        shop(class_path, rm, SLOW, tmp_path / "errors") as url,
        LossyProxy(url, Faults(lose_request=loss, lose_response=loss), seed=3) as proxy,
        holdfast.Source(proxy.url, ":memory:", versions=spoken, policy=HURRIED) as source,
    ):
        replies = await asyncio.gather(*(ask(source, number) for number in range(6)))
        assert replies == [f"re {number}" for number in range(6)]
        assert (source.progress.resent == 0) == (loss == 0)
        await source.end(timeout=PATIENCE)


async def test_the_sequence_ends_where_the_answer_to_last_message_is_lost(class_path: str, tmp_path: Path) -> None:
    """Metro answers each repeat of LastMessage with a fault: WSRM1146."""
    seen: list[bytes] = []

    def relayed(one: Relayed) -> None:
        seen.append(one.request)
        if b"rm/LastMessage<" in one.request:
            proxy.faults = Faults()

    async with (
        shop(class_path, "1.0", 0, tmp_path / "errors") as url,
        LossyProxy(url, on_relayed=relayed) as proxy,
        holdfast.Source(
            proxy.url, ":memory:", versions=holdfast.Versions("1.0", "2005/08", "1.1"), policy=HURRIED
        ) as source,
    ):
        assert await ask(source, 1) == "re 1"
        proxy.faults = Faults(lose_response=1.0)
        await source.end(timeout=PATIENCE)
    assert proxy.counts.responses_lost == 1
    assert any(b"rm/AckRequested<" in request for request in seen)
