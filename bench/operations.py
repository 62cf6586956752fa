"""What each protocol operation costs, beside what a WS-RM implementation of 2005 was measured at.

The other column is from a paper on a Java implementation (XMLBeans and Axis, Java 1.4.2, one 3.5 GHz Pentium 4; means
of 100 runs). A core of today is itself some six to ten times as fast as that one: ratios near ten are about par for the
clock, what is above is the design's. Ours are CPU microseconds of this thread, warmed up, the best of the rounds: what
else runs on the machine can only make them worse. What ends in an envelope or element ends in its bytes.

    python bench/operations.py [--rounds 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from holdfast import wire
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    Offer,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.wire import rm_200702
from holdfast.wire.addressing import encode_epr_content
from holdfast.wire.rm import encode_acknowledgement, encode_control, encode_sequence

IDENTIFIER = "urn:uuid:714a9d3e-97fd-455e-b2b5-a24fb0471ee4"
MESSAGE_ID = "urn:uuid:1d30edae-60df-42df-9150-a1a9aad30a8d"
SERVICE, CLIENT = "http://server.example/services/orders", "http://client.example/listener"
TARGET = 3.0
"""How many times as fast as the paper's every operation must be."""


@dataclass(frozen=True)
class Operation:
    """One row: what it is, the paper's mean in microseconds (None: it has no such row), and how to do it once."""

    name: str
    paper: float | None
    run: Callable[[], object]


def message(body: bytes) -> Envelope:
    """An application message with all the headers of the paper's largest envelope, and a Sequence."""
    return Envelope(
        SOAP.V1_2,
        Addressing.V2005_08,
        RM.V1_1,
        action="urn:example:orders/put",
        to=SERVICE,
        message_id=MESSAGE_ID,
        reply_to=ANONYMOUS_EPR,
        from_=EndpointReference(CLIENT),
        sequence=Sequence(IDENTIFIER, 3),
        ack_requested=(AckRequested(IDENTIFIER),),
        body=body,
    )


def of_control(control: CreateSequence | CreateSequenceResponse) -> Callable[[], bytes]:
    """The whole envelope of an RM message."""
    return lambda: wire.encode(
        Envelope(
            SOAP.V1_2, Addressing.V2005_08, RM.V1_1, to=SERVICE, message_id=MESSAGE_ID, reply_to=ANONYMOUS_EPR,
            control=control,
        )
    )  # fmt: skip


def acknowledgement_of(numbers: set[int]) -> Callable[[], str]:
    """From a set of message numbers to the header block."""

    def run() -> str:
        ordered = sorted(numbers)
        ends = [(lower, upper) for lower, upper in pairwise(ordered) if upper - lower > 1]
        lowers, uppers = [ordered[0], *(upper for _, upper in ends)], [*(lower for lower, _ in ends), ordered[-1]]
        ranges = tuple(zip(lowers, uppers, strict=True))
        return encode_acknowledgement(SequenceAcknowledgement(IDENTIFIER, ranges), rm_200702.DIALECT)

    return run


def with_sequence_added() -> Callable[[], object]:
    """Adds a Sequence to an envelope that is there, as the paper does: to the document, not to its bytes."""
    existing = message(b"")

    def run() -> object:
        existing.sequence = Sequence(IDENTIFIER, 4)
        return existing

    return run


def fault() -> bytes:
    """An UnknownSequence fault, whole envelope."""
    unknown = Fault(
        "UnknownSequence", "The value is not a known Sequence identifier.", is_rm=True, identifier=IDENTIFIER
    )
    return wire.encode(Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, relates_to=MESSAGE_ID, fault=unknown))


