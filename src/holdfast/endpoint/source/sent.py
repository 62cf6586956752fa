"""What became of a message that was given to a source: durable here, or part of a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from holdfast.exceptions import ConfigurationError
from holdfast.store import is_sql, shown

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from holdfast.core.records import Record
    from holdfast.endpoint.source.pending_sends import Lane
    from holdfast.endpoint.source.source import Source
    from holdfast.exceptions import PeerFault
    from holdfast.store import Store
    from holdfast.store.sql.outgoing import DBConnection


class Sent:
    """A message that is durable here.

    Attributes:
        message_id: Its wsa:MessageID.
        sequence_key: The key of the outbox it is in.
        offset: Its position there.
    """

    def __init__(self, source: Source, lane: Lane, offset: int, message_id: str) -> None:
        self._source = source
        self._lane = lane
        self.message_id = message_id
        self.sequence_key = lane.outbox.key
        self.offset = offset

    @property
    def fault(self) -> PeerFault | None:
        """The fault that the service sent for this message although nobody asked for a reply; None if none has come.

        A service may refuse a message that its RM Destination has acknowledged: WCF does so for an action that it does
        not know, and for an exception in a one-way operation. The fault often comes with the acknowledgement, and may
        come later. This process keeps the last thousand of a key.
        """
        return self._lane.declined.get(self.offset)

    async def acknowledged(self, timeout: float | None = None) -> None:
        """Wait until the destination has it, durably if it is as good as ours.

        Args:
            timeout: Seconds; None waits for ever.

        Raises:
            NotAcknowledged: not in that time. The message is still stored and still tried.
            SequenceFault, SequenceLost, DeliveryError: nothing more is sent until somebody decides; says what to do.
            StoreFailed: the store failed meanwhile. The message was stored before, and is not to be sent again.
        """
        await self._source.wait_acknowledged(self._lane, self.offset, timeout, self.message_id)


class Enqueued:
    """A message that is part of a transaction of the caller's: it leaves when that has committed, and never else.

    It may be awaited, which does nothing: so ``await source.send(…)`` and ``source.send(…)`` both are right.

    Attributes:
        message_id: Its wsa:MessageID.
        sequence_key: The key of the outbox that it will be in.
    """

    def __init__(self, message_id: str, sequence_key: str) -> None:
        self.message_id = message_id
        self.sequence_key = sequence_key

    def __await__(self) -> Generator[Any, None, Enqueued]:
        yield from ()
        return self


def enqueue(connection: Connection | DBConnection, location: str | Path | Store, record: Record) -> Enqueued:
    """Put a message into the caller's transaction, for the source whose store that is.

    Raises:
        ConfigurationError: the store is in no database, or there never was one there.
    """
    from holdfast.store.sql.outgoing import put  # SQLAlchemy is loaded only where it is used

    address = getattr(location, "location", location)
    if not isinstance(address, str) or not is_sql(address):
        raise ConfigurationError(
            f"the source's store, {shown(location)}, is in no database: it cannot be part of a transaction",
            remedy="Give the source a store in the database of that connection, or send without connection=.",
        )
    assert record.message_id is not None
    put(connection, address, record)
    return Enqueued(record.message_id, record.sequence)
