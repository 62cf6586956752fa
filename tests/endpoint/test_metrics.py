"""Metrics as Prometheus reads them: they are there, and they count what happened."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Destination, HandlingPolicy, Source

ACTION = "urn:test:submit"


async def scrape(url: str) -> dict[str, float]:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


async def test_they_count_what_happened(serve: Any) -> None:
    app = Destination(":memory:", partitions=2, handling=HandlingPolicy(attempts=1))

    @app.on(ACTION)
    async def submit(message: Any) -> None:
        if message.body.text == "2":
            raise RuntimeError("no")

    service = await serve(app)
    before = await scrape(service.admin_url)
    assert before["holdfast_messages_accepted_total"] == 0
    async with Source(service.url, ":memory:") as source:
        for number in range(4):
            await (await source.send(f"<n>{number}</n>", action=ACTION)).acknowledged(60)
        during = await scrape(service.admin_url)
        await source.end(timeout=60)
    await asyncio.wait_for(app.handled(), 60)  # an acknowledgement says stored, not handled
    after = await scrape(service.admin_url)
    assert during["holdfast_sequences{role=destination,state=created}"] == 1
    assert after["holdfast_sequences{role=destination,state=terminated}"] == 1
    assert after["holdfast_messages_accepted_total"] == 4
    assert after["holdfast_messages_handled_total"] == 3
    assert after["holdfast_handler_failures_total"] == after["holdfast_dead_letters_total"] == 1
    assert after["holdfast_dead_letters_kept"] == 1
    assert after["holdfast_incidents_total{name=sequence created}"] == 1
    assert 0 <= after["holdfast_commits_waited_total"] <= after["holdfast_commits_total"]
    assert after["holdfast_commits_total"] > before["holdfast_commits_total"]
    assert after["holdfast_commit_seconds_total"] > 0
    assert "holdfast_transmissions_total" in after
    assert {
        "holdfast_queue_records{partition=0,queue=inbox}",
        "holdfast_queue_records{partition=1,queue=inbox}",
    } <= set(after)


async def test_without_handlers_the_queues_backlog_shows_and_no_handler_counts(serve: Any) -> None:
    service = await serve(Destination(":memory:", partitions=1))
    async with Source(service.url, ":memory:") as source:
        for number in range(3):
            await source.send(f"<n>{number}</n>", action=ACTION)
        await source.flush(60)
    found = await scrape(service.admin_url)
    assert found["holdfast_queue_records{partition=0,queue=inbox}"] == 3
    assert "holdfast_messages_handled_total" not in found
