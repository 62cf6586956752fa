"""The operations of the paper's table in Holdfast: each a function that runs it once.

:mod:`bench.paper.table` times them and has the paper's figures. An operation that results in an envelope or an element
ends with its bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from holdfast import wire
from holdfast.core.faults import UNKNOWN_SEQUENCE
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    Control,
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
from holdfast.wire.addressing import encode_epr_content
from holdfast.wire.dialects import rm_200702
from holdfast.wire.rm import encode_acknowledgement, encode_control, encode_sequence

IDENTIFIER = "urn:uuid:714a9d3e-97fd-455e-b2b5-a24fb0471ee4"
MESSAGE_ID = "urn:uuid:1d30edae-60df-42df-9150-a1a9aad30a8d"
SERVICE, CLIENT = "http://server.example/services/orders", "http://client.example/listener"
ACTION = "urn:example:orders/put"
DIALECT = rm_200702.DIALECT
KEY = (b'<k:customer xmlns:k="urn:k">4711</k:customer>',)
"""A reference parameter; it replaces 2004/08's ReferenceProperties, which the paper's EPRs had."""
SMALL = b'<p:put xmlns:p="urn:x"><k>1</k><d>' + b"x" * 60 + b"</d></p:put>"
DENSE = b"<o xmlns='urn:o'>%b</o>" % b"".join(
    b"<item><sku>A%d</sku><qty>2</qty><price>3.5</price><note>%b</note></item>" % (n, b"x" * 40) for n in range(95)
)
"""Ten kilobytes in which every twenty-fifth octet begins a tag."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that each call runs once, completely."""

    run: Callable[[], object]
    remark: str = ""
    """A note on its comparison with the paper's, if any."""


def message(body: bytes) -> Envelope:
    """Return an application message with all the headers of the paper's largest envelope, and a Sequence."""
    return Envelope(
        SOAP.V1_2,
        Addressing.V2005_08,
        RM.V1_1,
        action=ACTION,
        to=SERVICE,
        message_id=MESSAGE_ID,
        reply_to=ANONYMOUS_EPR,
        from_=EndpointReference(CLIENT),
        sequence=Sequence(IDENTIFIER, 3),
        ack_requested=(AckRequested(IDENTIFIER),),
        body=body,
    )


def with_most_headers() -> bytes:
    """Return an envelope with the message information headers of WS-Addressing, and none of WS-RM."""
    return wire.encode(
        Envelope(
            SOAP.V1_2,
            Addressing.V2005_08,
            action=ACTION,
            to=SERVICE,
            message_id=MESSAGE_ID,
            relates_to=IDENTIFIER,
            reply_to=ANONYMOUS_EPR,
            fault_to=ANONYMOUS_EPR,
            from_=EndpointReference(CLIENT),
            reference_parameters=KEY,
            body=SMALL,
        )
    )


def targeted() -> bytes:
    """Return an envelope with To, Action and reference parameters of an EPR."""
    epr = EndpointReference(SERVICE, KEY)
    return wire.encode(
        Envelope(
            SOAP.V1_2, Addressing.V2005_08, action=ACTION, to=epr.address, reference_parameters=epr.reference_parameters
        )
    )


def controlling(make: Callable[[], Control]) -> Callable[[], bytes]:
    """Return a function that makes a whole RM message: the message itself, its headers, its envelope."""
    return lambda: wire.encode(
        Envelope(
            SOAP.V1_2,
            Addressing.V2005_08,
            RM.V1_1,
            to=SERVICE,
            message_id=MESSAGE_ID,
            reply_to=ANONYMOUS_EPR,
            control=make(),
        )
    )


def acknowledgement_of(numbers: set[int]) -> Callable[[], str]:
    """Return a function that converts a set of message numbers to the header block."""

    def run() -> str:
        ordered = sorted(numbers)
        gaps = [(lower, upper) for lower, upper in pairwise(ordered) if upper - lower > 1]
        lowers, uppers = [ordered[0], *(upper for _, upper in gaps)], [*(lower for lower, _ in gaps), ordered[-1]]
        ranges = tuple(zip(lowers, uppers, strict=True))
        return encode_acknowledgement(SequenceAcknowledgement(IDENTIFIER, ranges), DIALECT)

    return run


def some_numbers(count: int, highest: int) -> set[int]:
    """Return this many numbers from 1 to the highest, the same in every run."""
    return set(random.Random(2005).sample(range(1, highest + 1), count))


def add_sequence() -> Callable[[], Envelope]:
    """Return a function that adds a Sequence to an existing envelope, as the paper does: to the document, not to its
    bytes."""
    existing = message(SMALL)

    def run() -> Envelope:
        existing.sequence = Sequence(IDENTIFIER, 4)
        return existing

    return run


