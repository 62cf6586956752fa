"""File descriptors: the store's come first, and peers get what is left, also where a process may have very few.

Covers store/rocksdb/descriptors.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Source
from holdfast.endpoint import descriptors
from holdfast.endpoint.descriptors import LEAST, SPARE_FILES, divide, outgoing
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import HTTPLimits
from holdfast.http.server.descriptors import descriptors_of
from holdfast.store.rocksdb.descriptors import open_tables, soft_limit, store_needs

ACTION = "urn:test:submit"
PROGRAM = """
import asyncio, sys
from holdfast import Destination
from holdfast.http.server.server import event_loop_factory
from holdfast.endpoint.logs import configure_logs
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service

configure_logs("info")
service = Service(Destination(sys.argv[1]), Listeners(port=0, admin=AdminListener(port=0)))
with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
    runner.run(service.run(on_ready=lambda: print(service.url, flush=True)))
"""


@contextlib.asynccontextmanager
async def limited_server(store: Path, files: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A server in a process that may have so many files open, and its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        str(store),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    )
    try:
        assert process.stdout is not None
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def hold_idle(port: int, count: int) -> None:
    """Keep so many connections open that say nothing, and open those anew that the server closes."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    await reader.read()
                finally:
                    writer.close()
            await asyncio.sleep(1)

    await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.slow
async def test_a_thousand_idle_connections_take_neither_the_stores_files_nor_the_service(tmp_path: Path) -> None:
    async with limited_server(tmp_path / "inbox", 400) as (process, url):
        async with Source(url, ":memory:") as source:
            await (await source.send("<first/>", action=ACTION)).acknowledged(60)
            idle = asyncio.ensure_future(hold_idle(int(url.rstrip("/").rpartition(":")[2]), 1000))
            await asyncio.sleep(1)
            body = "<b>" + "x" * (1 << 20) + "</b>"
            for _ in range(40):  # more than a memtable: RocksDB opens another log, and a table file
                await source.send(body, action=ACTION)
            await source.flush(200)
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 400
        idle.cancel()
        process.send_signal(signal.SIGTERM)
        _, log = await process.communicate()
    assert process.returncode == 0
    assert b"listener.file_limit" in log
    assert b"store.failed" not in log


async def test_where_nothing_is_left_for_peers_it_says_so_at_the_start(tmp_path: Path) -> None:
    async with limited_server(tmp_path / "inbox", 130) as (process, _):
        _, log = await process.communicate()
    assert process.returncode == 1
    assert b"this process may open 130 files" in log
    assert b"ulimit -n" in log


@given(
    limit=st.integers(64, 1 << 20),
    connections=st.integers(1, 1 << 17),
    admin=st.none() | st.integers(1, 1 << 17),
    spare=st.integers(0, 500),
)
def test_what_peers_may_take_and_what_is_needed_is_never_more_than_there_is(
    limit: int, connections: int, admin: int | None, spare: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descriptors, "raise_limit", lambda wanted: limit)
        admin_limits = HTTPLimits(max_connections=admin) if admin is not None else None
        try:
            shares = divide(HTTPLimits(max_connections=connections), admin_limits, spare)
        except ConfigurationError:
            assert min(connections, limit - store_needs(limit) - outgoing(limit) - spare - 32) < 3 * LEAST
            return
    taken = descriptors_of(shares.messages.max_connections)
    if admin is not None:
        taken += descriptors_of(shares.admin.max_connections)
        assert 1 <= shares.admin.max_connections <= admin
    assert taken + store_needs(limit) + outgoing(limit) + spare <= limit
    assert LEAST <= shares.messages.max_connections <= connections
    assert open_tables(limit) <= 256


def test_the_soft_limit_is_raised_as_far_as_is_needed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 2000
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        shares = divide(HTTPLimits(max_connections=100), None, SPARE_FILES)
        assert soft_limit() == min(hard, descriptors_of(100) + store_needs(1 << 20) + outgoing(1 << 20) + SPARE_FILES)
        assert shares.messages.max_connections == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