def operations() -> list[Operation]:
    """Every row of the paper that exists here, then some of our own."""
    addressing, dialect = Addressing.V2005_08, rm_200702.DIALECT
    small = b'<p:put xmlns:p="urn:x"><k>1</k><d>' + b"x" * 60 + b"</d></p:put>"
    items = b"".join(
        b"<item><sku>A%d</sku><qty>2</qty><price>3.5</price><note>%s</note></item>" % (n, b"x" * 40) for n in range(95)
    )
    whole, dense = wire.encode(message(small)), wire.encode(message(b"<o xmlns='urn:o'>" + items + b"</o>"))
    ready, plain = message(small), Envelope(SOAP.V1_2, body=small)
    key = (b'<k:customer xmlns:k="urn:k">4711</k:customer>',)
    chosen = random.Random(2005)
    ten, thousand = set(chosen.sample(range(1, 15), 10)), set(chosen.sample(range(1, 1001), 996))
    spread = AcknowledgementRanges([(1, 10), (12, 40), (42, 50), (60, 99)])
    acknowledging = Envelope(
        SOAP.V1_2, addressing, RM.V1_1, relates_to=MESSAGE_ID, control=Acknowledge(),
        acknowledgements=(SequenceAcknowledgement(IDENTIFIER, ((1, 37),), buffer_remaining=8),),
    )  # fmt: skip
    acknowledged = wire.encode(acknowledging)
    create = CreateSequence(ANONYMOUS_EPR, 3600.0, Offer(IDENTIFIER, ANONYMOUS_EPR))
    response = CreateSequenceResponse(IDENTIFIER, 3600.0, accept_acks_to=EndpointReference(SERVICE))
    created = of_control(create)()
    return [
        Operation("create an envelope document", 121.29, lambda: wire.encode(plain)),
        Operation("create a message object", 85.76, lambda: Envelope(SOAP.V1_2)),
        Operation("envelope document to message object (1.1 KB)", 3503.81, lambda: wire.decode(whole)),
        Operation("message object to envelope document (1.1 KB)", 730.08, lambda: wire.encode(ready)),
        Operation("create an EPR (URL only)", 84.61, lambda: encode_epr_content(EndpointReference(CLIENT), addressing)),
        Operation(
            "create an EPR (with ReferenceProperties)",
            133.13,
            lambda: encode_epr_content(EndpointReference(CLIENT, key), addressing),
        ),
        Operation(
            "create an envelope targeted to an EPR",
            157.98,
            lambda: wire.encode(Envelope(SOAP.V1_2, addressing, action="urn:a", to=SERVICE, reference_parameters=key)),
        ),
        Operation("same, with most WSA headers", 263.20, lambda: wire.encode(message(small))),
        Operation("parse an envelope to its WSA headers (1.1 KB)", 711.74, lambda: wire.decode(whole)),
        Operation("parse an envelope to its WSA headers (11 KB, dense)", 711.74, lambda: wire.decode(dense)),
        Operation("create a WSRM fault", 413.80, fault),
        Operation("create a CreateSequence request", 268.95, of_control(create)),
        Operation("create a CreateSequenceResponse", 234.97, of_control(response)),
        Operation("create a Sequence element", 43.8125, lambda: encode_sequence(Sequence(IDENTIFIER, 3), dialect)),
        Operation("add a Sequence element to an existing envelope", 13.01, with_sequence_added()),
        Operation("SequenceAcknowledgement from a set of 10 numbers", 461.17, acknowledgement_of(ten)),
        Operation("SequenceAcknowledgement from a set of 996 numbers", 461.17, acknowledgement_of(thousand)),
        Operation(
            "SequenceAcknowledgement, kept as 4 ranges",
            461.17,
            lambda: encode_acknowledgement(SequenceAcknowledgement(IDENTIFIER, tuple(spread)), dialect),
        ),
        Operation(
            "create a TerminateSequence",
            20.95,
            lambda: encode_control(TerminateSequence(IDENTIFIER, 7), dialect, addressing),
        ),
        Operation("acknowledgement envelope, whole", None, lambda: wire.encode(acknowledging)),
        Operation("acknowledgement envelope, read", None, lambda: wire.decode(acknowledged)),
        Operation("CreateSequence envelope, read", None, lambda: wire.decode(created)),
    ]


def measure(run: Callable[[], object], rounds: int) -> float:
    """CPU microseconds for one, the best of ``rounds`` of about five milliseconds each."""
    started = time.thread_time()
    for _ in range(50):
        run()
    count = max(20, int(0.005 / max(1e-7, (time.thread_time() - started) / 50)))
    took = []
    for _ in range(rounds):
        started = time.thread_time()
        for _ in range(count):
            run()
        took.append((time.thread_time() - started) / count * 1e6)
    return min(took)


def main() -> None:
    """Measure every operation and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds per operation, of which the best counts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    rows = [(operation, measure(operation.run, arguments.rounds)) for operation in operations()]
    if arguments.json:
        print(
            json.dumps(
                [
                    {
                        "operation": operation.name,
                        "microseconds": round(ours, 3),
                        "paper_microseconds": operation.paper,
                        "times_as_fast": round(operation.paper / ours, 1) if operation.paper else None,
                    }
                    for operation, ours in rows
                ],
                indent=2,
            )
        )
        return
    print(f"{'operation':<52}{'2005, us':>10}{'here, us':>10}{'ratio':>9}")
    for operation, ours in rows:
        paper = f"{operation.paper:.1f}" if operation.paper else "-"
        ratio = f"{operation.paper / ours:.0f}x" if operation.paper else "-"
        print(f"{operation.name:<52}{paper:>10}{ours:>10.2f}{ratio:>9}")
    slow = [operation.name for operation, ours in rows if operation.paper and operation.paper / ours < TARGET]
    print(f"below {TARGET:.0f}x: {', '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()
