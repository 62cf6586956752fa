"""Served destinations, and a peer that says exactly what it is told to, for the tests of the endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Destination, Versions
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Offer,
    Sequence,
)
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.http.client.client import HTTPClient
from holdfast.wire import action_of, decode, encode, http_headers

ACTION = "urn:test:submit"


@dataclass
class Answer:
    """What came back on HTTP; ``envelope`` is None if the content is empty."""

    status: int
    envelope: Envelope | None
    body: bytes

    @property
    def fault(self) -> str:
        assert self.envelope is not None, self
        assert self.envelope.fault is not None, self.envelope
        return self.envelope.fault.code

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        assert self.envelope is not None, self
        (acknowledgement,) = self.envelope.acknowledgements
        return acknowledgement.ranges


class Peer:
    """An RM Source without any sense of its own: one method for each thing to say."""

    def __init__(self, url: str, versions: Versions) -> None:
        self.url = url
        self.versions = versions
        self.identifier = ""
        self._http = HTTPClient()
        self._count = 0

    async def post(self, body: bytes, headers: dict[str, str]) -> Answer:
        response = await self._http.fetch("POST", self.url, body, headers)
        envelope = decode(response.body) if b"Envelope" in response.body else None
        return Answer(response.status, envelope, response.body)

    async def say(self, **fields: Any) -> Answer:
        versions = self.versions
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, to=self.url)
        for name, value in fields.items():
            setattr(envelope, name, value)
        return await self.post(encode(envelope), http_headers(envelope.soap, action_of(envelope)))

    def new_id(self) -> str:
        self._count += 1
        return f"urn:test:{id(self)}:{self._count}"

    async def create(
        self, acks_to: str | None = None, offer: str | None = None, reply_to: str | None = None, **fields: Any
    ) -> Answer:
        reference = EndpointReference(acks_to) if acks_to is not None else ANONYMOUS_EPR
        control = CreateSequence(reference, offer=Offer(offer, ANONYMOUS_EPR) if offer else None)
        to = EndpointReference(reply_to) if reply_to is not None else ANONYMOUS_EPR
        answer = await self.say(**{"control": control, "message_id": self.new_id(), "reply_to": to} | fields)
        if answer.envelope is not None and isinstance(answer.envelope.control, CreateSequenceResponse):
            self.identifier = answer.envelope.control.identifier
        return answer

    async def message(self, number: int, body: bytes = b"<a/>", action: str = ACTION, **fields: Any) -> Answer:
        sequence = Sequence(fields.pop("identifier", self.identifier), number)
        return await self.say(sequence=sequence, body=body, action=action, **fields)

    async def request(self, number: int, body: bytes = b"<a/>", action: str = ACTION, **fields: Any) -> Answer:
        fields = {"message_id": self.new_id(), "reply_to": ANONYMOUS_EPR} | fields
        return await self.message(number, body, action, **fields)

    async def close(self) -> None:
        await self._http.close()


Serve = Callable[..., Awaitable[Service]]
MakePeer = Callable[..., Peer]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Serves destinations until the test is over; arguments beyond the destination are :class:`Listeners`'.

    Those that begin with ``admin_`` are :class:`AdminListener`'s. It asks for ``tmp_path`` since the stores there are
    closed before that directory is removed.
    """
    services = []

    async def start(app: Destination, **where: Any) -> Service:
        admin = {name: where.pop(name) for name in list(where) if name.startswith("admin_")}
        listener = AdminListener(**{"port": 0} | {name.removeprefix("admin_"): value for name, value in admin.items()})
        service = Service(app, replace(Listeners(port=0, admin=listener), **where))
        await service.start()
        services.append(service)
        return service

    yield start
    for service in services:
        await service.close(0.5)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[MakePeer]:
    """Makes scripted peers; closes them before ``tmp_path``, which may have their stores, is removed."""
    peers = []

    def make(url: str, versions: Versions | None = None) -> Peer:
        peers.append(Peer(url, versions or Versions()))
        return peers[-1]

    yield make
    for one in peers:
        await one.close()
