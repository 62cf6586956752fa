"""The service and the tests of the guide on tests under loss, run against each other as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guides import blocks, environment, run, served

from holdfast.testing.ports import free_ports

GUIDE = "test-under-loss.md"
ADDRESS = "http://localhost:8080/"
CLIENT = """
import asyncio, sys, holdfast

async def main():
    quick = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=0.2, floor=0.1, cap=1.0))
    async with holdfast.Source(sys.argv[1], ":memory:", policy=quick) as source:
        sent = await source.send("<order/>", action="urn:shop/Order")
        await sent.acknowledged(100)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    place = tmp_path_factory.mktemp("shop")
    (place / "shop.py").write_text(blocks(GUIDE, "python")[0], encoding="utf-8")
    (command,) = blocks(GUIDE, "bash")
    with served(place, command) as (url, _):
        yield url, place


def test_the_test_of_the_guide_loses_messages_and_finds_each_order_once(shop: tuple[str, Path]) -> None:
    url, place = shop
    _, lose, interrupt, _ = blocks(GUIDE, "python")
    assert run(place, "-c", lose.replace(ADDRESS, url)) == "Each order arrived once and in order.\n"
    told = run(place, "-c", interrupt.replace(ADDRESS, url))
    assert told == "The message waits.\nThe message arrived.\n"


def test_the_proxy_of_the_guide_serves_a_client(shop: tuple[str, Path]) -> None:
    url, place = shop
    (port,) = free_ports(1)
    program = blocks(GUIDE, "python")[-1].replace(ADDRESS, url).replace("8090", str(port))
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=place, env=environment(), stdout=subprocess.PIPE, text=True
    ) as proxy:
        try:
            run(place, "-c", CLIENT, f"http://127.0.0.1:{port}/")
            assert proxy.stdout is not None
            assert re.fullmatch(r"(answered|response lost) \d+ bytes\n", proxy.stdout.readline())
        finally:
            proxy.terminate()
