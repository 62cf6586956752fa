"""Unsent messages, for the admin listener and the command line: list, discard and retry them.

The name of a message is its place: ``KEY/OFFSET``, or the offset alone if the key is empty. A place never changes and
is never reused. Replies in the answers to a requester are not included: they end with the requester's Sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.core.forwarding.forwarded_requests import tell_requesters
from holdfast.core.forwarding.undeliverable import discard
from holdfast.core.origin import without_secrets
from holdfast.core.queues.queue_records import ReadRecords
from holdfast.core.receiving.replies import Replies
from holdfast.core.records import Record
from holdfast.core.sending.outbound import Outbound
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.steering import NotSteered
from holdfast.endpoint.envelopes.attachments import describe_attachments
from holdfast.endpoint.envelopes.fault_replies import set_aside
from holdfast.exceptions import ConfigurationError

FORWARDER = "forwarder/"
"""Before a forwarder's name and the number of a partition: the key of the outbox that sends it on."""


def forwarder_key(name: str, partition: int) -> str:
    return f"{FORWARDER}{name}/{partition}"


def forwarder_of(key: str) -> str | None:
    """Return the name of the forwarder that owns the outbox with that key; None for other outboxes."""
    return key.removeprefix(FORWARDER).rpartition("/")[0] if key.startswith(FORWARDER) else None


FORWARDER_STATES = ("sending", "suspended", "stopped", "ending")


def state_of(outbox: Outbox) -> str:
    """Whether an outbox sends, in a word: one of :data:`FORWARDER_STATES`."""
    if outbox.lifecycle.stopped:
        return "stopped"
    if outbox.lifecycle.suspended is not None:
        return "suspended"
    return "ending" if outbox.lifecycle.is_ending else "sending"


def is_called(name: str, key: str) -> bool:
    """Whether a name is that key, as it is or as answers show it."""
    return name in (key, without_secrets(key))


def check_one(name: str, count: int) -> None:
    """Check that no more than one outbox or forwarder has a name: a peer's address may look like another one as shown.

    Raises:
        NotSteered: More have it.
    """
    if count > 1:
        what = f"{count} outboxes are shown with the name {name[:500]!r}"
        raise NotSteered(what, remedy="Name one of them by its address with the secret, which the peer knows.")


