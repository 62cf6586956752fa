"""What a store asks of Kafka when it opens: again, while a broker answers that it cannot do it now.

Only an opening that may create the topic does so, also with Kafka's default of creating what a client looks up."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.group.verification import verify_cluster
from holdfast.cluster.operating.engines import engine_of
from holdfast.exceptions import ConfigurationError, HoldfastError, StoreFailed
from holdfast.store import open_store, store_exists
from holdfast.store.kafka import store as store_module
from holdfast.store.kafka import topic
from holdfast.store.kafka.address import KafkaAddress, read_kafka_address
from holdfast.store.kafka.login import KafkaAway
from holdfast.store.kafka.store import KafkaStore
from holdfast.store.kafka.topic import KafkaLog, once_it_can
from holdfast.testing.ports import free_ports

ANSWERS = sorted(code for code in topic._PASSING if code > 0)
SILENCES = sorted(code for code in topic._PASSING if code < 0)


class Failing:
    """A call that fails a few times before it returns."""

    def __init__(self, code: int, times: int) -> None:
        self.code, self.left, self.calls = code, times, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise KafkaException(KafkaError(self.code))
        return "done"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "_LOOK_SECONDS", 0.0)


@pytest.mark.parametrize("code", ANSWERS)
def test_what_a_broker_cannot_do_now_is_asked_again(quick: None, code: int) -> None:
    call = Failing(code, 3)
    assert (once_it_can(call), call.calls) == ("done", 4)
    with pytest.raises(KafkaException):
        once_it_can(Failing(code, 3), -1.0)


@pytest.mark.parametrize("code", [*SILENCES, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_what_does_not_pass_or_has_waited_is_not_asked_again(quick: None, code: int) -> None:
    call = Failing(code, 1)
    with pytest.raises(KafkaException):
        once_it_can(call)
    assert call.calls == 1


def test_a_client_that_did_not_reach_kafka_is_not_asked_again(tmp_path: Path) -> None:
    """librdkafka may keep a first connection that failed, and open no other one when Kafka is back."""
    (port,) = free_ports(1)
    log = KafkaLog(read_kafka_address(f"kafka://127.0.0.1:{port}/orders?cache={tmp_path / 'cache'}"))
    try:
        before = log._admin
        with pytest.raises(KafkaAway):
            log.open(creates=False)
        assert log._admin is not before
    finally:
        log.close()


@pytest.mark.parametrize("is_known", [False, True])
def test_a_topic_that_only_some_brokers_know_is_asked_for_again(quick: None, is_known: bool) -> None:
    call = Failing(KafkaError.UNKNOWN_TOPIC_OR_PART, 3)
    if is_known:
        assert once_it_can(call, is_known=True) == "done"
    with pytest.raises(KafkaException):
        once_it_can(Failing(KafkaError.UNKNOWN_TOPIC_OR_PART, 3), -1.0, is_known=is_known)


class Refusing:
    """A producer of which Kafka accepts no record."""

    def __init__(self, code: int, *, raises: bool) -> None:
        self.error, self.raises = KafkaError(code), raises
        self.waiting: list[Callable[..., None]] = []

    def produce(self, *_: object, on_delivery: Callable[..., None], **__: object) -> None:
        if self.raises:
            raise KafkaException(self.error)
        self.waiting.append(on_delivery)

    def poll(self, _wait: float) -> None:
        while self.waiting:
            self.waiting.pop()(self.error, Unsent())

    def purge(self, **_: object) -> None:
        pass


class Unsent:
    def offset(self) -> None:
        return None


PERMISSIONS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Permit the user Read, Write",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Permit the user Write",
}
REFUSED = [
    *PERMISSIONS,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError._INVALID_ARG,
    KafkaError._FATAL,
]


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("code", [*REFUSED, *topic._PASSING])
def test_an_append_that_kafka_refuses_says_whether_it_may_be_repeated_and_why_not(
    tmp_path: Path, code: int, raises: bool
) -> None:
    log = KafkaLog(read_kafka_address(f"kafka://127.0.0.1:1/orders?cache={tmp_path / 'cache'}"))
    log._producer = Refusing(code, raises=raises)  # type: ignore[assignment]
    try:
        assert log.append([b"a", b"b"], lambda: True) is None
        assert log.is_passing == (code in topic._PASSING)
        if not log.is_passing:
            refused = log.refused_write()
            assert isinstance(refused, StoreFailed) and KafkaError(code).str() in refused.message
            assert "orders" in refused.remedy and PERMISSIONS.get(code, "settings of the topic") in refused.remedy
    finally:
        log.close()


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("name", ["nodes", "identifiers", "security"])
@pytest.mark.parametrize("code", [*PERMISSIONS, KafkaError.POLICY_VIOLATION])
def test_a_small_topic_that_kafka_refuses_to_write_names_the_permission_and_itself(
    tmp_path: Path, code: int, name: str, raises: bool
) -> None:
    address = read_kafka_address(f"kafka://127.0.0.1:1/orders?cache={tmp_path / 'cache'}")
    shared, outcomes = SharedTopic(address, f"orders-{name}"), list[bool]()
    try:
        shared._producer = Refusing(code, raises=raises)  # type: ignore[assignment]
        shared.say("a", b"1", outcomes.append)
        shared.hear_outcomes()
        away = shared.no_answer("no answer for 2 s")
        assert (outcomes, str(away)) == ([False], KafkaError(code).str())
        assert PERMISSIONS.get(code, "") in away.remedy and bool(away.remedy) == (code in PERMISSIONS)
        assert f"topic orders-{name}" in away.remedy or code not in PERMISSIONS
        shared._producer = Refusing(code, raises=raises)  # type: ignore[assignment]
        with pytest.raises(StoreFailed, match=re.escape(KafkaError(code).str())) as caught:
            shared.put("a", b"2")
        assert caught.value.remedy == (away.remedy or topic.COMMAND_REMEDY)
    finally:
        shared.close()


@pytest.mark.parametrize("code", REFUSED)
def test_an_opening_whose_claim_kafka_refuses_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """One process alone: it must not say that others take the store."""
    monkeypatch.setattr(store_module, "_PAUSE", 0.0)
    monkeypatch.setattr(KafkaLog, "open", lambda log, creates: None)
    monkeypatch.setattr(KafkaLog, "bounds", lambda log: (0, 0))
    monkeypatch.setattr(KafkaLog, "read", lambda log, start: iter(()))
    monkeypatch.setattr(KafkaLog, "_writer", lambda log: Refusing(code, raises=False))
    with pytest.raises(StoreFailed, match=re.escape(KafkaError(code).str())):
        KafkaStore(f"kafka://127.0.0.1:1/orders?cache={tmp_path / 'cache'}")


def names(servers: str) -> set[str]:
    """Return the topics that are not Kafka's own."""
    found = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics
    return {name for name in found if not name.startswith("__")}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [KafkaLog, partial(SharedTopic, name="nodes-of-a-cluster")])
