"""The worker that owns a message's Sequence, and a request as bytes for another process. Knows no socket.

An Identifier names the worker that made it (``worker``). For the usual message, a search in its bytes finds the owner;
the search is not exact: the owner decodes the message, and rejects it if it belongs elsewhere. If the search finds
nothing, the message is decoded first.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.core.messages import (
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    Envelope,
    MakeConnection,
    RequestAcknowledgement,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.origin import Origin, inbound_names, secret_in
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.envelopes.head_spool import HeadSpool
from holdfast.endpoint.worker import worker_of
from holdfast.http.exchange import Request
from holdfast.http.tls import PeerCertificate
from holdfast.wire import DEFAULT, Limits

SEARCHED: Final = 16 * 1024
"""Bytes at the beginning of an envelope that are searched for its Sequence header."""
MOST_LOOKED_AT: Final = 64
"""Times the word Sequence may stand before that: in the Action, in namespaces."""

SMALL_HEAD: Final = 2048
"""Bytes of the head of a request that is remembered: the next one of its connection has the same."""

_REST = re.compile(rb"(?:\s[^<>]*)?>\s*<(?:[^<>:\s]{1,64}:)?Identifier(?:\s[^<>]*)?>\s*([^<>&\s]{1,256})\s*</")
"""Text after the word Sequence if it is the name of that header."""
_EMPTY = (Acknowledge, RequestAcknowledgement)


def worker_in(data: bytes) -> int | None:
    """Return the worker that owns the Sequence named in the envelope's header; None if the search finds none."""
    at = -1
    for _ in range(MOST_LOOKED_AT):
        at = data.find(b"Sequence", at + 1, SEARCHED)
        if at < 1:
            break
        found = _REST.match(data, at + 8, SEARCHED) if data[at - 1] in b"<:" else None
        if found is not None:
            return _owner(found[1].decode("utf-8", "replace"))
    return None


def worker_of_address(target: str) -> int | None:
    """Return the worker that gave the peer this address: the worker that made the secret; None without a secret.

    Every message posted to the address is about Sequences of that worker: acknowledgements, replies, and Sequences
    that the peer creates for its replies.
    """
    secret = secret_in(target)
    return _owner(f"urn:uuid:{secret}") if secret else None


def _owner(identifier: str) -> int:
    # An Identifier without a number was made by a server without workers: its store is worker 0's.
    return worker_of(identifier) or 0


class Named(msgspec.Struct, frozen=True):
    """The owner of an envelope.

    Args:
        worker: The number of its owner, or with ``identifiers`` of the one to ask first; None: the worker that received
            it.
        identifiers: Sequences of the envelope with Identifiers that the peer may have created: a worker that knows one
            is its owner. The peer may be a server with workers, so a number in one may be that of a worker there.
        is_replaceable: Whether another worker may answer it while its owner does not run.
        offer: The Identifier that it offers, "" for none. A worker that has accepted the Offer is its owner.
    """

    worker: int | None = None
    identifiers: tuple[str, ...] = ()
    is_replaceable: bool = False
    offer: str = ""

    def is_sought(self, knows: Callable[[str], bool]) -> bool:
        """Return whether the other workers must be asked for the owner.

        Args:
            knows: Whether this worker knows a Sequence.
        """
        return bool(self.identifiers) and not any(map(knows, self.identifiers))


def found_in(answers: Mapping[int, bool | None]) -> tuple[int | None, bool]:
    """Return the worker that knows a Sequence, if one does, and whether it is sure that there is no other.

    An unknown Sequence would get a fault that ends it (WS-RM 4.3), although its worker may only be starting.

    Args:
        answers: Worker -> whether it knows the Sequence; None: it does not say.
    """
    return next((number for number, is_there in answers.items() if is_there), None), None not in answers.values()


def owner_of(envelope: Envelope, count: int) -> Named:
    """Return the owner of an envelope among ``count`` workers."""
    if envelope.sequence is not None:
        return Named(_owner(envelope.sequence.identifier))
    control = envelope.control
    if isinstance(control, MakeConnection):
        # A poll finds the Sequences that its address is the AcksTo of.
        if control.identifier:
            return Named(worker_of(control.identifier), (control.identifier,))
        return Named(_worker_of_poller(control.address, count) if control.address else None)
    if isinstance(control, CreateSequence):
        offer = control.offer.identifier if control.offer is not None else ""
        if control.acks_to.is_polled:
            return Named(_worker_of_poller(control.acks_to.address, count), offer=offer)
        # A repeat must find the worker that answered first, and another request with the same Offer one that refuses
        # it (WS-RM 3.4). A client may send no MessageID (gSOAP does).
        name = offer or envelope.message_id
        # If that worker does not run, a repeat without an Offer gets another Sequence, and the first expires unused.
        worker = zlib.crc32(name.encode()) % count if name else None
        return Named(worker, is_replaceable=True, offer=offer)
    # A source names Sequences that were created here. A destination names Sequences with Identifiers that its server
    # made: a number in one is that of a worker there. Before CreateSequence existed (2003/03), each source made its
    # Identifiers. Either end may close or terminate a Sequence.
    # What an envelope says of one Sequence goes to its owner, who passes on what it acknowledges or asks of others.
    asked = [one.identifier for one in envelope.ack_requested]
    ours: list[str] = []
    theirs: list[str] = []
    if isinstance(control, CloseSequence | TerminateSequence):
        ours.append(control.identifier)
    elif isinstance(control, CloseSequenceResponse | TerminateSequenceResponse):
        theirs.append(control.identifier)
    elif envelope.fault is not None and envelope.fault.identifier is not None:
        theirs.append(envelope.fault.identifier)
    else:
        ours += asked
        acknowledged = ours if envelope.rm is not None and not envelope.rm.can.creates else theirs
        acknowledged += [one.identifier for one in envelope.acknowledgements]
    numbers = map(worker_of, (*ours, *asked, envelope.relates_to or ""))
    return Named(next((one for one in numbers if one is not None), None), (*ours, *theirs))


