"""A program with a zeep client that is killed with SIGKILL, and started again on a network that loses a fifth."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from order_service import Orders

from holdfast.testing.proxy import Faults, LossyProxy

CHILD = Path(__file__).with_name("zeep_child.py")
COUNT = 60


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, str(CHILD), *arguments, stdout=asyncio.subprocess.PIPE)


@pytest.mark.crash
async def test_no_call_is_lost_or_repeated_when_the_client_is_killed(serve: Any, tmp_path: Path) -> None:
    orders = Orders(store=tmp_path / "inbox")
    url = await serve(orders.app)
    async with LossyProxy(url, Faults(lose_request=0.1, lose_response=0.1), seed=11) as proxy:
        where = (f"{url}?wsdl", str(tmp_path / "outbox"), proxy.url)
        first = await start(*where, str(COUNT))
        assert first.stdout is not None
        for _ in range(20):
            await first.stdout.readline()
        first.kill()
        await first.communicate()
        second = await start(*where, str(COUNT))
        await second.communicate()
        assert second.returncode == 0
        assert proxy.counts.lost > 0
    await orders.app.running.dispatcher.done()  # type: ignore[union-attr]
    assert orders.cancelled == [*range(COUNT)]
