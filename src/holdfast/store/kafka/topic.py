"""KafkaLog: one partition of a topic, through librdkafka. Knows records as bytes, and no rule of the log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from holdfast.exceptions import ConfigurationError, StoreAway, StoreFailed, StoreFormatError, StoreMissing, counted
from holdfast.store.kafka.address import KafkaAddress
from holdfast.store.kafka.login import KafkaAway, KafkaLogin, Refusal
from holdfast.store.kafka.requirements import PERMISSIONS, RECORD_BYTES, require_safe, settings_of

T = TypeVar("T")

ANSWER_SECONDS: Final = 10.0
"""Seconds that Kafka may need for one answer."""
_LOOK_SECONDS: Final = 0.2
_READ_AHEAD_KILOBYTES: Final = 2 << 10
"""Kilobytes of waiting records at which the client stops fetching."""
_READ_AHEAD_PAUSE: Final = 10
"""Milliseconds after which the client looks again whether it may fetch more. Its default of a second is longer than the
store needs for what it has."""
_FETCH_BYTES: Final = 1 << 20
"""Bytes of records in one fetch. Kafka sends a larger record whole, too."""
_FETCHED: Final = 500
"""Records that are taken from the client at a time."""
_FIRST_SECONDS: Final = 1.0
"""Seconds after which an opening looks why there is no answer yet."""
REMEDY: Final = "Check that the Kafka cluster is running and reachable, then start again."
_UNWRITTEN: Final = "Check the settings of the topic {0}, then start again. Acknowledged messages are stored."
COMMAND_SECONDS: Final = 8.0
"""Seconds that a command waits for all answers of Kafka together."""
COMMAND_REMEDY: Final = "Check that the Kafka cluster is running and reachable, then run the command again."
_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._DESTROY_BROKER,  # the client drops the address it began with once it knows the brokers
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.INVALID_REPLICATION_FACTOR,  # fewer brokers than replicas are up, perhaps for a while
    }
)
"""Errors that pass: a broker is down, or a new leader is being elected."""


class NotPermitted(StoreFailed):
    """The user lacks a permission, which an operator may give back."""


def once_it_can(call: Callable[[], T], patience: float = ANSWER_SECONDS, *, is_known: bool = False) -> T:
    """Make a call that only reads; again, if a broker answers that it cannot do that now: a leader moves, for example.

    Without an answer of a broker, the call is not repeated: it has waited itself.

    Args:
        call: Calls Kafka's client.
        patience: Seconds after which it is not made again.
        is_known: Whether a broker knows the topic. Then another one that does not will hear of it.

    Raises:
        KafkaException: Kafka's last answer.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return call()
        except KafkaException as error:
            code = error.args[0].code()
            is_passing = code in _PASSING or (is_known and code == KafkaError.UNKNOWN_TOPIC_OR_PART)
            # A negative code is librdkafka's own: no broker has answered.
            if code < 0 or not is_passing or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)


