"""MessageIDs of the messages in an outbox, so that a repeated message with the same MessageID is stored once."""

from __future__ import annotations

import asyncio
from hashlib import sha256

from holdfast.core.messages import Envelope
from holdfast.core.records import Record, own_bytes
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.records import outbox_queue
from holdfast.endpoint.engine.engine import Engine
from holdfast.exceptions import EnvelopeError

_MARK = b"\xc1"
"""Begins the digest of a request in the record of its reply. The facts of a transport never begin so."""
REMEMBERED = 10_000
"""MessageIDs that are remembered of one outbox: those of its newest messages."""


class GivenIds:
    """The newest MessageIDs that the program chose, each with a digest of its message.

    It outlives the messages, which the store deletes once they are acknowledged. A stored reply has the digest of its
    request, so no process gives it to another request.
    """

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}
        self._stored: dict[str, bytes] = {}
        """The same of requests from the store, whose MessageIDs the program may not have chosen: they displace none of
        those that it chose."""

    def add(self, message_id: str, digest: bytes) -> None:
        _add(self._digests, message_id, digest)

    def read(self, queue: str, records: list[tuple[int, Record]]) -> None:
        """Remember the digests of requests that come from the store. Each request of an earlier process does, before
        its reply can arrive."""
        for _, record in records if queue.startswith(outbox_queue("")) else ():
            if record.wants_reply and record.message_id is not None and not self._find(record.message_id):
                _add(self._stored, record.message_id, _digest(record))

    def _find(self, message_id: str | None) -> bytes | None:
        found = self._digests.get(message_id or "")
        return self._stored.get(message_id or "") if found is None else found

    def mark(self, reply: Envelope) -> None:
        """Let a reply be stored with the digest of its request."""
        digest = self._find(reply.relates_to)
        if digest is not None:
            reply.transport = _MARK + digest

    def read_mark(self, reply: Record) -> None:
        """Remember the digest of the request of a stored reply."""
        if reply.relates_to is not None and reply.transport[:1] == _MARK:
            self.add(reply.relates_to, reply.transport[1:])

    def check(self, record: Record) -> bytes:
        """Compare a message with the earlier one that has its MessageID, and return its digest.

        Raises:
            EnvelopeError: their bodies, actions or headers differ.
        """
        digest = _digest(record)
        if (self._find(record.message_id) or digest) != digest:
            raise EnvelopeError(
                f"another message with the MessageID {record.message_id} was sent before",
                remedy="Use a different MessageID for each message, or none. The same message may be sent again.",
            )
        return digest


def _add(digests: dict[str, bytes], message_id: str, digest: bytes) -> None:
    digests[message_id] = digest
    if len(digests) > REMEMBERED:
        del digests[next(iter(digests))]


def _digest(record: Record) -> bytes:
    found = sha256()
    for part in (record.action.encode(), record.headers, record.body):
        # With its length, or bytes could move from one part to the next unnoticed.
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.digest()


class MessageIds:
    """The MessageIDs of the newest messages of one outbox. It reads the outbox once, when it is first asked."""

    def __init__(self, engine: Engine, outbox: Outbox) -> None:
        self._engine = engine
        self._outbox = outbox
        self._offsets: dict[str, int] | None = None
        """None until the first lookup; most programs never look up a MessageID."""
        self._reading: asyncio.Future[None] | None = None

    def add(self, message_id: str, offset: int) -> None:
        if self._offsets is not None:
            self._offsets[message_id] = offset
            if len(self._offsets) > REMEMBERED:
                del self._offsets[next(iter(self._offsets))]

    async def find(self, message_id: str) -> int | None:
        """Return the offset of the unacknowledged message with that MessageID; None without one.

        Raises:
            StoreError: the store cannot be read.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        # Shielded: another caller may wait for the same read.
        await asyncio.shield(self._reading)
        offset = (self._offsets or {}).get(message_id)
        return None if offset is None or self._outbox.records.is_acknowledged(offset) else offset

    async def check_same(self, offset: int, record: Record) -> None:
        """Compare a message with the stored one that has its MessageID.

        Raises:
            EnvelopeError: they differ.
            StoreError: the store cannot be read.
        """
        outbox = self._outbox
        for _, stored in (
            await self._engine.records(outbox.records.queue.name, outbox.records.partition, offset, offset + 1)
        )[:1]:
            if _content(stored) != _content(record):
                raise EnvelopeError(
                    f"another message with the MessageID {record.message_id} is not acknowledged yet",
                    remedy="Use a different MessageID for each message, or none. The same message may be sent again.",
                )

    async def _read(self) -> None:
        outbox, self._offsets = self._outbox, {}
        end = outbox.records.end
        at = max(outbox.records.first, end - REMEMBERED)
        found: dict[str, int] = {}
        for offset in range(max(at, outbox.records.durable_end), end):  # on its way to the store, and so in memory
            record = outbox.records.record(offset)
            if record is not None and record.message_id is not None:
                found[record.message_id] = offset
        end = min(end, outbox.records.durable_end)
        while at < end:
            records = await self._engine.records(outbox.records.queue.name, outbox.records.partition, at, end)
            at = max(records[-1][0] + 1 if records else end, outbox.records.first)
            found.update({one.message_id: offset for offset, one in records if one.message_id is not None})
        self._offsets = found | self._offsets  # what was submitted meanwhile is newer


def _content(record: Record) -> tuple[str, bytes, bytes, bool, bytes]:
    return record.action, record.body, record.headers, record.wants_reply, own_bytes(record.attachments)
