"""A message's whole processing, one at a time, each side with its store on a disk.

At a source it lasts from the call to the acknowledgement, at a sink from a request's bytes to the acknowledgement's.
Both are the real objects except for HTTP, which the paper does not count either: the source's transport answers
immediately, and the sink gets a request in the same process.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from bench.paper.operations import ACTION, CLIENT, MESSAGE_ID, SERVICE
from holdfast import SourceHTTP, wire
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    SequenceAcknowledgement,
    TerminateSequenceResponse,
)
from holdfast.core.messages import Sequence as SequenceHeader
from holdfast.core.versions import RM, SOAP, Addressing, Versions
from holdfast.endpoint.destination.destination import Destination
from holdfast.endpoint.source.source import Source
from holdfast.exceptions import HoldfastError
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Request
from holdfast.http.outcome import Done, Response, Streamed

SIZES = (100, 1_000, 10_000)
"""Bytes of the bodies; the paper's sizes are between them."""

Once = Callable[[], Awaitable[None]]
"""Runs the operation once; its preparation is already done."""

_HEADERS = {b"content-type": b"application/soap+xml; charset=utf-8"}
_OPEN = "urn:uuid:714a9d3e-97fd-455e-b2b5-a24fb0471ee4"
"""An Identifier that is replaced by the Sequence's at the destination."""
_NUMBER = re.compile(rb"MessageNumber>(\d+)<")


def body_of(size: int) -> bytes:
    """Return a body of this many bytes, one element with text."""
    start, end = b"<o xmlns='urn:holdfast:bench'>", b"</o>"
    return start + b"x" * (size - len(start) - len(end)) + end


def _envelope(**said: object) -> Envelope:
    said = {"to": SERVICE, "message_id": MESSAGE_ID, "reply_to": ANONYMOUS_EPR, **said}
    return Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, **said)  # type: ignore[arg-type]


def _asked(envelope: Envelope) -> DirectExchange:
    return DirectExchange(Request("POST", "/", _HEADERS, wire.encode(envelope), None, False))


@asynccontextmanager
async def sink(directory: Path, size: int) -> AsyncIterator[Callable[[], Once]]:
    """Yield a function that prepares the next message of an RM Destination with one open Sequence.

    Args:
        directory: Directory for its store.
        size: Of each body, in bytes.

    Raises:
        HoldfastError: a message was not acknowledged.
    """
    destination = Destination(store=directory)
    await destination.start()
    try:
        creating = _asked(_envelope(control=CreateSequence(ANONYMOUS_EPR)))
        destination.handle(creating)
        answer = await creating.response
        created = wire.decode(answer.body).control
        if not isinstance(created, CreateSequenceResponse):
            raise HoldfastError(f"CreateSequence was answered: {answer}", remedy="Report it.")
        identifier, body, numbers = created.identifier, body_of(size), itertools.count(1)

        def prepare() -> Once:
            number = next(numbers)
            asked = _asked(
                _envelope(
                    action=ACTION,
                    message_id=f"{MESSAGE_ID}-{number}",
                    from_=EndpointReference(CLIENT),
                    sequence=SequenceHeader(identifier, number),
                    ack_requested=(AckRequested(identifier),),
                    body=body,
                )
            )

            async def once() -> None:
                destination.handle(asked)
                answer = await asked.response
                if answer.status != 200 or b'Upper="%d"' % number not in answer.body:
                    raise HoldfastError(f"message {number} was answered: {answer}", remedy="Report it.")

            return once

        yield prepare
    finally:
        await destination.close()


class _Acknowledging:
    """A Transport without a network: it answers each request like an RM Destination that has every message."""

    def __init__(self) -> None:
        self._acknowledgement = (b"", b"")

    def request(self, method: str, url: str, body: bytes | Streamed, headers: Mapping[str, str], done: Done) -> None:
        assert isinstance(body, bytes)
        found = _NUMBER.search(body)
        if found is not None:  # first, and by the octets, so that the peer's cost does not count as the source's
            before, after = self._acknowledgement
            answer = before + found[1] + after
        else:
            answer = self._answer(wire.decode(body))
        asyncio.get_running_loop().call_soon(done, Response(200, {"content-type": "application/soap+xml"}, answer))

    def _answer(self, envelope: Envelope) -> bytes:
        answer: Control
        match envelope.control:
            case CreateSequence():
                answer = CreateSequenceResponse(_OPEN)
                said = SequenceAcknowledgement(_OPEN, ((1, 4711),))
                whole = wire.encode(_envelope(control=Acknowledge(), acknowledgements=(said,)))
                before, _, after = whole.partition(b"4711")
                self._acknowledgement = (before, after)
            case CloseSequence():
                answer = CloseSequenceResponse(_OPEN)
            case _:
                answer = TerminateSequenceResponse(_OPEN)
        return wire.encode(_envelope(to=None, reply_to=None, relates_to=envelope.message_id, control=answer))

    async def close(self) -> None:
        """Do nothing: nothing is open."""


@asynccontextmanager
async def source(directory: Path, size: int) -> AsyncIterator[Callable[[], Once]]:
    """Yield a function that prepares the next message of an RM Source with one open Sequence.

    Args:
        directory: Directory for its store.
        size: Of each body, in bytes.
    """
    body = body_of(size)
    versions = Versions("1.1", "2005/08", "1.2")
    async with Source(
        SERVICE, directory, versions=versions, offer=False, http=SourceHTTP(transport=_Acknowledging())
    ) as sender:

        async def once() -> None:
            sent = await sender.send(body, action=ACTION)
            await sent.acknowledged(60.0)

        await once()  # creates the Sequence
        yield lambda: once


@asynccontextmanager
async def file(directory: Path, size: int) -> AsyncIterator[Callable[[], Once]]:
    """Yield a function that appends to a file and syncs it: the minimum for a store on this disk."""
    directory.mkdir()
    data = body_of(size)
    descriptor = os.open(directory / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    async def once() -> None:
        os.write(descriptor, data)
        os.fdatasync(descriptor)

    try:
        yield lambda: once
    finally:
        os.close(descriptor)
