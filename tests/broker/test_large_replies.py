"""Attachments of replies that are larger than memory: to the store while they arrive, at a source and at a broker.

Memory is measured on real processes. The run with a gigabyte is nightly.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from pathlib import Path

import large_replies
import pytest
from processes import Process, broker
from waiting import until

import holdfast
from holdfast import Destination
from holdfast.broker.config import ForwarderConfig
from holdfast.core.policy import ForwardingPolicy
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy

QUICK = large_replies.QUICK
SIZE = 20 << 20
"""More than a reply in memory may have."""
MOST_MEMORY = 200_000_000
MOST_GROWTH = 40_000_000


def contents(store: Path) -> list[Path]:
    place = store / "attachments"
    return list(place.iterdir()) if place.exists() else []


def service(directory: Path, size: int) -> Destination:
    film = directory / "film"
    large_replies.write_film(film, size)
    app = Destination(directory / "inbox", http=holdfast.DestinationHTTP(allow_addresses=["http://127.0.0.1"]))
    app.on(large_replies.ACTION)(lambda _message: large_replies.reply_with(film))
    return app


@pytest.mark.parametrize("listens", [False, True])
async def test_a_large_reply_goes_to_the_store_while_it_arrives(listens: bool, run_service, tmp_path):
    behind = await run_service(service(tmp_path, SIZE))
    listen = ("127.0.0.1", 0) if listens else None
    http = holdfast.SourceHTTP(listen=listen)
    async with LossyProxy(behind.url, Faults(lose_response=0.3), seed=1) as proxy:
        async with holdfast.Source(proxy.url, tmp_path / "outbox", policy=QUICK, http=http) as source:
            for number in range(2):
                reply = await source.request(large_replies.BODY, action=large_replies.ACTION, timeout=120)
                with reply.attachments[0].open() as file:
                    assert hashlib.file_digest(file, "sha256").hexdigest() == large_replies.digest(tmp_path / "film")
                assert contents(tmp_path / "outbox"), number
                reply.done()
                del reply  # an open reply keeps its attachments
            await until(lambda: not contents(tmp_path / "outbox"))


async def test_a_stored_reply_has_its_attachments_after_a_restart(run_service, tmp_path):
    behind = await run_service(service(tmp_path, SIZE))
    with contextlib.suppress(KeyError):  # the program fails before it confirms the reply
        async with holdfast.Source(behind.url, tmp_path / "outbox", policy=QUICK) as source:
            await source.request(large_replies.BODY, action=large_replies.ACTION, message_id="urn:1", timeout=120)
            raise KeyError
    async with holdfast.Source(None, tmp_path / "outbox", policy=QUICK) as source:
        async with await source.reply("urn:1", timeout=120) as reply:
            assert len(reply.attachments[0].read()) == SIZE


async def test_a_broker_returns_a_large_reply_on_a_bad_network(run_broker, run_service, tmp_path):
    behind = await run_service(service(tmp_path, SIZE))
    async with LossyProxy(behind.url, Faults(lose_response=0.4), seed=2) as second:
        forwarder = ForwarderConfig("next", "inbox", second.url, policy=ForwardingPolicy(sending=QUICK))
        middle = await run_broker(forwarders=(forwarder,))
        async with LossyProxy(middle.service.url, Faults(lose_request=0.3, lose_response=0.3), seed=1) as first:
            async with holdfast.Source(first.url, tmp_path / "outbox", policy=QUICK) as source:
                reply = await source.request(large_replies.BODY, action=large_replies.ACTION, timeout=120)
                with reply.attachments[0].open() as file:
                    assert hashlib.file_digest(file, "sha256").hexdigest() == large_replies.digest(tmp_path / "film")
                reply.done()
                del reply
        for store in ("outbox", "broker"):
            await until(lambda store=store: not contents(tmp_path / store))


async def ask(directory: Path, url: str) -> tuple[str, int, int]:
    """Ask in a process of its own; return the digest of the reply, and the peak of memory before and after."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, large_replies.__file__, url, cwd=directory, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    digest, before, after = output.decode().split()
    return digest, int(before), int(after)


async def test_a_source_process_needs_little_memory_for_a_large_reply(run_service, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    behind = await run_service(service(tmp_path, 96 << 20))
    digest, before, after = await ask(tmp_path, behind.url)
    assert digest == large_replies.digest(tmp_path / "film")
    assert after - before < MOST_GROWTH, (before, after)


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_a_reply_of_a_gigabyte_passes_a_broker_in_200_megabytes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    place = tmp_path / "service"
    place.mkdir()
    large_replies.write_film(place / "film", 1 << 30)
    (port,) = free_ports(1)
    behind = Process(place, "service", port, "serve", "large_replies:app", "--port", str(port))
    middle = broker(tmp_path, behind.url, timeout="60s")
    try:
        await behind.start()
        await middle.start()
        digest, _, after = await ask(tmp_path, middle.url)
        peaks = [after, middle.most_resident, behind.most_resident]
    finally:
        await middle.kill()
        await behind.kill()
    assert digest == large_replies.digest(place / "film")
    assert max(peaks) < MOST_MEMORY, peaks
