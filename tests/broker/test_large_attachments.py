"""Attachments larger than memory through a broker: byte for byte, in bounded memory, whatever is lost or killed.

The runs with a gigabyte are nightly. They measure the peak of memory of each process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path

import large_attachments
import pytest
from processes import Process, broker
from waiting import until

import holdfast
from holdfast import Attachment, Destination
from holdfast.broker.config import ForwarderConfig
from holdfast.core.policy import ForwardingPolicy
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy

GIGABYTE = 1 << 30
MOST_MEMORY = 200_000_000
QUICK = large_attachments.QUICK
DATA = os.urandom(3 << 20)


def contents(store: Path) -> list[Path]:
    place = store / "attachments"
    return list(place.iterdir()) if place.exists() else []


async def test_large_attachments_pass_a_broker_on_a_bad_network_and_leave_no_file(run_broker, run_service, tmp_path):
    app = Destination(tmp_path / "inbox")
    got: list[bytes] = []
    app.on(large_attachments.ACTION)(lambda message: got.append(message.attachments[0].read()))
    behind = await run_service(app)
    async with LossyProxy(behind.url, Faults(lose_response=0.4), seed=2) as second:
        forwarder = ForwarderConfig("next", "inbox", second.url, policy=ForwardingPolicy(sending=QUICK))
        middle = await run_broker(forwarders=(forwarder,))
        async with LossyProxy(middle.service.url, Faults(lose_request=0.3, lose_response=0.3), seed=1) as first:
            async with holdfast.Source(first.url, tmp_path / "outbox", policy=QUICK) as source:
                for number in range(4):
                    given = [Attachment(b"%d" % number + DATA, "video/mp4", "film@test")]
                    body = large_attachments.BODIES[number % 2]
                    await source.send(body, action=large_attachments.ACTION, attachments=given)
                await source.flush(120)
                await until(lambda: len(got) == 4)
                await app.handled()
        for store in ("outbox", "broker", "inbox"):  # the broker may still wait for acknowledgements
            await until(lambda store=store: not contents(tmp_path / store))
    assert got == [b"%d" % number + DATA for number in range(4)]


class Chain:
    """A source, a broker and a service in processes of their own, and a file to send."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        self.film = directory / "film"
        block = os.urandom(1 << 20)
        with self.film.open("wb") as file:
            for number in range(size >> 20):
                file.write(number.to_bytes(8, "big") + block[8:])
        with self.film.open("rb") as file:
            self.digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.place = directory / "service"
        self.place.mkdir()
        (port,) = free_ports(1)
        self.service = Process(self.place, "service", port, "serve", "large_attachments:app", "--port", str(port))
        self.broker = broker(directory, self.service.url, timeout="60s")
        self.source: asyncio.subprocess.Process | None = None

    async def start(self, count: int, url: str = "") -> None:
        program = [large_attachments.__file__, url or self.broker.url, str(self.film), str(count)]
        self.source = await asyncio.create_subprocess_exec(
            sys.executable, *program, cwd=self.directory, stdout=asyncio.subprocess.PIPE
        )

    async def done(self) -> int:
        """Wait until the source ends, and return its peak of memory."""
        assert self.source is not None and self.source.stdout is not None
        *_, last = (await self.source.stdout.read()).decode().splitlines() or ["nothing"]
        word, _, peak = last.partition(" ")
        assert word == "done", last
        return int(peak)

    def delivered(self) -> list[str]:
        file = self.place / "delivered"
        return file.read_text().splitlines() if file.exists() else []

    async def stop(self) -> None:
        if self.source is not None and self.source.returncode is None:
            self.source.kill()
            await self.source.wait()
        for one in (self.broker, self.service):
            await one.kill()


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_a_gigabyte_passes_a_broker_in_200_megabytes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    chain = Chain(tmp_path, GIGABYTE)
    try:
        await chain.service.start()
        await chain.broker.start()
        await chain.start(2)
        peaks = [await chain.done()]
        await until(lambda: len(chain.delivered()) == 2, 300)
        peaks += [chain.broker.most_resident, chain.service.most_resident]
    finally:
        await chain.stop()
    assert chain.delivered() == [f"urn:film:{number} {chain.digest}" for number in range(2)]
    assert max(peaks) < MOST_MEMORY, peaks


@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_after_kills_in_the_middle_of_a_gigabyte_every_byte_arrives(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    chain = Chain(tmp_path, GIGABYTE)
    try:
        await chain.service.start()
        await chain.broker.start()
        await chain.start(2)
        for victim, store in ((chain.broker, tmp_path / "broker"), (chain.service, chain.place / "inbox")):
            await until(lambda store=store: any(one.stat().st_size > GIGABYTE // 4 for one in contents(store)), 300)
            await victim.kill()
            await victim.start()
            if victim is chain.broker:
                assert chain.source is not None
                chain.source.kill()
                await chain.source.wait()
                await chain.start(2)
        peaks = [await chain.done()]
        await until(lambda: len(set(chain.delivered())) == 2, 300)
        peaks += [chain.broker.most_resident, chain.service.most_resident]
        await until(lambda: not contents(tmp_path / "broker"), 60)
    finally:
        await chain.stop()
    assert set(chain.delivered()) == {f"urn:film:{number} {chain.digest}" for number in range(2)}
    assert max(peaks) < MOST_MEMORY, peaks
