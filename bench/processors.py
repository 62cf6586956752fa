"""The cost of the path of envelopes for a message: without processors, with an idle one, with one that adds a header.

    python bench/processors.py [--rounds 300] [--json]

The benchmark decodes the same envelope, and encodes its acknowledgement, in one thread without sockets: by the wire's
two functions alone, and by ``Envelopes`` as an endpoint calls it. The ways take turns, a hundred messages each; the
figures are CPU microseconds per message of the best round and of the median, and the differences from the wire's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import thread_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load

import holdfast
from holdfast.core.messages import Acknowledge, CreateSequenceResponse, Envelope, Fault, SequenceAcknowledgement
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.envelopes.envelopes import CONTENT_TYPES, Envelopes
from holdfast.http.exchange import Exchange, Request
from holdfast.wire import decode, encode

MESSAGES = 100


class Nothing(holdfast.Processor):
    """Does nothing."""

    def inbound(self, context: holdfast.MessageContext) -> None:
        pass

    def outbound(self, context: holdfast.MessageContext) -> None:
        pass


class Header(holdfast.Processor):
    """Adds a header block to outgoing envelopes."""

    def outbound(self, context: holdfast.MessageContext) -> None:
        context.add_header(b"<t:Tenant xmlns:t='urn:t'>acme</t:Tenant>")


class Answered(Exchange):
    """Discards its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        pass

    start = write = drain = finish = respond  # type: ignore[assignment]


def acknowledgement() -> Envelope:
    """Return the answer to nearly every message."""
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, control=Acknowledge())
    envelope.acknowledgements = (SequenceAcknowledgement("urn:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427", ((1, 7),)),)
    return envelope


def message() -> bytes:
    """Return a message as the load generator writes it."""
    script = load.reliable()("http://127.0.0.1:1/", 0)
    script.next_request()
    created = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1)
    created.control = CreateSequenceResponse("urn:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    script.check(200, encode(created))
    return script.next_request().partition(b"\r\n\r\n")[2]


def ways(data: bytes) -> dict[str, Callable[[], None]]:
    """Return name -> a function that decodes and answers one message."""
    request = Request("POST", "/", {}, data, "127.0.0.1:1", False)

    def wire() -> None:
        exchange = Answered(request)
        decode(data)
        answer = acknowledgement()
        exchange.respond(200, encode(answer), CONTENT_TYPES[answer.soap])

    def through(*processors: holdfast.Processor) -> Callable[[], None]:
        envelopes = Envelopes("destination", Counter(), processors)

        def take(exchange: Exchange, _envelope: Envelope, _refusal: Fault | None) -> None:
            envelopes.respond(exchange, acknowledgement())

        return lambda: envelopes.receive(Answered(request), take)

    return {
        "the wire alone": wire,
        "no processor": through(),
        "one that does nothing": through(Nothing()),
        "one that adds a header": through(Header()),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = ways(message())
    took: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(options.rounds):
        for name, once in measured.items():
            begun = thread_time()
            for _ in range(MESSAGES):
                once()
            took[name].append(1e6 * (thread_time() - begun) / MESSAGES)
    table = {name: {"best": min(times), "median": median(times)} for name, times in took.items()}
    if options.json:
        print(json.dumps(table))
        return
    first = next(iter(table.values()))
    print(f"{'CPU us/message':<26}{'best':>8}{'above':>8}{'median':>8}{'above':>8}")
    for name, row in table.items():
        print(f"{name:<26}" + "".join(f"{row[key]:>8.2f}{row[key] - first[key]:>8.2f}" for key in ("best", "median")))


if __name__ == "__main__":
    main()