def _worker_of_poller(address: str, count: int) -> int:
    # Not hash(), which differs in each process.
    return zlib.crc32(address.encode()) % count


class _Head(msgspec.Struct, array_like=True):
    method: str
    target: str
    headers: dict[bytes, bytes]
    peer: str | None
    secure: bool
    certificate: PeerCertificate | None
    size: int = 0
    """Bytes of a content that is too large; only its head is here."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Head).decode
_known_head = lru_cache(1024)(_decode)


def encode_request(request: Request) -> bytes:
    """Encode a request with everything known about it."""
    spool = request.spool
    size, body = (spool.size, spool.beginning()) if isinstance(spool, HeadSpool) else (0, request.body)
    head = _Head(
        request.method, request.target, dict(request.headers), request.peer, request.secure, request.certificate, size
    )
    encoded = _encode(head)
    return b"%b%b%b" % (struct.pack(">I", len(encoded)), encoded, body)


def decode_request(data: bytes, limits: Limits = DEFAULT) -> Request:
    """Decode a request; ``limits``: those of its envelope."""
    (length,) = struct.unpack_from(">I", data)
    encoded = data[4 : 4 + length]
    head = _known_head(encoded) if length <= SMALL_HEAD else _decode(encoded)
    body, spool = data[4 + length :], None
    if head.size:
        body, spool = b"", HeadSpool(limits, body, head.size)
    request = Request(head.method, head.target, head.headers, body, head.peer, head.secure, head.certificate)
    request.spool = spool
    return request


class Said(msgspec.Struct, array_like=True, frozen=True):
    """The acknowledgements and requests of an envelope, without its message.

    Args:
        versions: Its versions: of SOAP, of WS-Addressing, of WS-RM.
        secret, party, names: Where it came from, as in :class:`~holdfast.core.origin.Origin`.
    """

    versions: tuple[SOAP, Addressing | None, RM | None]
    acknowledgements: tuple[SequenceAcknowledgement, ...]
    requested: tuple[AckRequested, ...]
    secret: str = ""
    party: str = ""
    names: tuple[str, ...] = ()

    @property
    def origin(self) -> Origin:
        return Origin(secret=self.secret, party=self.party, names=self.names)

    def envelope(self) -> Envelope:
        soap, addressing, rm = self.versions
        return Envelope(
            soap,
            addressing,
            rm,
            control=Acknowledge(),
            acknowledgements=self.acknowledgements,
            ack_requested=self.requested,
        )


def sorted_out(envelope: Envelope, origin: Origin, knows: Callable[[str], bool]) -> Said | None:
    """Remove from an envelope the acknowledgements and requests about Sequences of other workers, and return these.

    A peer with Sequences in several workers may report on all of them in one envelope (WS-RM 3.2).

    Args:
        knows: Whether this worker knows a Sequence.

    Returns:
        What the other workers should hear; None: nothing.
    """
    heard = tuple(one for one in envelope.acknowledgements if knows(one.identifier))
    asked = tuple(one for one in envelope.ack_requested if knows(one.identifier))
    if len(heard) == len(envelope.acknowledgements) and len(asked) == len(envelope.ack_requested):
        return None
    if isinstance(envelope.control, _EMPTY) and not heard and not asked:
        return None  # the envelope has nothing else, and no worker knows the Sequence better: answer it here
    said = Said(
        (envelope.soap, envelope.addressing, envelope.rm),
        tuple(one for one in envelope.acknowledgements if one not in heard),
        tuple(one for one in envelope.ack_requested if one not in asked),
        origin.secret,
        origin.party,
        tuple(inbound_names(envelope)),
    )
    envelope.acknowledgements, envelope.ack_requested = heard, asked
    return said


encode_said = _encode
decode_said = msgspec.msgpack.Decoder(Said).decode
