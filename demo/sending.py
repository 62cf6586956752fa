"""The demo's RM Source, run as a separate process that can be killed: ``python -m demo.sending STORE URL COUNT``.

It sends each of the first COUNT departures, one Sequence for each airline. A restart continues where the last run
ended, because the store knows how many departures of each airline it has. At intervals the process prints a line of
JSON: how many messages the destination has acknowledged, and how many were retransmitted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from demo.check import ACTION
from demo.flights import Departure, departure_xml, departures
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.endpoint.logs import configure_logs
from holdfast.endpoint.source.source import Source
from holdfast.http.server.server import event_loop_factory

BATCH = 64
"""Departures passed to the source together, so that they share a sync of its store."""
OUTSTANDING = 4_096
"""Maximum of unacknowledged messages, so that memory does not grow with the number of departures."""

POLICY = SourcePolicy(
    # Made for this network: it is local, so a round trip takes milliseconds, and it loses messages at random, not
    # because it is full. So early retransmission does no harm. The defaults suit the open network.
    retransmission=RetransmissionPolicy(initial=0.25, floor=0.05, cap=0.25),
    window=32,
    initial_window=16,
)


class Sending:
    """One run of the source.

    Args:
        source: The open source.
        count: Number of departures to send.
    """

    def __init__(self, source: Source, count: int) -> None:
        self._source = source
        self._count = count
        self._airlines = {str(departure["carrier"]) for departure in departures(count)}

    @property
    def acknowledged(self) -> int:
        """Number of messages that the destination has acknowledged, over all runs."""
        stored = sum(self._source.next_offset(airline) for airline in self._airlines)
        return stored - self._source.progress.outstanding

    async def run(self) -> None:
        """Send the departures that no earlier run stored, and wait until every message is acknowledged."""
        progress = self._source.progress
        for batch in _batches(self._unstored()):
            # In the order of the data set: each send() takes its number before its first await.
            await asyncio.gather(
                *(
                    self._source.send(departure_xml(one), action=ACTION, sequence_key=str(one["carrier"]))
                    for one in batch
                )
            )
            while progress.outstanding > OUTSTANDING:
                await asyncio.sleep(0.01)
        await self._source.flush()

    def _unstored(self) -> Iterator[Departure]:
        stored = {airline: self._source.next_offset(airline) for airline in self._airlines}
        seen: Counter[str] = Counter()
        for departure in departures(self._count):
            airline = str(departure["carrier"])
            seen[airline] += 1
            if seen[airline] > stored[airline]:
                yield departure

    def tell(self) -> None:
        """Print the progress."""
        told = {"acknowledged": self.acknowledged, "resent": self._source.progress.resent}
        print(json.dumps(told | {"problem": self._source.progress.problem}), flush=True)


def _batches(every: Iterator[Departure]) -> Iterator[list[Departure]]:
    while batch := list(islice(every, BATCH)):
        yield batch


async def send(store: str, url: str, count: int) -> None:
    """Send the departures, and print the progress."""
    async with Source(url, store, offer=False, policy=POLICY) as source:
        sending = Sending(source, count)

        async def tell_now_and_then() -> None:
            while True:
                sending.tell()
                await asyncio.sleep(0.05)

        telling = asyncio.ensure_future(tell_now_and_then())
        await sending.run()
        telling.cancel()
        sending.tell()


if __name__ == "__main__":
    configure_logs("info")
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(send(sys.argv[1], sys.argv[2], int(sys.argv[3])))
