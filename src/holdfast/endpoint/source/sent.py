"""Results of ``send``: a message that is durable in the store, or one in a transaction of the caller."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from holdfast.exceptions import ConfigurationError
from holdfast.store import is_sql, shown

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from holdfast.core.records import Record
    from holdfast.endpoint.source.calls import Calls
    from holdfast.endpoint.source.pending_sends import Lane
    from holdfast.exceptions import PeerFault
    from holdfast.store import Store
    from holdfast.store.sql.outgoing import DBConnection


class Sent:
    """A message that is durable in the source's store.

    Attributes:
        message_id: The wsa:MessageID of the message.
        sequence_key: The key of the outbox that holds the message.
        offset: The position of the message in that outbox.
    """

    def __init__(self, calls: Calls, lane: Lane, offset: int, message_id: str) -> None:
        self._calls = calls
        self._lane = lane
        self.message_id = message_id
        self.sequence_key = lane.outbox.key
        self.offset = offset

    def __repr__(self) -> str:
        return f"<Sent {self.message_id} sequence_key={self.sequence_key!r} offset={self.offset}>"

    @property
    def fault(self) -> PeerFault | None:
        """The fault that the service sent for this one-way message; None if none has arrived.

        A service may reject a message that its RM Destination has acknowledged: WCF does so for an unknown action, and
        for an exception in a one-way operation. The fault often arrives with the acknowledgement, but may arrive later.
        The source keeps the newest thousand faults of each key in memory.
        """
        return self._lane.declined.get(self.offset)

    async def acknowledged(self, timeout: float | None = None) -> None:
        """Wait until the destination has acknowledged the message.

        A destination that stores messages before it acknowledges them, as Holdfast does, then has the message durably.

        Args:
            timeout: Seconds; None: no limit.

        Raises:
            NotAcknowledged: the acknowledgement did not arrive in time. The source keeps the message and keeps retrying
                it.
            SequenceFault, SequenceLost, DeliveryError: the source has stopped sending until the operator decides; the
                error describes how to proceed.
            StoreFailed: the store failed during the wait. The message was stored before that; do not send it again.
        """
        await self._calls.wait_acknowledged(self._lane, self.offset, timeout, self.message_id)


class Enqueued:
    """A message in a transaction of the caller. The source sends it only if the transaction commits.

    Awaiting it does nothing, so both ``await source.send(…)`` and ``source.send(…)`` are correct.

    Attributes:
        message_id: The wsa:MessageID of the message.
        sequence_key: The key of the outbox that will hold the message.
    """

    def __init__(self, message_id: str, sequence_key: str) -> None:
        self.message_id = message_id
        self.sequence_key = sequence_key

    def __repr__(self) -> str:
        return f"<Enqueued {self.message_id} sequence_key={self.sequence_key!r}>"

    def __await__(self) -> Generator[Any, None, Enqueued]:
        yield from ()
        return self


def enqueue(
    connection: Connection | DBConnection, location: str | Path | Store, record: Record, *, is_chosen: bool
) -> Enqueued:
    """Add a message to the caller's transaction, for the source with that store.

    Args:
        is_chosen: Whether the application chose the MessageID, so that the message is stored once.

    Raises:
        EnvelopeError: another transaction stored another message with the MessageID that the application chose.
        ConfigurationError: the store is not in a database, or the database never had a store there.
    """
    from holdfast.store.sql.outgoing import put  # SQLAlchemy is loaded only where it is used

    address = getattr(location, "location", location)
    if not isinstance(address, str) or not is_sql(address):
        raise ConfigurationError(
            f"the source's store {shown(location)} is not in a database: it cannot take part in a transaction",
            remedy="Give the source a store in the database of that connection, or send without connection=.",
        )
    assert record.message_id is not None
    put(connection, address, record, is_chosen=is_chosen)
    return Enqueued(record.message_id, record.sequence)
