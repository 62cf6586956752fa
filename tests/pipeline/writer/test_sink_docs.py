"""The how-to about sending rows, run as it stands: its broker, its programs, and a service that messages come to."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crew import Crew
from waiting import until

import holdfast
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "send-with-spark.md").read_text(encoding="utf-8")
FLIGHTS = [("UA", 1, 61), ("AA", 2, -5), ("UA", 3, 10), ("AA", 4, 200), ("UA", 5, 90), ("AA", 6, 75)]
FLIGHT = "<flight><carrier>{}</carrier><flight>{}</flight><delay>{}</delay></flight>"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def received() -> Iterator[tuple[str, dict[str, list[str]]]]:
    """The address of a service, and what comes to it, by Action, in its order."""
    came: dict[str, list[str]] = defaultdict(list)
    app = holdfast.Destination(":memory:")

    @app.on()
    async def take(message: holdfast.Message) -> None:
        came[message.action].append(message.body_bytes.decode())

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    service = Service(app, Listeners(port=0))
    asyncio.run_coroutine_threadsafe(service.start(), loop).result(60)
    yield service.url, came
    asyncio.run_coroutine_threadsafe(service.close(1.0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_programs_of_the_page_send_what_it_says_each_once(
    spark: SparkSession, received: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patiently: Any
) -> None:
    service, came = received
    (toml,) = blocks("toml")
    told = toml.replace("http://localhost:9000/", service) + "\n[listen]\nport = 0\n\n[admin]\nport = 0\n"
    (tmp_path / "broker").mkdir()
    crew = Crew(tmp_path / "broker", broker=told)
    try:
        url, admin = crew.url(), crew.url()
        with holdfast.sync.Source(url, store=":memory:") as source:
            for flight in FLIGHTS:
                source.send(FLIGHT.format(*flight), action="urn:flight", sequence_key=flight[0])
            source.flush(60)
        monkeypatch.chdir(tmp_path)
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for program in blocks("python"):
            text = program.replace("http://127.0.0.1:8081", admin).replace("/tmp/refused", f"{tmp_path}/refused")
            for _ in range(2):  # once more: nothing is sent twice
                patiently(partial(exec, text, {"__name__": "__main__"}))
        asyncio.run(until(lambda: sum(map(len, came.values())) >= 11))
    finally:
        assert crew.end() == 0
        crew.clean()
    alerts = [re.sub(r"\s", "", body) for body in came["urn:flights:late"]]
    for carrier, numbers in (("UA", ["1", "5"]), ("AA", ["4", "6"])):
        assert [re.findall(r"<flight>(\d+)<", one)[0] for one in alerts if carrier in one] == numbers
    assert {action: len(bodies) for action, bodies in came.items()} == {
        "urn:flights:late": 4,
        "urn:flights:alerts": 4,
        "urn:flights:early": 1,
        "urn:orders:new": 2,
    }
    assert [row.id for row in spark.read.parquet(str(tmp_path / "refused-orders")).collect()] == [2]
