"""SharedTopic: a compacted topic with one partition, in which the nodes of a cluster and its operators leave values.

A key has the value that was written last. Nothing in here knows what the values mean.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from holdfast.exceptions import StoreFailed
from holdfast.store.kafka.address import KafkaAddress
from holdfast.store.kafka.requirements import require_compacted, settings_of_compacted
from holdfast.store.kafka.topic import ANSWER_SECONDS, COMMAND_REMEDY, KafkaLog, said

_ANSWER_LOOKS: Final = 100
"""How often to ask for records before Kafka counts as away: each time waits for its part of ANSWER_SECONDS."""
_MOST_AT_ONCE: Final = 500

Change = tuple[str, bytes | None]
"""A key and its new value; None: it has none any longer."""


class SharedTopic(KafkaLog):
    """The topic of a cluster's nodes.

    Args:
        address: Any partition of the cluster's log.
        name: The name of the topic.
        until: As that of :class:`~holdfast.store.kafka.topic.KafkaLog`.

    Attributes:
        is_at_end: Whether the last call that read found the end.
        position: The offset after the last record that was read.
        clock: Kafka's time when it stored the latest record that was read, in seconds since 1970-01-01 UTC.
        written_at: The same of the latest record that this object wrote.
    """

    _READING: Mapping[str, Any] = {"enable.partition.eof": True}

    def __init__(self, address: KafkaAddress, name: str, until: float | None = None) -> None:
        place = f"the nodes of {address.shown}"
        super().__init__(replace(address, topic=name, partition=0, partitions=1, shown=place), until)
        self._group = address.group
        self._is_reading = False
        self.is_at_end = False
        self.position = 0
        self.clock = self.written_at = 0.0

    def _settings_of_new(self, replicas: int) -> dict[str, str]:
        return settings_of_compacted(replicas)

    def _require(self, found: Mapping[str, str], replicas: int) -> int:
        return require_compacted(found, replicas, self._address)

    def changes(self, wait: float = 0.0) -> list[Change]:
        """Return what was written since the last call; at the first call, from the beginning.

        Args:
            wait: Seconds to wait if there is nothing.

        Raises:
            KafkaAway, StoreFailed: It cannot be read.
        """
        reader = self._reader()
        with self._asking():
            if not self._is_reading:
                reader.assign([TopicPartition(self._address.topic, 0, OFFSET_BEGINNING)])
                self._is_reading, self.position = True, 0
            first = reader.poll(wait) if wait else None  # consume() would wait for as many as it may return
            messages = [] if first is None else [first]
            messages += reader.consume(_MOST_AT_ONCE, 0)
        found: list[Change] = []
        for one in messages:
            error = one.error()
            if error is None:
                found.append(_change_of(one))
                self.position = (one.offset() or 0) + 1
                self.clock = max(self.clock, one.timestamp()[1] / 1000)
                self.is_at_end = False
                self._login.answered()
            elif error.code() == KafkaError._PARTITION_EOF:
                self.position = max(self.position, one.offset() or 0)
                self.is_at_end = True
                self._login.answered()
            else:
                self._is_reading = False
                raise self._explained(KafkaException(error))
        return found

    def content(self) -> dict[str, bytes]:
        """Return all keys with their values, in the order in which the values were written.

        Do not call :meth:`changes` of the same object.

        Raises:
            KafkaAway: Kafka does not answer.
            StoreFailed: It refuses.
        """
        found: dict[str, bytes | None] = {}
        look = self._wait / _ANSWER_LOOKS
        for _ in range(_ANSWER_LOOKS):
            changes = self.changes(look)
            for key, value in changes:
                found.pop(key, None)
                found[key] = value
            if self.is_at_end and not changes:
                return {key: value for key, value in found.items() if value is not None}
        raise self.no_answer("it sends no records")

    def say(self, key: str, value: bytes | None, then: Callable[[bool], None]) -> None:
        """Write a value, without waiting.

        Args:
            key, value: The key, and its new value; None deletes it.
            then: Called during a later :meth:`hear_outcomes`: whether it was written.
        """

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._note_unwritten(error)
            else:
                self._unwritten = None
                self.written_at = message.timestamp()[1] / 1000
                self._login.answered()
            then(error is None)

        try:
            self._writer().produce(self._address.topic, value, key.encode(), partition=0, on_delivery=report)
        except (KafkaException, SystemError, BufferError) as error:
            self.said = said(error)
            if error.args and isinstance(error.args[0], KafkaError):
                self._note_unwritten(error.args[0])
            if not isinstance(error, BufferError):  # what fills the buffer may be written yet
                self.renew()
            then(False)

    def append_elsewhere(self, topic: str, partition: int, record: bytes) -> None:
        """Append a record to a partition of another topic, without waiting and without a second attempt."""
        with contextlib.suppress(KafkaException, SystemError, BufferError):
            self._writer().produce(topic, record, partition=partition)

    def hear_outcomes(self, wait: float = 0.0) -> None:
        """Process the outcomes of what was said."""
        if self._producer is not None:
            self._producer.poll(wait)

    def flush(self, wait: float) -> None:
        """Wait until Kafka has answered all that was said and appended, but no longer than these seconds."""
        if self._producer is not None:
            with contextlib.suppress(KafkaException, SystemError):
                self._producer.flush(wait)

    def put(self, key: str, value: bytes | None) -> None:
        """Write a value, and wait until it is durable.

        Raises:
            StoreFailed: It was not written, as far as is known.
        """
        outcomes: list[bool] = []
        self.say(key, value, outcomes.append)
        for _ in range(_ANSWER_LOOKS):
            if outcomes:
                break
            self.hear_outcomes(ANSWER_SECONDS / _ANSWER_LOOKS)
        if outcomes != [True]:
            why = self.no_answer("no answer")
            raise StoreFailed(
                f"Kafka did not confirm a write to the topic of {self._address.shown}: {why}",
                remedy=why.remedy or COMMAND_REMEDY,
            )


def _change_of(message: Message) -> Change:
    key, value = message.key(), message.value()
    return (key if isinstance(key, bytes) else b"").decode(errors="replace"), (
        value if isinstance(value, bytes) else None
    )
