"""TopicClaims: the Identifiers that peers granted to the partitions of a cluster, in a compacted topic.

A claim is a key, so it stays while its partition moves, or has no owner. The order of the topic decides: an Identifier
belongs to the partition that claimed it first and has not released it. A worker that claims one writes its claim, and
reads on until it finds that.

An owner that was paused, and wakes after another node took its partition over, is not trusted, and writes nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final

from holdfast.cluster.group.pictures import identifiers_of
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.core.sending.identifier_claims import ClaimResult, GrantedIdentifier
from holdfast.exceptions import StoreFailed
from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.topic import KafkaAway

PATIENCE: Final = 2.0
"""Seconds that a call waits for Kafka, in the thread of the caller. The next one continues what it began."""
MOST_CLAIMS: Final = 65_536
"""Claims of one partition."""
_LOOK: Final = 0.02


def topic_of(location: str) -> SharedTopic:
    """Return the topic of the cluster at the URL of a log."""
    address = read_kafka_address(location)
    return SharedTopic(address, identifiers_of(address))


class TopicClaims:
    """The claims of one partition. See :class:`~holdfast.core.sending.identifier_claims.IdentifierClaims`.

    Args:
        partition: The number of the partition.
        is_trusted: Whether this process may act for the partition now.
        open_topic: Returns the topic. Called when it is first needed: most workers have no forwarder.
    """

    def __init__(self, partition: int, is_trusted: Callable[[], bool], open_topic: Callable[[], SharedTopic]) -> None:
        self._partition = partition
        self._is_trusted = is_trusted
        self._open_topic = open_topic
        self._table: dict[str, dict[str, bytes]] = {}
        """Digest -> the keys of its claims with their values, in the order of the topic."""
        self._ours: dict[str, str] = {}
        """Sequence -> the key of its claim."""
        self._released: set[str] = set()
        """Keys that must be deleted."""
        self._missing: set[str] = set()
        """Keys of recovered Sequences that must be written, unless the topic has them."""
        self._is_announced = False

    def announce(self, recovered: Iterable[GrantedIdentifier]) -> None:
        """Replace this partition's claims by those of its recovered Sequences, at the next call that needs Kafka."""
        self._ours = {one.local_id: self._key(one) for one in recovered}
        self._missing = set(self._ours.values())
        self._is_announced = False

    def claim(self, granted: GrantedIdentifier) -> ClaimResult:
        """Claim an Identifier, unless another partition does. A repeated claim of the same Sequence succeeds."""
        if granted.local_id in self._ours:
            return ClaimResult.CLAIMED
        if len(self._ours) >= MOST_CLAIMS:
            return ClaimResult.FULL
        until, key, value = time.monotonic() + PATIENCE, self._key(granted), secrets.token_bytes(8)
        try:
            if not self._announce(until):
                return ClaimResult.UNKNOWN
            self._released.add(key)  # until it is known that it counts
            if not self._write(key, value, until) or not self._read(lambda: self._has(key, value), until):
                return ClaimResult.UNKNOWN
            if self._is_used(key):
                self._delete(until)
                return ClaimResult.IN_USE
        except (KafkaAway, StoreFailed):
            return ClaimResult.UNKNOWN
        self._released.discard(key)
        self._ours[granted.local_id] = key
        return ClaimResult.CLAIMED

    def release(self, local_id: str) -> None:
        """Release the claim of a Sequence, if it has one. If Kafka does not answer, a later call does so."""
        key = self._ours.pop(local_id, None)
        if key is None:
            return
        self._missing.discard(key)
        self._released.add(key)
        try:
            self._delete(time.monotonic() + PATIENCE)
        except (KafkaAway, StoreFailed):
            pass

    @cached_property
    def _topic(self) -> SharedTopic:
        return self._open_topic()

    # --- the topic --------------------------------------------------------------------------------------------------

    def _announce(self, until: float) -> bool:
        """Bring the claims of this partition up to date; return whether they are."""
        if not self._is_announced:
            if not self._read(lambda: self._topic.is_at_end, until):
                return False
            known = {key for keys in self._table.values() for key in keys if _partition_of(key) == self._partition}
            self._released |= known.difference(self._ours.values())
            self._missing -= known
            for key in sorted(self._missing):
                if not self._write(key, secrets.token_bytes(8), until):
                    return False
                self._missing.discard(key)
            self._is_announced = True
        self._read(lambda: True, until)
        return self._delete(until)

    def _delete(self, until: float) -> bool:
        for key in sorted(self._released):
            if not self._write(key, None, until):
                return False
            self._released.discard(key)
        return True

    def _write(self, key: str, value: bytes | None, until: float) -> bool:
        """Write a claim, or delete it; return whether it is known to be durable."""
        if not self._is_trusted():
            return False
        outcomes: list[bool] = []
        self._topic.say(key, value, outcomes.append)
        while not outcomes and time.monotonic() < until:
            self._topic.hear_outcomes(_LOOK)
        return outcomes == [True]

    def _read(self, is_done: Callable[[], bool], until: float) -> bool:
        """Read what was written since the last time, until something is so; return whether it is."""
        wait = 0.0
        while True:
            for key, value in self._topic.changes(wait):
                keys = self._table.setdefault(key.partition(" ")[0], {})
                if value is None:
                    keys.pop(key, None)
                else:
                    keys[key] = value
                if not keys:
                    del self._table[key.partition(" ")[0]]
            if is_done():
                return True
            if time.monotonic() >= until:
                return False
            wait = _LOOK

    def _has(self, key: str, value: bytes) -> bool:
        return self._table.get(key.partition(" ")[0], {}).get(key) == value

    def _is_used(self, key: str) -> bool:
        """Whether another partition has claimed an Identifier, before the claim with this key."""
        for one in self._table.get(key.partition(" ")[0], ()):
            if one == key:
                break
            if _partition_of(one) != self._partition:
                return True
        return False

    def _key(self, granted: GrantedIdentifier) -> str:
        return f"{granted.digest.hex()} {self._partition} {granted.local_id}"


def _partition_of(key: str) -> int:
    number = key.split(" ")[1:2]
    return int(number[0]) if number and number[0].isascii() and number[0].isdigit() else -1