class KafkaLog:
    """A partition of a topic.

    Args:
        address: Where it is.
        until: When a command gives up, by the monotonic clock; None: each request has its own time.

    Attributes:
        identity: The cluster, the topic and the partition, as Kafka names them.
        partitions: How many partitions the topic has.
        brokers: How many brokers of Kafka are up.
        replicas: How many replicas of each partition are in sync, and how many there are.
        most: Maximum bytes of a record's value.
        said: What Kafka said last when it failed.
        has_created: Whether this object created the topic.
        is_passing: Whether the last append failed for a reason that passes.
    """

    # A broker answers a connection in order. So a question for the end of the log waits for a fetch that finds nothing.
    _READING: Mapping[str, Any] = {"fetch.wait.max.ms": 50}

    def __init__(self, address: KafkaAddress, until: float | None = None) -> None:
        self._address = address
        self._group = address.group
        self._until = until
        self.identity: dict[str, str] = {}
        self.partitions = self.brokers = 0
        self.replicas: list[tuple[int, int]] = []
        self.most = RECORD_BYTES
        self.said = ""
        self.has_created = False
        self.is_passing = True
        self._login = KafkaLogin(address)
        self._clients = threading.Lock()
        """Held while clients get another password, which a closed one must not."""
        self._unwritten: KafkaError | None = None
        self._is_unreachable = False
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._position = -1
        self._ahead: deque[tuple[int, bytes | None]] = deque()
        self._trimming: list[Any] = []
        self._client: AdminClient | None = None

    @property
    def _admin(self) -> AdminClient:
        """The client for questions, made for the first one: without a password, the owner waits there."""
        if self._client is None:
            self._client = self._new_admin()
        return self._client

    def check(self) -> None:
        """Raise a ConfigurationError if Kafka's client does not accept the options of the URL."""
        with contextlib.suppress(KafkaAway):
            self._new_admin()

    def _new_admin(self) -> AdminClient:
        try:
            return AdminClient(self._settings())
        except (KafkaException, ValueError, TypeError) as error:
            text, options = said(error), self._address.options.items()
            files = [f" The file is {file}." for name, file in options if name[-9:] == ".location" and name in text]
            raise ConfigurationError(
                f"Kafka's client refuses a setting of {self._address.shown}: {text}{''.join(files)}",
                remedy="Check the options of the URL against the settings of librdkafka.",
            ) from error

    def _settings(self, **others: Any) -> dict[str, Any]:
        return {**self._login.settings(self._hear), **others}

    def _hear(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_unreachable = True
            self.said = self.said or f"{error.str()}, or they have another security.protocol than the URL"
            return
        self.said = error.str()

    @property
    def refusal(self) -> Refusal | None:
        """Return why Kafka does not accept this client; None: it does, as far as is known."""
        return self._login.refusal

    def no_answer(self, why: str) -> KafkaAway:
        """Return the error for a missing answer: with the refusal or what Kafka said last, instead of a reason.

        If the last write lacked a permission, the remedy names it.
        """
        return self._login.away(self.said or why, self._permission(self._unwritten))

    def _permission(self, error: KafkaError | None) -> str:
        """Return what to permit the user because of an error; "": it is about something else."""
        needed = PERMISSIONS.get(error.code(), "") if error is not None else ""
        return needed.format(self._address.topic, self._group)

    def follow_password(self) -> None:
        """Use a new password in its file for the next connections. Any thread may call it."""
        with self._clients:
            self._login.renew(self._client, self._producer, self._consumer)

    @property
    def _wait(self) -> float:
        """Return the seconds that Kafka may need for the next answer."""
        if self._until is None:
            return ANSWER_SECONDS
        return min(ANSWER_SECONDS, max(_LOOK_SECONDS, self._until - time.monotonic()))

    # --- the topic ------------------------------------------------------------------------------------------------

    def open(self, *, creates: bool) -> None:
        """Find the topic, and check its settings.

        Args:
            creates: Whether to create a missing topic.

        Raises:
            ConfigurationError: Kafka does not accept this client, or the topic is not safe, or has no such partition.
            StoreMissing: There is no such topic.
            KafkaAway: Kafka does not answer.
            StoreFailed: Kafka refuses a request.
        """
        try:
            with self._asking():
                metadata = self._metadata()
                found = self._find(creates=creates)
                configs = self._configs()
        except KafkaAway:
            # A client that has lost its first connection may never open another one, although Kafka is back.
            self._client = None
            raise
        address = self._address
        self.partitions = len(found.partitions)
        if address.partition >= self.partitions:
            what = (
                f"The topic of {address.shown} has {self.partitions} partitions, and no partition {address.partition}."
            )
            if not creates:
                raise StoreMissing(what, remedy="Check the partition in the URL.")
            raise ConfigurationError(what, remedy="Start fewer workers, or add partitions to the topic.")
        self.brokers = len(metadata.brokers)
        self.replicas = [(len(one.isr), len(one.replicas)) for one in found.partitions]
        self.most = self._require(configs, min(wanted for _, wanted in self.replicas))
        self.identity = {
            "cluster": str(metadata.cluster_id),
            "topic": address.topic,
            "topic_id": str(found.topic_id),
            "partition": str(address.partition),
        }

    def _metadata(self) -> Any:
        """Return what Kafka reports about the topic. Wait no longer than it makes sense."""
        deadline = time.monotonic() + self._wait
        while True:
            try:
                return self._admin.list_topics(self._address.topic, timeout=_FIRST_SECONDS)
            except KafkaException as error:
                self._admin.poll(0)  # calls _hear
                if self.refusal is not None:
                    raise self._refused(self.refusal) from error
                if error.args[0].code() not in _PASSING:
                    raise
                if self._is_unreachable or time.monotonic() > deadline:
                    self._is_unreachable = False
                    raise self._login.away(self.said or said(error)) from error
                time.sleep(_LOOK_SECONDS)  # without any connection, the client answers at once

    def _refused(self, refusal: Refusal) -> ConfigurationError:
        text = f"Kafka and the client of {self._address.shown} do not accept each other: {refusal.why}"
        return ConfigurationError(text, remedy=refusal.remedy)

    def _settings_of_new(self, replicas: int) -> dict[str, str]:
        return settings_of(replicas)

    def _require(self, found: Mapping[str, str], replicas: int) -> int:
        return require_safe(found, replicas, self._address)

    def _find(self, *, creates: bool) -> Any:
        deadline, is_created = time.monotonic() + self._wait, False
        while True:
            try:
                found = self._describe()
                if all(one.leader is not None for one in found.partitions):
                    return found
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                if not creates:
                    raise StoreMissing(
                        f"There is no topic of {self._address.shown}.", remedy="Check the brokers and the topic."
                    ) from error
                if not is_created:  # otherwise, a broker has not heard of it yet
                    self._create()
                    deadline, is_created = time.monotonic() + ANSWER_SECONDS, True
            if time.monotonic() > deadline:
                raise KafkaAway(f"the topic {self._address.topic} has no leaders")
            time.sleep(_LOOK_SECONDS / 4)

    def _describe(self) -> Any:
        topics, name = TopicCollection([self._address.topic]), self._address.topic
        admin, wait = self._admin, self._wait
        return once_it_can(lambda: admin.describe_topics(topics, request_timeout=wait)[name].result(wait), wait)

    def _create(self) -> None:
        address = self._address
        topic = NewTopic(
            address.topic,
            num_partitions=address.partitions,
            replication_factor=address.replicas,
            config=self._settings_of_new(address.replicas),
        )
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                self._admin.create_topics([topic])[address.topic].result(ANSWER_SECONDS)
                self.has_created = True
                return
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                if code != KafkaError.INVALID_REPLICATION_FACTOR:
                    raise
                if time.monotonic() > deadline:  # until then, brokers may be starting
                    raise self._too_few_brokers() from error
            time.sleep(_LOOK_SECONDS)

    def _too_few_brokers(self) -> ConfigurationError:
        address, brokers = self._address, len(self._metadata().brokers)
        return ConfigurationError(
            f"Kafka cannot create the topic {address.topic!r} of {address.shown}: {address.replicas} replicas are "
            f"required, and {counted(brokers, 'broker is', 'brokers are')} running.",
            remedy=f"Start more brokers of Kafka, or write replicas={brokers} into the URL"
            + (": a message is then lost with one disk." if brokers == 1 else "."),
        )

    def _configs(self) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, self._address.topic)
        admin, wait = self._admin, self._wait
        found = once_it_can(
            lambda: admin.describe_configs([resource], request_timeout=wait)[resource].result(wait), wait, is_known=True
        )
        return {name: str(entry.value) for name, entry in found.items()}

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        self.follow_password()
        try:
            yield
        except TimeoutError as error:
            self._admin.poll(0)  # calls _hear
            raise self.no_answer("it does not answer") from error
        except (KafkaException, SystemError) as error:
            raise self._explained(error) from error

    def refused_write(self) -> Exception:
        """Return the error for an append that Kafka refused for a reason that does not pass."""
        return self._explained(KafkaException(self._unwritten), _UNWRITTEN)

    def _explained(self, error: BaseException, otherwise: str = REMEDY) -> Exception:
        first, text = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None, said(error)
        if first is not None and self._passes(first):
            return self._login.away(text)
        what = f"Kafka refused a request of the store at {self._address.shown}: {text}"
        if permission := self._permission(first):
            return NotPermitted(what, remedy=permission)
        return StoreFailed(what, remedy=otherwise.format(self._address.topic))

    # --- reading --------------------------------------------------------------------------------------------------

    def bounds(self, wait: float = ANSWER_SECONDS) -> tuple[int, int]:
        """Return the offset of the first record, and the one after the last that every replica in sync has.

        Args:
            wait: Seconds to wait for Kafka.

        Raises:
            KafkaAway: Kafka does not answer.
        """
        where = TopicPartition(self._address.topic, self._address.partition)
        with self._asking():
            reader = self._reader()
            first, end = once_it_can(
                lambda: reader.get_watermark_offsets(where, wait, cached=False), wait, is_known=True
            )
        self._login.answered()
        return first, end

    def _reader(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                self._settings(
                    **{
                        # The client demands a group, and asks for its coordinator; assign() joins none.
                        "group.id": self._group,
                        "enable.auto.commit": False,
                        "enable.auto.offset.store": False,
                        # A record that is missing must be found, not skipped.
                        "auto.offset.reset": "error",
                        # Otherwise another program's open transaction would hide the records after it (KIP-98).
                        "isolation.level": "read_uncommitted",
                        "check.crcs": True,
                        "fetch.message.max.bytes": _FETCH_BYTES,
                        "queued.max.messages.kbytes": _READ_AHEAD_KILOBYTES,
                        "fetch.queue.backoff.ms": _READ_AHEAD_PAUSE,
                        "fetch.error.backoff.ms": 50,
                        **self._READING,
                    }
                )
            )
        return self._consumer

    def read(self, start: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield the records from an offset on, up to the end of the log at the time of the call.

        Raises:
            KafkaAway: Kafka does not answer.
            StoreFormatError: Records at that offset are deleted.
        """
        first, end = self.bounds()
        if start < first:
            raise StoreFormatError(
                f"The log at {self._address.shown} begins at record {first}, and record {start} is needed.",
                remedy="Start again: the cache is rebuilt from the log.",
            )
        if start != self._position:
            self._ahead.clear()
            with self._asking():
                self._reader().assign([TopicPartition(self._address.topic, self._address.partition, start)])
        self._position = start
        while self._position < end:
            if not self._ahead:
                self._fetch()
            offset, record = self._ahead[0]
            if offset >= end:
                return
            self._ahead.popleft()
            self._position = offset + 1
            yield offset, record

    def stop_reading(self) -> None:
        """Let the client fetch nothing until the next :meth:`read`: otherwise it fetches what this process appends."""
        if self._consumer is not None and self._position >= 0:
            self._position = -1
            self._ahead.clear()
            with contextlib.suppress(KafkaException):
                self._consumer.unassign()

    def _fetch(self) -> None:
        """Take the records that the client has, or wait for the next one.

        Waiting for several could take any number of bytes: large records may follow small ones.
        """
        reader = self._reader()
        with self._asking():
            messages = reader.consume(_FETCHED, 0.0) or reader.consume(1, ANSWER_SECONDS)
        if not messages:
            raise self.no_answer("it sends no records")
        self._ahead.extend([self._taken(one) for one in messages])

    def _taken(self, message: Message) -> tuple[int, bytes | None]:
        error = message.error()
        if error is not None:
            self._position = -1
            raise self._explained(KafkaException(error))
        offset = message.offset()
        assert offset is not None
        value = message.value()
        return offset, value if isinstance(value, bytes) else None

    # --- writing --------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[bytes], goes_on: Callable[[], bool]) -> list[int] | None:
        """Append records, in order, and wait until every replica in sync has them.

        Args:
            goes_on: Asked a few times a second; False: give up.

        Returns:
            Their offsets; None if it is unknown whether all of them were appended. If then :attr:`is_passing` is False,
            :meth:`refused_write` has the reason.
        """
        self.is_passing, self._unwritten = True, None
        offsets: list[int | None] = [None] * len(records)
        left = len(records)

        def report(at: int, error: KafkaError | None, message: Message) -> None:
            nonlocal left
            left -= 1
            offset = message.offset()
            if error is not None:
                self._note_unwritten(error)
            elif offset is not None and offset >= 0:
                offsets[at] = offset

        try:
            producer = self._writer()
            topic, partition = self._address.topic, self._address.partition
            for at, record in enumerate(records):
                while True:
                    try:
                        producer.produce(topic, record, partition=partition, on_delivery=partial(report, at))
                        break
                    except BufferError:
                        producer.poll(_LOOK_SECONDS)
            while left:
                self.follow_password()
                producer.poll(_LOOK_SECONDS)
                if left and not goes_on():
                    return None
        except (KafkaException, SystemError) as error:  # a fatal error comes out of any call, sometimes as the latter
            self.said = said(error)
            if error.args and isinstance(error.args[0], KafkaError):
                self._note_unwritten(error.args[0])
            return None
        found = [offset for offset in offsets if offset is not None]
        if len(found) < len(records):
            return None
        self._login.answered()
        return found

    def _note_unwritten(self, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL and self._producer is not None:
            try:
                self._producer.poll(0)  # raises the first error, of which all others say only that there was one
            except (KafkaException, SystemError) as first:
                error = first.args[0] if first.args and isinstance(first.args[0], KafkaError) else error
        self.said, self.is_passing, self._unwritten = error.str(), self._passes(error), error

    def _passes(self, error: KafkaError) -> bool:
        return error.code() in _PASSING or self._login.hear(error)

    def _writer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                self._settings(
                    **{
                        "acks": "all",
                        # A retry repeats no record, and keeps their order (KIP-98).
                        "enable.idempotence": True,
                        # A store has one write in progress: nothing comes that could join it.
                        "linger.ms": 0,
                        "message.max.bytes": RECORD_BYTES + 4096,
                        "message.timeout.ms": 0,  # the store decides how long to wait
                        "queue.buffering.max.kbytes": 1 << 20,
                        "retry.backoff.ms": 50,
                    }
                )
            )
        return self._producer

    def warm(self) -> None:
        """Let the client find Kafka before the first :meth:`append`: it asks again only after half a second."""
        with contextlib.suppress(KafkaException):  # then the first append says why
            self._writer()

    def renew(self) -> None:
        """Discard the producer with what it has not sent. What it has sent may still arrive."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaException, SystemError):
                producer.purge(in_queue=True, in_flight=True, blocking=False)

    def trim(self, offset: int) -> None:
        """Let Kafka delete the records before an offset. It does so later, and a failure only leaves them."""
        place = TopicPartition(self._address.topic, self._address.partition, offset)
        with contextlib.suppress(KafkaException):
            self._trimming = list(self._admin.delete_records([place]).values())

    def close(self) -> None:
        self.renew()
        with self._clients:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(KafkaException, RuntimeError):
                consumer.close()

    def away(self, why: KafkaAway, remedy: str = REMEDY) -> StoreAway:
        """Return the error for a Kafka that does not answer."""
        return StoreAway(
            f"Kafka does not serve the store at {self._address.shown}: {why}",
            remedy=why.remedy or remedy,
            patience=self._address.patience,
        )


def said(error: BaseException) -> str:
    """Return what Kafka said, for people."""
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(error)
