"""How many syncs a message waits for, one after the other: each on the disk of one party, and none of them for what
nobody waits for. docs/internals/performance.md has the table."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import until

import holdfast
from holdfast.broker.config import ForwarderConfig
from holdfast.core.versions import Versions
from holdfast.endpoint import engine

ACTION = "urn:test:price"
CALLS = 8

VERSIONS = pytest.mark.parametrize("rm", ["1.0", "1.1"])


class Counted:
    """A client, a broker and a service, and what each has committed."""

    def __init__(self, *engines: Any) -> None:
        self._engines = engines
        self._before = self._now()

    def _now(self) -> list[int]:
        return [one.commits.batches for one in self._engines]

    def since(self) -> list[int]:
        """Commits of each since the last call."""
        before, self._before = self._before, self._now()
        return [now - one for now, one in zip(self._before, before, strict=True)]


async def _service(run_service: Any) -> tuple[Any, list[str]]:
    app = holdfast.Destination(":memory:", partitions=1)
    handled: list[str] = []

    @app.on(ACTION)
    async def price(message: holdfast.Message) -> str:
        handled.append(str(message.body.text))
        return f"<r>{message.body.text}</r>"

    @app.on("urn:test:note")
    async def note(message: holdfast.Message) -> None:
        handled.append(str(message.body.text))

    return await run_service(app), handled


@VERSIONS
async def test_a_call_waits_for_six_syncs_and_a_one_way_message_for_three(
    rm: str, run_broker: Any, run_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "PUT_OFF", 600.0)
    service, handled = await _service(run_service)
    forwarder = ForwarderConfig("partner", "inbox", service.url, rm=rm)
    broker = await run_broker(partitions=1, forwarders=(forwarder,))
    async with holdfast.Source(broker.service.url, ":memory:", versions=Versions(rm), offer=True) as source:
        assert (await source.request("<q>warm</q>", action=ACTION)).body.text == "warm"
        counted = Counted(source._engine, broker.destination.engine, service.app.engine)
        for number in range(CALLS):
            assert (await source.request(f"<q>{number}</q>", action=ACTION)).body.text == str(number)
        assert counted.since() == [2 * CALLS] * 3
        for number in range(CALLS):
            sent = await source.send(f"<q>n{number}</q>", action="urn:test:note")
            await sent.acknowledged(60)
            await until(lambda number=number: f"n{number}" in handled, None)
        assert counted.since() == [CALLS] * 3
