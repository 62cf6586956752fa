"""The examples that need Spark: each a process with a Java of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from quick_spark import quick_spark

import holdfast
from demo.check import ACTION
from demo.flights import data_file, departure_xml, departures
from demo.whole_check import check_alerts, check_delays, check_landed
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TOO_BUSY = "Python worker failed to connect back"
"""Spark gives the Python process of a source ten seconds to start, however busy the machine is."""
FLIGHT = "<flight><carrier>{}</carrier><flight>{}</flight><delay>{}</delay></flight>"


async def run(*arguments: str, cwd: Path) -> str:
    environment = os.environ | quick_spark() | {"PYTHONPATH": str(ROOT / "src")}
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
        if TOO_BUSY.encode() not in errors:
            break
    assert process.returncode == 0, errors.decode()
    return out.decode()


def readme_block(heading: str) -> str:
    """The first Python block below a heading of the README."""
    below = (ROOT / "README.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    return below.split("```python\n")[1].split("```")[0]


async def test_the_readme_runs_in_an_environment_that_is_not_on_the_path(
    tmp_path: Path,
) -> None:
    """Spark looks for data sources with the first python3 on PATH, where nothing of ours is."""
    broker = holdfast.Destination(":memory:", queues={"inbox": None, "alerts": None})
    service = Service(broker, Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    async with holdfast.Source(service.url, ":memory:") as source:
        for amount in ("12.50", "1200.00", "999.99", "4000"):
            await source.send(f"<order><amount>{amount}</amount></order>", action="urn:order")
        await source.flush(60)
    (tmp_path / "job.py").write_text(readme_block("In Spark").replace("http://127.0.0.1:8081", service.admin_url))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text('#!/bin/sh\nexec env -i /usr/bin/python3 -S "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.defpath}",
        "PYTHONPATH": str(ROOT / "src"),
        "JAVA_TOOL_OPTIONS": quick_spark()["JAVA_TOOL_OPTIONS"],  # but its own SPARK_HOME
    }
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV"):
        environment.pop(name, None)
    told = tmp_path / "errors"

    async def started() -> asyncio.subprocess.Process:
        with told.open("wb") as errors:
            return await asyncio.create_subprocess_exec(
                sys.executable, "job.py", cwd=tmp_path, env=environment, stderr=errors
            )

    def alerts() -> int:
        return sum(one.durable_end for one in broker.running.queues["alerts"].partitions)

    process = await started()
    ended = asyncio.ensure_future(process.wait())
    while alerts() < 2:
        await asyncio.wait([ended], timeout=0.2)
        if ended.done():
            assert TOO_BUSY in told.read_text(), told.read_text()[-3000:]
            process = await started()
            ended = asyncio.ensure_future(process.wait())
    process.terminate()
    await ended
    assert alerts() == 2
    await service.close()


@pytest.mark.nightly
async def test_late_flights(tmp_path: Path) -> None:
    service = Service(holdfast.Destination(":memory:"), Listeners(port=0, admin=AdminListener(port=0)))
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


@pytest.mark.nightly
async def test_departures(tmp_path: Path) -> None:
    """By default, the README's program starts Spark, and the demo lands departures."""
    count, tables = 1000, data_file().parent
    broker = holdfast.Destination(":memory:", queues={"departures": None, "alerts": None})
    service = Service(broker, Listeners(port=0, admin=AdminListener(port=0)))
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
