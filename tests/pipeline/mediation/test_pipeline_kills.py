"""The example between a real broker's queues, its driver killed between the sinks: each message one way, once."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from meddler import Meddler
from pipeline_driver import Driver, bodies_in, broker_with

import holdfast

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.crash, pytest.mark.timeout(1500)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "mediation"
SOURCE = str(Path(__file__).parents[3] / "src")
BODY = (
    "<order xmlns='urn:example:orders' id='{}'><customer>{}</customer><amount currency='EUR'>{}</amount>"
    "<line><article>a</article><pieces>1</pieces></line></order>"
)
ORDERS = 40


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    async with broker_with(tmp_path, "first", "others") as at:
        yield at


def amount(number: int) -> str:
    return "-1.00" if number % 10 == 7 else "5000.00" if number % 3 == 0 else "10.00"


async def send(url: str) -> None:
    async with holdfast.Source(url, ":memory:") as source:
        for number in range(ORDERS):
            customer = f"c{1 + number % 3}"
            body = BODY.format(number, customer, amount(number)) if number != 20 else "<order/>"
            await source.send(body, action="urn:example:orders/Submit", sequence_key=customer)
        await source.flush(60)


def queued(admin: str, queue: str) -> list[tuple[int, str]]:
    """The orders that a queue has confirmations of, with their customers."""
    matches = [re.search(r'order="(\d+)"><customer>(\w+)', body) for body in bodies_in(admin, queue)]
    return [(int(match[1]), match[2]) for match in matches if match]


def letters(place: Path) -> list[dict[str, Any]]:
    """The dead letters of all queries, without Spark."""
    tables = [str(one) for one in place.glob("query=*") if deltalake.DeltaTable.is_deltatable(str(one))]
    return [row for one in tables for row in deltalake.DeltaTable(one).to_pyarrow_table().to_pylist()]


async def test_a_driver_killed_between_and_after_its_sinks_sends_each_message_once(
    broker: tuple[str, str], tmp_path: Path
) -> None:
    url, admin = broker
    await send(url)
    shutil.copytree(EXAMPLE, tmp_path / "here")
    file = tmp_path / "here" / "orders.toml"
    told = file.read_text()
    told = told.replace('checkpoint = "', 'interval = "200ms"\ncheckpoint = "', 1)
    file.write_text(told.replace('queue = "orders"', 'queue = "orders"\noptions = { maxRowsPerBatch = 25 }', 1))
    steps = [  # which request of which sink, of which batch, and whether it is done before the driver dies
        ("orders.first", "batches", 0, "after"),
        ("orders.others", "batches", 0, "after"),
    ]
    ahead, lock = list(steps), threading.Lock()
    meddler = Meddler(admin)
    driver = Driver(file, "--set", f"broker={meddler.url}")

    def meddle(request: str) -> str | None:
        found = re.search(r"/sinks/([^/]+)/(?:(parts)\?.*batch=(\d+)|(batches)/(\d+))", request)
        with lock:
            asked = (found[1], found[2] or found[4], int(found[3] or found[5])) if found else None
            step = next((one for one in ahead if one[:3] == asked), None)  # sinks are written side by side
            if step is None:
                return None
            driver.kill()
            ahead.remove(step)
            return step[3]

    meddler.on_sink = meddle
    good = [number for number in range(ORDERS) if amount(number) != "-1.00" and number != 20]
    large = [number for number in good if number % 3 == 0]  # those of c1, who is gold, are among them

    bad = [number for number in range(ORDERS) if number not in good]

    def all_there() -> bool:
        sent = len(queued(admin, "first")), len(queued(admin, "others"))
        return sent >= (len(large), len(good) - len(large)) and len(letters(tmp_path / "here" / "dead")) == len(bad)

    while True:
        life = asyncio.create_task(asyncio.to_thread(driver.run))
        while not life.done():
            if await asyncio.to_thread(all_there):
                driver.end()
                break
            await asyncio.sleep(0.2)
        code, lines, errors = await life
        if code == 0:
            break
        assert code == -signal.SIGKILL or "failed to connect back" in errors, errors
    meddler.stop()
    assert ahead == []
    assert lines[-1]["event"] == "end"
    assert lines[0]["repeated"], lines
    first, others = queued(admin, "first"), queued(admin, "others")
    assert sorted(number for number, _ in first) == large
    assert sorted(number for number, _ in others) == sorted(set(good) - set(large))
    for sent in (first, others):
        for customer in {name for _, name in sent}:
            numbers = [number for number, name in sent if name == customer]
            assert numbers == sorted(numbers), "each customer's are in their order"
    buried = letters(tmp_path / "here" / "dead")
    assert len(buried) == len(bad)
    assert {letter["step"] for letter in buried} == {"read", "checked"}
    assert all(letter["queue"] == "orders" and letter["reasons"] for letter in buried)
