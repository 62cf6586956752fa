"""Metrics as Prometheus reads them: they are there, and they count what happened."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Destination, HandlingPolicy, Source, Versions
from holdfast.core.steering import Steering
from holdfast.endpoint.destination.unanswered_exchanges import MEASURED
from holdfast.endpoint.sending.outboxes import forwarder_key
from holdfast.store.durations import Durations
from holdfast.testing.ports import free_ports

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
    assert after["holdfast_handlers_running"] == after["holdfast_handler_oldest_seconds"] == 0
    assert after["holdfast_incidents_total{name=sequence.created}"] == 1
    assert 0 <= after["holdfast_commits_waited_total"] <= after["holdfast_commits_total"]
    assert after["holdfast_commits_total"] > before["holdfast_commits_total"]
    assert after["holdfast_commit_seconds_sum"] > 0
    assert after["holdfast_commit_seconds_count"] == after["holdfast_commits_total"]
    assert after["holdfast_commit_seconds_bucket{le=+Inf}"] == after["holdfast_commit_seconds_count"]
    assert after["holdfast_queue_accepted_total{queue=inbox}"] == 4
    assert after["holdfast_queue_age_seconds{queue=inbox}"] >= 0
    assert "holdfast_queue_bytes{queue=inbox}" not in after, "its retention counts none"
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


async def test_requests_are_measured_now_and_then(serve: Any) -> None:
    service = await serve(Destination(":memory:"))
    async with Source(service.url, ":memory:") as source:
        for number in range(3 * MEASURED):
            await source.send(f"<n>{number}</n>", action=ACTION)
        await source.flush(60)
    after = await scrape(service.admin_url)
    count = after["holdfast_request_seconds_count"]
    assert count >= 3
    assert after["holdfast_request_seconds_sum"] > 0
    assert len(service.app.running.unanswered) == 0


async def test_forwarders_are_counted_by_name_and_nobody_elses_address_is_a_label(serve: Any) -> None:
    (port,) = free_ports(1)
    nowhere = f"http://127.0.0.1:{port}/"
    service = await serve(Destination(":memory:", partitions=2))
    app = service.app

    def forward(key: str, partition: int) -> None:
        app.running.engine.protocol.outbound.forward(
            key, nowhere, [(Versions("1.1"), False)], app.running.queue, partition
        )
        app.running.engine.touch()

    for partition in (0, 1):
        forward(forwarder_key("next", partition), partition)
    app.running.engine.protocol.outbound.open("to/http://stranger.example/", nowhere, [(Versions("1.1"), False)])
    async with Source(service.url, ":memory:") as source:
        for number in range(4):
            await source.send(f"<n>{number}</n>", action=ACTION)
        await source.flush(60)
    Steering(app.running.engine.protocol).suspend(
        app.running.engine.protocol.outbound.outboxes[
            forwarder_key("next", 0 if app.running.queue.records.ends[1] else 1)
        ],
        "moving",
    )
    after: dict[str, float] = {}
    async with asyncio.timeout(60):
        while not after.get("holdfast_retransmissions_total{forwarder=next}"):
            await asyncio.sleep(0.05)
            after = await scrape(service.admin_url)
    assert after["holdfast_forwarder_waiting_records{forwarder=next}"] == 4
    assert after["holdfast_forwarder_partitions{forwarder=next,state=suspended}"] == 1
    assert after["holdfast_forwarder_partitions{forwarder=next,state=sending}"] == 1
    assert after["holdfast_forwarder_in_flight{forwarder=next}"] == 0
    assert not [name for name in after if "stranger" in name]


def test_durations_are_counted_in_the_bucket_they_end_in() -> None:
    durations = Durations()
    for seconds in (0.0, 0.0005, 0.0006, 3.0, 99.0):
        durations.add(seconds)
    found = dict(durations.buckets())
    assert (found["0.0005"], found["0.001"], found["2.5"], found["5.0"], found["+Inf"]) == (2, 3, 3, 4, 5)
    assert durations.seconds == pytest.approx(102.0011)