def test_no_look_at_a_missing_topic_lets_kafka_create_it(
    kafka_nodes: Callable[[int], Any], tmp_path: Path, kind: Callable[[KafkaAddress], KafkaLog]
) -> None:
    # Kafka's default is to create what a client looks up, with other settings than a log needs.
    nodes = kafka_nodes(1)
    before = names(nodes.servers)
    location = nodes.new_url(tmp_path / "cache")
    log = kind(read_kafka_address(location))
    looks: list[Callable[[], object]] = [
        lambda: log.open(creates=False),
        lambda: log.bounds(1.0),
        lambda: next(log.read(0)),
        lambda: log.append([b"x"], lambda: False),
        lambda: log.trim(1),
        lambda: open_store(location, read_only=True),
        lambda: store_exists(location),
        lambda: engine_of(location).read_status(location),
        lambda: engine_of(location).drain_node(location, "a"),
        lambda: verify_cluster(location),
    ]
    for look in looks:
        with contextlib.suppress(HoldfastError, KafkaAway):
            look()
        assert names(nodes.servers) == before
    log.close()


@pytest.mark.nightly
def test_the_first_opening_creates_a_topic_that_later_ones_accept(
    kafka_nodes: Callable[[int], Any], tmp_path: Path
) -> None:
    location = kafka_nodes(1).new_url(tmp_path / "cache", partitions=3)
    for _ in range(2):
        log = KafkaLog(read_kafka_address(location))
        log.open(creates=True)
        assert log.partitions == 3
        log.close()


@pytest.mark.nightly
def test_more_replicas_than_brokers_are_refused_soon(
    kafka_nodes: Callable[[int], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "ANSWER_SECONDS", 1.0)
    log = KafkaLog(read_kafka_address(kafka_nodes(1).new_url(tmp_path / "cache", replicas=5)))
    with pytest.raises(ConfigurationError, match="5 replicas are required, and 1 broker is running") as caught:
        log.open(creates=True)
    assert "replicas=1" in caught.value.remedy
    log.close()


class OnceElsewhere:
    """A client of Kafka with brokers that change: the first call of each method gets an error for an answer."""

    def __init__(self, client: Any, code: int) -> None:
        self._client = client
        self._code = code
        self.failed: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in ("describe_topics", "describe_configs", "get_watermark_offsets") and name not in self.failed:
            self.failed.add(name)
            raise KafkaException(KafkaError(self._code))
        return getattr(self._client, name)


@pytest.mark.parametrize(
    "code",
    [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART],
    ids=["a leader moves", "brokers have not heard of the new topic"],
)
def test_what_passes_while_a_log_opens_is_waited_for(
    kafka_nodes: Callable[[int], Any], tmp_path: Path, code: int
) -> None:
    log = KafkaLog(read_kafka_address(kafka_nodes(1).new_url(tmp_path / "cache")))
    try:
        admin = log._client = OnceElsewhere(log._admin, code)
        log.open(creates=True)
        reader = log._consumer = OnceElsewhere(log._reader(), code)  # type: ignore[assignment]
        assert log.bounds() == (0, 0)
        assert admin.failed | reader.failed == {"describe_topics", "describe_configs", "get_watermark_offsets"}
    finally:
        log.close()
