"""Write the archives of this directory with the code that is checked out: ``python tests/data/written/write.py``.

The archives are the work of the commit that README.md names. Do not write them again when the code changes: they show
that the code of today opens what that commit wrote, and continues.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "endpoint"), str(ROOT / "tests" / "support")]

from conftest import ACTION, Peer  # noqa: E402

from holdfast import Destination, HandlingPolicy, Message, Source, SourceHTTP, Versions  # noqa: E402
from holdfast.broker.broker import Broker  # noqa: E402
from holdfast.broker.config import (  # noqa: E402
    AdminConfig,
    BrokerConfig,
    ForwarderConfig,
    ListenConfig,
    ProxyConfig,
)
from holdfast.endpoint.listener_settings import AdminListener, Listeners  # noqa: E402
from holdfast.endpoint.serve import Service  # noqa: E402

TO = "http://orders.example/rm"
PRICE = "urn:test:price"
HANDLER = """
async def submit(message):
    if b"poison" in message.body_bytes:
        raise ValueError("poison")
"""


async def write_inbox(directory: Path) -> dict[str, str]:
    """Messages 1 to 3 handled or dead, 6 and 7 held, and one answered request whose reply nobody acknowledged."""
    app = Destination(directory, partitions=2, journal=True, handling=HandlingPolicy(attempts=1))

    # A dead letter keeps the traceback, and with it the path of this file: it must not be one of this machine.
    names: dict[str, Any] = {}
    exec(compile(HANDLER, "orders.py", "exec"), names)
    app.on(ACTION)(names["submit"])

    @app.on(PRICE)
    async def price(message: Message) -> str:
        return "<price>first</price>"

    service = Service(app, Listeners(port=0))
    await service.start()
    identifiers = {}
    for rm in ("1.0", "1.1"):
        peer = Peer(service.url, Versions(rm))
        await peer.create()
        for number in (1, 2, 3, 6, 7):
            answer = await peer.message(number, b"<poison/>" if number == 3 else b"<n>%d</n>" % number)
            assert answer.status == 200, answer
        identifiers[rm] = peer.identifier
        caller = Peer(service.url, Versions(rm))
        await caller.create(offer=f"urn:test:offered:{rm}")
        answer = await caller.request(1, b"<ask/>", PRICE, message_id=f"urn:test:request:{rm}")
        assert b"first" in answer.body, answer
        identifiers[f"request {rm}"] = caller.identifier
        await peer.close()
        await caller.close()
    await asyncio.sleep(1)
    await service.close(1)
    return identifiers


async def write_outbox(outbox: Path, shop: Path) -> None:
    """Messages 1 to 3 acknowledged, 4 to 7 not; ``shop`` is the store of their destination."""
    service = Service(Destination(shop, partitions=1), Listeners(port=0))
    await service.start()
    async with Source(TO, outbox, http=SourceHTTP(proxy=service.url.rstrip("/")), versions=Versions("1.1")) as source:
        for number in range(1, 8):
            if number == 4:
                await source.flush(30)
                await service.close(1)
            await source.send(f"<n>{number}</n>", action=ACTION)


async def write_broker(directory: Path, shop: Path) -> None:
    """Messages 1 to 3 forwarded and acknowledged, 4 to 7 in the queue; ``shop`` is the store of the service."""
    service = Service(Destination(shop, partitions=1), Listeners(port=0))
    await service.start()
    broker = Broker(
        BrokerConfig(
            store=str(directory),
            listen=ListenConfig(port=0),
            admin=AdminConfig(port=0),
            partitions=1,
            forwarders=(ForwarderConfig("shop", "inbox", TO, rm="1.1", proxy=ProxyConfig(service.url.rstrip("/"))),),
        )
    )
    await broker.service.start()
    async with Source(broker.service.url, ":memory:", versions=Versions("1.1")) as source:
        for number in range(1, 8):
            if number == 4:
                await source.flush(30)
                for _ in range(200):
                    if service.app.running.accepted >= 3:
                        break
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.5)
                await service.close(1)
            await source.send(f"<n>{number}</n>", action=ACTION)
        await source.flush(30)
    await broker.service.close(1)


async def write_tables(directory: Path) -> None:
    """Orders 0 to 9 landed in two runs, as Parquet and as Delta, and their queue."""
    service = Service(Destination(directory / "queue", partitions=2), Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    async with Source(service.url, ":memory:", versions=Versions("1.1")) as source:
        for first in (0, 5):
            for number in range(first, first + 5):
                await source.send(f"<order><id>{number}</id></order>", action=ACTION)
            await source.flush(30)
            for kind in ("parquet", "delta"):
                out = directory / kind
                told = ["--broker", service.admin_url, "--queue", "inbox", "--available-now", "--schema", "id INT"]
                told += ["--out", str(out), "--checkpoint", f"{out}.checkpoint", "--master", "local[1]"]
                await run("land", *told, "--format", kind)
    await service.close(1)


async def run(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "holdfast", *arguments)
    assert await process.wait() == 0, arguments


def pack(directory: Path, name: str) -> None:
    with tarfile.open(Path(__file__).parent / f"{name}.tar.gz", "w:gz") as archive:
        for one in sorted(directory.iterdir()):
            archive.add(one, one.name)


async def main() -> None:
    facts: dict[str, Any] = {"written_at": time.time()}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        facts |= await write_inbox(directory / "inbox")
        await write_outbox(directory / "outbox", directory / "outbox-shop")
        await write_broker(directory / "broker", directory / "broker-shop")
        (directory / "facts.json").write_text(json.dumps(facts))
        pack(directory, "stores")
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        await write_tables(directory)
        (directory / "facts.json").write_text(json.dumps(facts))
        pack(directory, "tables")


if __name__ == "__main__":
    asyncio.run(main())
