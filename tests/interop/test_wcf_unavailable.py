"""Microsoft's WCF client while its server answers 503 with Retry-After, as a node does during a takeover.

``WCF_CLIENT`` names the program; without it all of this is skipped.
"""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from balancer import Balancer
from interop_cells import cell
from waiting import until
from wcf.destination import contract_app, key_of, running_destination
from wcf.grids import each_version
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.wire import Profile

from holdfast.http.exchange import Exchange

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.timeout(600),
    needs_the_client,
    cell(peer="WCF", role="destination", pattern=("one-way", "request/reply")),
]

SCRIPTS = {
    "message": "open; {0} 1..5; sleep 1; {0} 6..10; close",
    "open": "open; {0} 1..10; close",
    "close": "open; {0} 1..10; sleep 1; close",
}
"""What the client does while it is refused."""


class Refusals(Balancer):
    """Passes requests on, or answers 503 from now on until so many seconds after the first such answer."""

    seconds = 0.0
    refused = 0
    _ends = 0.0

    def refuse(self, seconds: float) -> None:
        self.seconds, self._ends = seconds, math.inf

    def _take(self, exchange: Exchange) -> None:
        now = time.monotonic()
        if now >= self._ends:
            super()._take(exchange)
            return
        self.refused += 1
        self._ends = min(self._ends, now + self.seconds)
        exchange.respond(503, b"the partition is moving", b"text/plain", [(b"Retry-After", b"1")])


@each_version
@pytest.mark.parametrize(
    "refused",
    [
        pytest.param("message", marks=cell(fault="503 for a message, for 3 s")),
        pytest.param("open", marks=[pytest.mark.nightly, cell(fault="503 for CreateSequence, for 3 s")]),
        pytest.param("close", marks=[pytest.mark.nightly, cell(fault="503 for the end of the Sequence, for 3 s")]),
    ],
)
async def test_a_client_that_is_answered_503_for_seconds_sends_again(profile: Profile, refused: str) -> None:
    async def call(contract: str) -> None:
        handled: list[str] = []
        app = contract_app(":memory:", lambda message: handled.append(key_of(message)))
        async with running_destination(app) as url, Refusals([url]) as way:
            client = LiveWCFClient(way.url, key="k", contract=contract, **versions_of(profile))
            if refused == "open":
                way.refuse(3)
            running = asyncio.create_task(client.run(SCRIPTS[refused].format(contract)))
            if refused != "open":
                await until(lambda: len(handled) >= (5 if refused == "message" else 10))
                await asyncio.sleep(0.3)  # the answers have left
                way.refuse(3)
            said = await running
        assert client.failed == [], said
        assert way.refused
        assert handled == [f"k {number}" for number in range(1, 11)]

    await asyncio.gather(call("notify"), call("echo"))
