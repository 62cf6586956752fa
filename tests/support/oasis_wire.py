"""The network of the OASIS scenarios: it notes every envelope, and loses message 2 of each Sequence once."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast.core.messages import Envelope
from holdfast.testing.proxy import Fate, LossyProxy, Relayed, _Plan
from holdfast.wire import decode


def content_of(message: bytes) -> bytes:
    """Return the content of an HTTP message, without its chunks."""
    head, _, content = message.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return content
    parts = []
    while content:
        size, _, content = content.partition(b"\r\n")
        length = int(size.partition(b";")[0] or b"0", 16)
        parts.append(content[:length])
        content = content[length + 2 :] if length else b""
    return b"".join(parts)


class Wire(LossyProxy):
    """Notes every envelope that passes, and loses message 2 of each Sequence the first time, or every time."""

    def __init__(self, target: str, *, every_time: bool = False) -> None:
        super().__init__(target, on_relayed=self._note)
        self._every_time = every_time
        self.asked: list[Envelope] = []
        self.answered: list[Envelope | None] = []
        self.lost: list[Envelope] = []

    async def _carry(self, request: bytes, plan: _Plan) -> Relayed:
        envelope = decode(content_of(request))
        sequence = envelope.sequence
        if (
            sequence is not None
            and sequence.message_number == 2
            and (self._every_time or sequence not in (one.sequence for one in self.lost))
        ):
            self.lost.append(envelope)
            plan = _Plan(lose_request=True, lose_response=False, double=False, delay=None)
        relayed = await super()._carry(request, plan)
        reply = _envelope(relayed.response)
        if reply is None or reply.sequence is None or reply.sequence.message_number != 2:
            return relayed
        if reply.sequence in (one.sequence for one in self.lost):
            return relayed
        self.lost.append(reply)
        return dataclasses.replace(relayed, fate=Fate.RESPONSE_LOST)

    def _note(self, relayed: Relayed) -> None:
        self.asked.append(decode(content_of(relayed.request)))
        self.answered.append(_envelope(relayed.response))

    def controls(self, kind: type[Any]) -> list[Any]:
        return [one.control for one in [*self.asked, *self.answered] if one and isinstance(one.control, kind)]

    def numbers(self) -> list[int]:
        return [one.sequence.message_number for one in self.asked if one.sequence is not None and one.control is None]


def _envelope(response: bytes | None) -> Envelope | None:
    """Return the envelope in an HTTP response."""
    body = content_of(response or b"")
    return decode(body) if b"Envelope" in body else None
