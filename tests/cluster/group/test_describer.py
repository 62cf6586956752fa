"""The process that asks for the members of a group: what it says, and that another one follows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.cluster.group import describer as room
from holdfast.cluster.group.describer import NOT_YET, GroupDescriber, NotDescribed
from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.login import KafkaLogin
from holdfast.testing.ports import free_ports


def wait(describer: GroupDescriber) -> None:
    while describer.answer() is None:
        time.sleep(room._LOOK)


@pytest.fixture
def describer() -> Iterator[GroupDescriber]:
    """Asks where nobody listens."""
    (port,) = free_ports(1)
    made = GroupDescriber(f"kafka://127.0.0.1:{port}/orders?cache=/unused")
    yield made
    made.close()


def test_a_process_without_its_user_answers_what_the_connection_said_and_ends(
    describer: GroupDescriber,
) -> None:
    """One test of both: librdkafka takes ten seconds until it reports that nobody listens."""
    describer.ask()
    process = describer._process
    assert process is not None and process.stdin is not None
    process.stdin.close()
    with pytest.raises(NotDescribed, match=r"refused|Timed out"):
        wait(describer)
    assert process.wait(60) == 0


@pytest.mark.nightly  # it waits for librdkafka's own timeouts
def test_after_failures_another_process_asks(describer: GroupDescriber) -> None:
    processes = []
    for _ in range(room._MOST_FAILURES + 1):
        describer.ask()
        assert describer._process is not None
        processes.append(describer._process.pid)
        with pytest.raises(NotDescribed):
            wait(describer)
    assert len(set(processes[:-1])) == 1
    assert processes[-1] != processes[0]


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSTOP])
def test_a_process_that_does_not_answer_is_followed_by_another(
    describer: GroupDescriber, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_LONGEST", 0.2)
    describer.ask()
    assert describer._process is not None
    first = describer._process.pid
    os.kill(first, number)
    with pytest.raises(NotDescribed, match="has ended"):
        describer.describe()
    assert describer._process is None
    describer.ask()
    assert describer._process is not None and describer._process.pid != first


def test_a_refused_login_is_reported_before_the_request_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_LISTEN", 0.0)
    monkeypatch.setattr(room, "_REFUSED", 0.0)
    login = KafkaLogin(read_kafka_address(f"kafka://127.0.0.1:1/orders?cache={tmp_path}"))

    class Admin:
        polls = 0

        def poll(self, _wait: float) -> None:
            self.polls += 1
            if self.polls == 3:
                login.hear(KafkaError(KafkaError._AUTHENTICATION, "a:1/1: SASL authentication error: no"))

    admin: Any = Admin()
    with pytest.raises(KafkaException):
        room._answer(Future(), admin, login)
    assert admin.polls >= 4 and str(login.away("")) == "refused login: SASL authentication error: no"
    answered = Future[str]()
    answered.set_result("the group")
    assert room._answer(answered, admin, login) == "the group"


@pytest.mark.nightly
def test_a_group_that_does_not_exist_has_no_members(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> None:
    made = GroupDescriber(kafka_nodes(1).new_url(tmp_path / "cache"))
    members, code = None, next(iter(NOT_YET))
    while code in NOT_YET:  # Kafka makes the topic of all groups when it is first asked
        try:
            members, code = made.describe().members, 0
        except NotDescribed as error:
            members, code = (), error.code or 0
    made.close()
    assert members == () and code in (0, KafkaError.GROUP_ID_NOT_FOUND)
