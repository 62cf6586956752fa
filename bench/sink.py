"""An RM Destination that stores only numbers, to measure a forwarder without its cost.

    python bench/sink.py                      # prints its port, serves until the end of standard input

It answers as a destination must: a Sequence for a CreateSequence, and for each message an acknowledgement of all
arrived numbers of its Sequence. ``GET /`` returns how many messages arrived, and the seconds from the first of them to
the last; ``GET /new`` resets the count.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from typing import Any, cast

import httptools

from holdfast import wire
from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    SequenceAcknowledgement,
    TerminateSequenceResponse,
)
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.http.server.server import event_loop_factory

SEQUENCE = re.compile(rb"<wsrm:Identifier>([^<]+)</wsrm:Identifier><wsrm:MessageNumber>(\d+)<")


class Sink:
    """The arrived messages."""

    def __init__(self) -> None:
        self._sequences: dict[bytes, AcknowledgementRanges] = {}
        self._identifiers = itertools.count(1)
        self._count = 0
        self._first = self._last = 0.0

    def told(self, url: bytes) -> bytes:
        """Return the count, or reset it."""
        if url == b"/new":
            self._count, self._first, self._last = 0, 0.0, 0.0
        return json.dumps({"messages": self._count, "seconds": self._last - self._first}).encode()

    def answer(self, body: bytes) -> bytes:
        """Return the answer to an envelope."""
        found = SEQUENCE.search(body)
        if found is not None:
            identifier, number = found.groups()
            ranges = self._sequences[identifier]
            if ranges.add(int(number)):
                self._last = time.perf_counter()
                self._first = self._first if self._count else self._last
                self._count += 1
            said = SequenceAcknowledgement(identifier.decode(), ranges.as_pairs())
            return wire.encode(self._envelope(Acknowledge(), acknowledgements=(said,)))
        asked = wire.decode(body)
        control = asked.control
        if isinstance(control, CreateSequence):
            identifier = f"urn:uuid:00000000-0000-4000-8000-{next(self._identifiers):012x}"
            self._sequences[identifier.encode()] = AcknowledgementRanges()
            return wire.encode(self._envelope(CreateSequenceResponse(identifier), relates_to=asked.message_id))
        kind = CloseSequenceResponse if isinstance(control, CloseSequence) else TerminateSequenceResponse
        return wire.encode(self._envelope(kind(getattr(control, "identifier", "")), relates_to=asked.message_id))

    @staticmethod
    def _envelope(control: Control, **said: Any) -> Envelope:
        return Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, control=control, **said)


class Listener(asyncio.Protocol):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        answer = self._sink.answer(body) if body else self._sink.told(self._url)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/soap+xml; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(answer) + answer)


async def serve() -> None:
    sink = Sink()
    server = await asyncio.get_running_loop().create_server(lambda: Listener(sink), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(serve())