class Outboxes:
    """The outboxes of a running endpoint, or of a store that no process has open."""

    def __init__(self, outbound: Outbound, read: ReadRecords, replies: Callable[[], Replies]) -> None:
        self._outbound = outbound
        self._read = read
        self._replies = replies

    @property
    def count(self) -> int:
        """Number of unacknowledged messages."""
        return sum(outbox.records.waiting for outbox in self._all())

    def _all(self) -> list[Outbox]:
        outboxes = self._outbound.outboxes.values()
        return sorted((one for one in outboxes if not one.is_for_replies), key=lambda one: one.key)

    def _named(self, key: str) -> list[Outbox]:
        """Return the outbox, if there is one, with a key as it is, or as an answer shows it.

        Raises:
            NotSteered: several have it.
        """
        found = [one for one in self._all() if is_called(key, one.key)]
        check_one(key, len(found))
        return found

    def listed(self, limit: int) -> list[dict[str, Any]]:
        """Return the first ``limit`` unacknowledged messages, in the order of their keys."""
        shown: list[dict[str, Any]] = []
        for outbox in self._all():
            for offset, record in self._records(outbox):
                if len(shown) >= limit:
                    return shown
                shown.append(_describe(outbox, offset, record))
        return shown

    def _records(self, outbox: Outbox) -> Iterator[tuple[int, Record]]:
        at = outbox.records.first
        while at < outbox.records.durable_end:
            found = self._read(outbox.records.queue.name, outbox.records.partition, at, outbox.records.durable_end)
            if not found:
                return
            for offset, record in found:
                at = offset + 1
                if not outbox.records.is_acknowledged(offset):
                    yield offset, record

    def shown(self, name: str) -> dict[str, Any]:
        """Return one message with its body.

        Raises:
            ConfigurationError: there is no such message, or it is acknowledged.
        """
        outbox, offset = self.find(name)
        found = self.read(name)
        if not found:  # acknowledged meanwhile, and deleted
            raise _missing(name)
        record = found[0][1]
        return _describe(outbox, offset, record) | {
            "in_doubt": self.others_in_doubt(name),
            "headers": record.headers.decode("utf-8", "replace"),
            "body": record.body.decode("utf-8", "replace"),
        }

    def read(self, name: str) -> list[tuple[int, Record]]:
        """Read one message, with its offset; nothing if it was acknowledged meanwhile, and deleted.

        Raises:
            ConfigurationError: there is no such message, or it is acknowledged.
        """
        outbox, offset = self.find(name)
        return self._read(outbox.records.queue.name, outbox.records.partition, offset, offset + 1)

    def find(self, name: str) -> tuple[Outbox, int]:
        """Find the outbox and the offset of a message.

        Raises:
            ConfigurationError: there is no such message, or it is acknowledged.
            NotSteered: several outboxes have the name.
        """
        key, _, digits = name.rpartition("/")
        outbox = next(iter(self._named(key)), None)
        # Python refuses to convert thousands of digits, and no offset has more than 19.
        offset = int(digits[:19]) if digits.isascii() and digits.isdecimal() else -1
        if (
            outbox is None
            or not outbox.records.first <= offset < outbox.records.durable_end
            or outbox.records.is_acknowledged(offset)
        ):
            raise _missing(name)
        return outbox, offset

    def others_in_doubt(self, name: str) -> int:
        """Return how many other messages may have arrived and are retransmitted if this one is discarded.

        Raises:
            ConfigurationError: there is no such message.
        """
        outbox, offset = self.find(name)
        return outbox.records.in_doubt() - 1 if outbox.records.may_have_left(offset) else 0

    def discard(self, name: str, found: list[tuple[int, Record]], now: float) -> None:
        """Discard one message; see :func:`~holdfast.core.forwarding.undeliverable.discard`. The requester of a
        forwarded request gets a fault.

        Args:
            found: What the store has there, as :meth:`read` returns it.

        Raises:
            ConfigurationError: there is no such message.
        """
        outbox, offset = self.find(name)
        if outbox.forwarding is not None:
            tell_requesters(self._outbound.registry, self._replies(), outbox, found, set_aside, now)
        discard(self._outbound.registry, outbox, offset, now)

    def retry(self, key: str | None, now: float) -> int:
        """Resume stopped outboxes with all their messages, and let the others make their next attempt now.

        Returns the number of stopped outboxes.

        Args:
            key: Of one outbox; None: of all.

        Raises:
            ConfigurationError: no outbox has that key.
            NotSteered: several have it.
        """
        chosen = self._all() if key is None else self._named(key)
        if key is not None and not chosen:
            raise no_key(key)
        stopped = [one for one in chosen if one.lifecycle.stopped]
        for outbox in chosen:
            self._outbound.hurry(outbox, now)
        for outbox in stopped:
            outbox.resume(outbox.lifecycle.choices, now)
            if outbox.source is not None:
                self._outbound.commit.save(outbox.source.local_id, outbox.source)
        return len(stopped)


def _describe(outbox: Outbox, offset: int, record: Record) -> dict[str, Any]:
    source = outbox.source
    has_left = outbox.records.may_have_left(offset)
    attachments = {"attachments": describe_attachments(record.attachments)} if record.attachments else {}
    return attachments | {
        "message": f"{outbox.key}/{offset}" if outbox.key else str(offset),
        "key": outbox.key,
        "offset": offset,
        "message_id": record.message_id,
        "action": record.action,
        "to": outbox.to,
        "state": "sent" if has_left else "waiting",
        "stopped": outbox.lifecycle.stopped,
        "sequence": source.identifier if source is not None and has_left else None,
        "number": offset - source.numbers.start + 1 if source is not None and has_left else None,
        "wants_reply": record.wants_reply,
        "bytes": len(record.body),
        "stored_at": record.received_at,
    }


def no_key(key: str) -> ConfigurationError:
    return ConfigurationError(f"no message has the key {key!r}", remedy="List the keys with holdfast outbox.")


def _missing(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"the message {name[:200]!r} is not waiting here", remedy="List the waiting messages with holdfast outbox."
    )
