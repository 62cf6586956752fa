"""The examples that need Spark: each a process with a Java of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import holdfast
from demo.check import ACTION
from demo.flights import data_file, departure_xml, departures
from demo.whole_check import check_alerts, check_delays, check_landed
from holdfast.endpoint.serve import Listeners, Service

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
FLIGHT = "<flight><carrier>{}</carrier><flight>{}</flight><delay>{}</delay></flight>"


async def run(*arguments: str, cwd: Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx1g",
    }
    for _ in range(6):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=cwd,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        # Spark gives the Python process of a source ten seconds to start, however busy the machine is.
        if b"Python worker failed to connect back" not in errors:
            break
    assert process.returncode == 0, errors.decode()
    return out.decode()


@pytest.mark.nightly
async def test_late_flights(tmp_path: Path) -> None:
    service = Service(holdfast.Destination(":memory:"), Listeners(port=0, admin_port=0))
    await service.start()
    async with holdfast.Source(service.url, ":memory:") as source:
        for carrier, delay in (("UA", 61), ("UA", 5), ("AA", 200), ("UA", 90)):
            await source.send(FLIGHT.format(carrier, 1, delay), action="urn:flight", sequence_key=carrier)
        await source.flush(60)
    said = await run(str(ROOT / "examples" / "late_flights.py"), service.admin_url, "late", cwd=tmp_path)
    await service.close()
    counts = dict(cells for line in said.splitlines() if len(cells := line.strip("|").split("|")) == 2)
    assert {key.strip(): value.strip() for key, value in counts.items()} == {"carrier": "count", "AA": "1", "UA": "2"}
    assert {path.name for path in tmp_path.iterdir()} >= {"late", "late.checkpoint"}


async def test_departures(tmp_path: Path) -> None:
    count, tables = 1000, data_file().parent
    broker = holdfast.Destination(":memory:", queue="departures", further_queues={"alerts": None})
    service = Service(broker, Listeners(port=0, admin_port=0))
    await service.start()
    async with holdfast.Source(service.url, ":memory:") as source:
        for one in departures(count):
            await source.send(departure_xml(one), action=ACTION, sequence_key=str(one["carrier"]))
        await source.flush(60)
    told = [str(ROOT / "examples" / "departures.py"), service.admin_url, "out", str(tables), "--available-now"]
    await run(*told, cwd=tmp_path)
    out, admin = tmp_path / "out", service.admin_url
    verdicts = [
        await asyncio.to_thread(check_landed, out, tables, count),
        await asyncio.to_thread(check_delays, out, count),
        await asyncio.to_thread(check_alerts, admin, "alerts", count),
    ]
    await service.close()
    assert [(kind, one.examples) for verdict in verdicts for kind, one in verdict.items() if one.count] == []
