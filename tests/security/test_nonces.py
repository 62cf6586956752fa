"""Nonces, security contexts and tokens in a database that several hosts share.

Those in files: test_file_nonces.py. Covers security/database.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from databases import PostgreSQL

from holdfast.cluster.shared_database import SharedDatabase, shared_database
from holdfast.exceptions import MessageFlowError
from holdfast.security.contexts import SecurityContext, SecurityContexts
from holdfast.security.conversation.source_tokens import SourceToken, SourceTokens
from holdfast.security.conversation.token_requests import Granted
from holdfast.security.database import _ClusterDatabase, open_database
from holdfast.security.nonces import SharedNonces, open_nonces
from holdfast.security.times import ordered


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
    assert caught.value.retry_after == 5


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
