"""What a store asks of Kafka when it opens: again, while a broker answers that it cannot do it now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.store.kafka import topic
from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.topic import KafkaLog, once_it_can

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


class OnceElsewhere:
    """A client of Kafka whose leaders move: the first call of each method gets that for an answer."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.failed: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in ("describe_topics", "describe_configs", "get_watermark_offsets") and name not in self.failed:
            self.failed.add(name)
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return getattr(self._client, name)


def test_a_leader_that_moves_while_a_log_opens_is_waited_for(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> None:
    log = KafkaLog(read_kafka_address(kafka_nodes(1).new_url(tmp_path / "cache")))
    try:
        admin = log._admin = OnceElsewhere(log._admin)
        log.open(creates=True)
        reader = log._consumer = OnceElsewhere(log._reader())  # type: ignore[assignment]
        assert log.bounds() == (0, 0)
        assert admin.failed | reader.failed == {"describe_topics", "describe_configs", "get_watermark_offsets"}
    finally:
        log.close()
