"""Nonces, security contexts and tokens in a database or in Kafka, which several hosts share.

Those in files: test_file_nonces.py. Covers security/database.py and cluster/shared/engines.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from databases import PostgreSQL
from shared_topics import FakeTopic, TopicLog

from holdfast.cluster.shared.database import SharedDatabase, shared_database
from holdfast.cluster.shared.topic_tables import TopicTables
from holdfast.exceptions import MessageFlowError
from holdfast.security.conversation.contexts import SecurityContext, SecurityContexts
from holdfast.security.conversation.source_tokens import SourceToken, SourceTokens
from holdfast.security.conversation.token_requests import Granted
from holdfast.security.database import _ClusterDatabase, open_database
from holdfast.security.nonces import SharedNonces, open_nonces
from holdfast.security.times import ordered


@dataclass
class Processes:
    """Processes before one topic."""

    log: TopicLog
    start: Callable[..., tuple[SharedNonces, SecurityContexts, SourceTokens]]


@pytest.fixture
def server(servers: Callable[[str], PostgreSQL]) -> PostgreSQL:
    return servers("postgresql")


@pytest.fixture
def location(server: PostgreSQL) -> Iterator[str]:
    """The URL of a cluster; its connections end with the test."""
    made = server.new_url()
    yield made
    shared_database(made).close()


@pytest.fixture
def nodes(location: str) -> Iterator[list[SharedNonces]]:
    """The nonces of some processes of a cluster, each with its own connection."""
    databases = [SharedDatabase(location) for _ in range(6)]
    made = []
    for database in databases:
        one = SharedNonces(location, most=5)
        one._db = _ClusterDatabase(database)
        made.append(one)
    yield made
    for database in databases:
        database.close()


def test_a_nonce_is_new_at_one_node_only(nodes: list[SharedNonces], server: PostgreSQL) -> None:
    now = time.time()
    assert nodes[0].is_new(now, b"a", now + 300, now)
    assert [one.is_new(now, b"a", now + 300, now) for one in nodes] == [False] * 6
    assert nodes[5].knows(now, b"a") and not nodes[5].knows(now, b"b")
    other = open_nonces(server.new_url())
    assert isinstance(other, SharedNonces)
    assert other.is_new(now, b"a", now + 300, now), "of another cluster in the same database"


def test_exactly_one_of_many_accepts_a_nonce(nodes: list[SharedNonces]) -> None:
    now = time.time()
    with ThreadPoolExecutor(len(nodes)) as threads:
        for nonce in (b"a", b"b", b"c"):
            accepted = list(threads.map(lambda one, nonce=nonce: one.is_new(now, nonce, now + 300, now), nodes))
            assert sum(accepted) == 1


def test_a_process_with_too_many_nonces_refuses_until_some_have_expired(nodes: list[SharedNonces]) -> None:
    now = time.time()
    one = nodes[0]
    assert [one.is_new(now, bytes([number]), now + 10, now) for number in range(6)] == [True] * 5 + [False]
    assert one.is_full and not nodes[1].is_full
    assert one.is_new(now, b"later", now + 60, now + 40)


def test_expired_nonces_are_deleted_and_never_new_again(nodes: list[SharedNonces]) -> None:
    """Whatever the clock of the node says: a nonce counts by that of the database."""
    now = time.time()
    db, one = nodes[0]._db, nodes[1]
    assert one.is_new(0.0, b"first", now, now)
    old = "INSERT INTO holdfast_nonces SELECT :space, :nonce, :until"
    for number in range(5):
        db.run("", old, nonce=b"old%d" % number, until=now - 700 - number)
    db.run("", old, nonce=ordered(0.0, b"kept"), until=now - 620)
    assert not one.is_new(0.0, b"past", now - 605, now - 700)
    left = "SELECT count(*) FROM holdfast_nonces WHERE space = :space AND until < :past"
    assert db.run("", left, past=now - 1) == [(4,)], "two are gone"
    assert one.is_new(0.0, b"second", now, now) and one.is_new(0.0, b"third", now, now)
    assert db.run("", left, past=now - 1) == [(1,)]
    assert one.knows(0.0, b"kept") and not one.is_new(0.0, b"kept", now - 620, now - 700)


def test_while_the_database_is_away_messages_wait() -> None:
    memory = open_database("postgresql://nobody@127.0.0.1:9/none")
    with pytest.raises(MessageFlowError) as caught:
        memory.run("SELECT 1", "SELECT 1")
    assert 5 <= caught.value.retry_after <= 10


def test_security_contexts_are_the_same_at_every_node(location: str) -> None:
    one, two = SecurityContexts(location, most=3, most_of_user=2), SecurityContexts(location)
    granted = SecurityContext("urn:t", "", "alice", bytes(range(32)), 2e9, b"\xff\0")
    assert one.has_room("alice", 1e9)
    one.add(granted)
    assert two.find("urn:t", "") == granted
    assert two.find("urn:t", "other") is None
    for number in range(1, 4):
        two.add(SecurityContext("urn:t", str(number), "alice", b"k", 2e9 + number))
    assert [one.find("urn:t", str(number)) is not None for number in range(4)] == [False, False, True, True]
    assert not one.has_room("alice", 1e9) and one.has_room("bob", 1e9)
    two.cancel("urn:t")
    assert one.find("urn:t", "3") is None
    assert one.has_room("alice", 1e9)


def test_the_tokens_of_forwarders_are_the_same_at_every_node(location: str) -> None:
    one, two = SourceTokens(location), SourceTokens(location)
    one.keep("urn:trust", Granted("urn:token", "", b"k" * 32, 1000), 100)
    one.use("urn:sequence", "urn:token")
    assert two.find("urn:sequence", 500) == SourceToken("urn:trust", "urn:token", "", b"k" * 32, 1000, 1100)
    two.keep("urn:trust", Granted("urn:token", "urn:second", b"l" * 32, 1000), 900)
    assert one.find("urn:sequence", 1500) == SourceToken("urn:trust", "urn:token", "urn:second", b"l" * 32, 1000, 1900)
    two.forget("urn:token")
    assert one.find("urn:sequence", 1000) is None


# --- in Kafka ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """What several processes of a cluster on Kafka remember."""
    log = TopicLog()

    def start(most: int = 5) -> tuple[SharedNonces, SecurityContexts, SourceTokens]:
        tables = TopicTables(lambda: FakeTopic(log))
        monkeypatch.setattr("holdfast.cluster.shared.topic_tables.topic_tables", lambda _location, _part: tables)
        place = "kafka://127.0.0.1:9/t?cache=/none"
        return SharedNonces(place, most), SecurityContexts(place, most=3, most_of_user=2), SourceTokens(place)

    return Processes(log, start)


def test_a_nonce_in_kafka_is_new_in_one_process_only(processes: Processes) -> None:
    (one, *_), (two, *_) = processes.start(), processes.start()
    now = processes.log.clock = time.time()
    assert one.is_new(0.0, b"a", now + 300, now)
    assert not one.is_new(0.0, b"a", now + 300, now) and not two.is_new(0.0, b"a", now + 300, now)
    assert two.knows(0.0, b"a") and not two.knows(0.0, b"b")
    later, *_ = processes.start()
    assert not later.is_new(0.0, b"a", now + 300, now) and isinstance(
        open_nonces("kafka://h:1/t?cache=/c"), SharedNonces
    )
    assert [one.is_new(0.0, bytes([n]), now + 10, now) for n in range(5)] == [True] * 4 + [False]
    assert one.is_full and not two.is_full


def test_expired_nonces_in_kafka_are_deleted_and_never_new_again(processes: Processes) -> None:
    """By the clock of Kafka, whatever that of the node says."""
    (one, *_), (two, *_) = processes.start(99), processes.start(99)
    now = processes.log.clock = time.time()
    assert [one.is_new(0.0, b"%d" % n, now + n, now) for n in range(5)] == [True] * 5
    processes.log.clock = now + 663.5
    left = []
    for name, adder in ((b"first", two), (b"second", two), (b"third", one), (b"fourth", one)):
        assert adder.is_new(0.0, name, now + 900, now)
        left.append(sum(two.knows(0.0, b"%d" % number) for number in range(5)))
    assert left == [5, 3, 1, 1], "two with each new one, by the time of the record before it"
    assert not two.is_new(0.0, b"1", now + 1, now) and not two.is_new(0.0, b"past", now + 60, now)
    assert two.is_new(0.0, b"nearly past", now + 65, now)


def test_security_contexts_and_tokens_in_kafka_are_known_to_every_process(processes: Processes) -> None:
    (_, one, mine), (_, two, yours) = processes.start(), processes.start()
    granted = SecurityContext("urn:t", "", "alice", bytes(range(32)), 2e9, b"\xff\0")
    assert one.has_room("alice", 1e9) and two.find("urn:t", "") is None
    one.add(granted)
    assert two.find("urn:t", "") == granted
    for number in range(1, 4):
        two.add(SecurityContext("urn:t", str(number), "alice", b"k", 2e9 + number))
    assert [one.find("urn:t", str(number)) is not None for number in (3, 2, 1)] == [True, True, False]
    assert one.find("urn:t", "") is None
    assert not one.has_room("alice", 1e9) and one.has_room("bob", 1e9)
    assert one.has_room("alice", 3e9), "both keys have expired"
    assert processes.start()[1].find("urn:t", "3") is None
    mine.keep("urn:trust", Granted("urn:token", "", b"k" * 32, 1000), 100)
    mine.use("urn:sequence", "urn:token")
    assert yours.find("urn:sequence", 500) == SourceToken("urn:trust", "urn:token", "", b"k" * 32, 1000, 1100)
    yours.forget("urn:token")
    assert mine.find("urn:other", 500) is None and mine.find("urn:sequence", 500) is None


def test_while_kafka_is_away_messages_wait(processes: Processes) -> None:
    nonces, contexts, _ = processes.start()
    processes.log.is_away = True
    for call in (lambda: nonces.is_new(0.0, b"a", 2e9, 0), lambda: contexts.find("urn:t", "")):
        with pytest.raises(MessageFlowError) as caught:
            call()
        assert 5 <= caught.value.retry_after <= 10