def fault() -> bytes:
    """Return an UnknownSequence fault, with its whole envelope."""
    unknown = Fault(
        UNKNOWN_SEQUENCE, "The value is not a known Sequence identifier.", is_rm=True, identifier=IDENTIFIER
    )
    return wire.encode(Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, relates_to=MESSAGE_ID, fault=unknown))


def of_paper() -> dict[str, Operation]:
    """Return the rows of the paper by its names, in its order, except those in :func:`bench.paper.table.left_out`."""
    addressing = Addressing.V2005_08
    ready = message(SMALL)
    whole = wire.encode(ready)
    offer = Offer(IDENTIFIER, ANONYMOUS_EPR)
    response = CreateSequenceResponse(IDENTIFIER, 3600.0, accept_acks_to=EndpointReference(SERVICE))
    size = f"{len(whole):,} bytes"
    return {
        "Create a schema-typed (XMLBeans) SOAP envelope document": Operation(
            lambda: wire.encode(Envelope(SOAP.V1_2, body=SMALL)), "the envelope's bytes, Body included"
        ),
        "Create an Axis SOAPMessage": Operation(lambda: Envelope(SOAP.V1_2), "the envelope as an object"),
        "Convert envelope document to SOAPMessage": Operation(
            lambda: wire.decode(whole), f"{size} of text to the object, headers read, Body checked"
        ),
        "Convert SOAPMessage to envelope document": Operation(lambda: wire.encode(ready), f"the object to {size}"),
        "Create a WS-Addressing EPR (URL only)": Operation(
            lambda: encode_epr_content(EndpointReference(CLIENT), addressing)
        ),
        "Create a WS-Addressing EPR (with ReferenceProperties)": Operation(
            lambda: encode_epr_content(EndpointReference(CLIENT, KEY), addressing)
        ),
        "Create an envelope targeted to an EPR": Operation(targeted),
        "Same, with most WSA message information headers": Operation(with_most_headers),
        "Parse an envelope to its WSA message information headers": Operation(
            lambda: wire.decode(whole), f"{size} of text, RM headers too, Body checked"
        ),
        "Create a WSRM fault": Operation(fault, "its whole envelope"),
        "Create a CreateSequence request": Operation(
            controlling(lambda: CreateSequence(ANONYMOUS_EPR, 3600.0, offer)), "its whole envelope, with an Offer"
        ),
        "Create a CreateSequenceResponse": Operation(controlling(lambda: response), "its whole envelope"),
        "Create a Sequence element": Operation(lambda: encode_sequence(Sequence(IDENTIFIER, 3), DIALECT)),
        "Add a Sequence element to an existing envelope": Operation(
            add_sequence(), "to the object, as in the paper; its bytes are made when the envelope is written"
        ),
        "Create a SequenceAcknowledgement from a set of message numbers": Operation(
            acknowledgement_of(some_numbers(10, 14)), "ten numbers"
        ),
        "Create a TerminateSequence": Operation(
            lambda: encode_control(TerminateSequence(IDENTIFIER, 7), DIALECT, addressing)
        ),
    }


def of_ours() -> dict[str, tuple[str, Operation]]:
    """Return rows that the paper lacks: name -> the paper's row to compare with ("" for none), and the operation."""
    dense = wire.encode(message(DENSE))
    spread = AcknowledgementRanges([(1, 10), (12, 40), (42, 50), (60, 99)])
    acknowledging = Envelope(
        SOAP.V1_2,
        Addressing.V2005_08,
        RM.V1_1,
        control=Acknowledge(),
        acknowledgements=(SequenceAcknowledgement(IDENTIFIER, ((1, 37),), buffer_remaining=8),),
    )
    acknowledged = wire.encode(acknowledging)
    set_row = "Create a SequenceAcknowledgement from a set of message numbers"
    return {
        f"Parse an envelope of {len(dense):,} bytes of dense markup": (
            "Parse an envelope to its WSA message information headers",
            Operation(
                lambda: wire.decode(dense),
                "ten times the size of the row above, 760 tags of it in the Body, each of which expat checks",
            ),
        ),
        "Create a SequenceAcknowledgement from a set of 996 numbers": (
            set_row,
            Operation(acknowledgement_of(some_numbers(996, 1000)), "sorting them is most of it"),
        ),
        "Create a SequenceAcknowledgement of 4 ranges": (
            set_row,
            Operation(
                lambda: encode_acknowledgement(SequenceAcknowledgement(IDENTIFIER, tuple(spread)), DIALECT),
                "what Holdfast does: it keeps ranges, no sets",
            ),
        ),
        "Write an acknowledgement, whole envelope": ("", Operation(lambda: wire.encode(acknowledging))),
        "Read an acknowledgement, whole envelope": ("", Operation(lambda: wire.decode(acknowledged))),
    }
