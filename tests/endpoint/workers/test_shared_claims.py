"""The Identifiers that peers granted to the partitions of a cluster: on PostgreSQL, on a fake topic, on Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from databases import PostgreSQL
from hypothesis import HealthCheck, given, settings
from shared_topics import FakeTopic, TopicLog

from holdfast.cluster.group.pictures import topic_of
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.shared import topic_tables as on_kafka
from holdfast.cluster.shared.database import SharedDatabase
from holdfast.cluster.shared.tables import SharedTables, TablesAway
from holdfast.cluster.shared.topic_tables import TopicTables
from holdfast.core.sending.identifier_claims import ClaimResult, GrantedIdentifier
from holdfast.endpoint.workers import shared_claims
from holdfast.endpoint.workers.shared_claims import SharedClaims
from holdfast.store.kafka.address import read_kafka_address

CLAIMED, IN_USE, UNKNOWN = ClaimResult.CLAIMED, ClaimResult.IN_USE, ClaimResult.UNKNOWN


class Cluster:
    """Partitions whose owners are processes of their own.

    Args:
        connect: Returns the access of another process to the tables.
        monkeypatch: Gives it to the claims.
    """

    def __init__(self, connect: Callable[[], SharedTables], monkeypatch: pytest.MonkeyPatch) -> None:
        self.connect = connect
        self._monkeypatch = monkeypatch
        self._epochs: dict[int, int] = {}

    def owner(self, partition: int, recovered: Iterable[GrantedIdentifier] = ()) -> SharedClaims:
        """Return the claims of a partition for its next owner."""
        tables = self.connect()
        self._monkeypatch.setattr(shared_claims, "shared_tables", lambda _location, _part: tables)
        self._epochs[partition] = self._epochs.get(partition, 0) + 1
        claims = SharedClaims("", partition, self._epochs[partition])
        claims.announce(recovered)
        return claims


Make = Callable[[], Cluster]


@pytest.fixture(params=["postgresql", "kafka"])
def make(
    request: pytest.FixtureRequest, servers: Callable[[str], PostgreSQL], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Makes clusters on one engine."""
    databases: list[SharedDatabase] = []

    def make() -> Cluster:
        if request.param == "kafka":
            log = TopicLog()
            return Cluster(lambda: TopicTables(lambda: FakeTopic(log)), monkeypatch)
        location = servers("postgresql").new_url()

        def connect() -> SharedDatabase:
            databases.append(SharedDatabase(location))
            return databases[-1]

        return Cluster(connect, monkeypatch)

    yield make
    for database in databases:
        database.close()


@pytest.fixture
def cluster(make: Make) -> Cluster:
    return make()


def granted(identifier: str, local_id: str = "", to: str = "http://shop/") -> GrantedIdentifier:
    return GrantedIdentifier(local_id or f"local {identifier}", to, identifier)


def test_an_identifier_belongs_to_one_partition_until_its_sequence_ends(cluster: Cluster) -> None:
    one, two = cluster.owner(0), cluster.owner(1)
    assert one.claim(granted("urn:x")) is CLAIMED
    assert one.claim(granted("urn:x")) is CLAIMED, "the same Sequence again"
    assert two.claim(granted("urn:x")) is IN_USE
    assert two.claim(granted("urn:x", to="http://other/")) is CLAIMED, "of another peer"
    one.release("local urn:x")
    one.release("local urn:x")
    assert two.claim(granted("urn:x", "another")) is CLAIMED
    assert one.claim(granted("urn:x", "a third")) is IN_USE


def test_a_refused_claim_leaves_nothing_behind(cluster: Cluster) -> None:
    one, two, three = cluster.owner(0), cluster.owner(1), cluster.owner(2)
    assert one.claim(granted("urn:x")) is CLAIMED
    assert two.claim(granted("urn:x", "two")) is IN_USE
    one.release("local urn:x")
    assert three.claim(granted("urn:x", "three")) is CLAIMED


def test_a_claim_stays_while_its_partition_has_no_owner_and_moves(cluster: Cluster) -> None:
    one, two = cluster.owner(0), cluster.owner(1)
    assert one.claim(granted("urn:x")) is CLAIMED and one.claim(granted("urn:lost")) is CLAIMED
    assert two.claim(granted("urn:x")) is IN_USE
    successor = cluster.owner(0, [granted("urn:x")])
    assert two.claim(granted("urn:x")) is IN_USE
    assert successor.claim(granted("urn:y")) is CLAIMED
    assert two.claim(granted("urn:x")) is IN_USE
    assert two.claim(granted("urn:lost")) is CLAIMED, "its Sequence was never stored"


def test_a_recovered_claim_that_the_tables_lack_is_written(cluster: Cluster) -> None:
    one, two = cluster.owner(0, [granted("urn:x"), granted("urn:ended")]), cluster.owner(1)
    one.release("local urn:ended")
    assert two.claim(granted("urn:x")) is IN_USE
    assert two.claim(granted("urn:ended")) is CLAIMED


def test_many_recovered_claims_are_written_in_parts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_claims, "_ROWS_AT_ONCE", 3)
    one, two = cluster.owner(0, [granted(f"urn:{number}") for number in range(8)]), cluster.owner(1)
    assert one.claim(granted("urn:new")) is CLAIMED
    assert [two.claim(granted(f"urn:{number}")) for number in range(9)] == [IN_USE] * 8 + [CLAIMED]


def test_an_owner_that_wakes_after_its_takeover_changes_nothing(cluster: Cluster) -> None:
    stale, other = cluster.owner(0, [granted("urn:a")]), cluster.owner(1)
    owner = cluster.owner(0, [granted("urn:a")])
    assert owner.claim(granted("urn:b")) is CLAIMED
    assert stale.claim(granted("urn:d")) is IN_USE
    assert [other.claim(granted(f"urn:{one}", f"other {one}")) for one in "abd"] == [IN_USE, IN_USE, CLAIMED]


def test_of_partitions_that_claim_one_identifier_at_once_at_most_one_gets_it(cluster: Cluster) -> None:
    several = [cluster.owner(partition) for partition in range(6)]
    with ThreadPoolExecutor(len(several)) as threads:
        for name in range(20):
            results = list(threads.map(lambda one, name=name: one.claim(granted(f"urn:{name}")), several))
            assert set(results) <= {CLAIMED, IN_USE} and results.count(CLAIMED) <= 1
            for one, result in zip(several, results, strict=True):
                if result is CLAIMED:
                    one.release(f"local urn:{name}")
            assert several[name % 6].claim(granted(f"urn:{name}")) is CLAIMED, "nobody has it any longer"


class Away:
    """Tables that do not answer, or only after they made the change.

    Args:
        tables: Make the change.
    """

    is_kept = False

    def __init__(self, tables: SharedTables | None = None) -> None:
        self._tables = tables

    def run(self, schema: str, *statements: str, **values: Any) -> list[tuple[Any, ...]]:
        if self._tables is not None:
            self._tables.run(schema, *statements, **values)
        raise TablesAway("no answer")

    def rest(self) -> None: ...


def test_while_the_tables_are_away_a_claim_is_unknown_and_the_rest_is_written_later(cluster: Cluster) -> None:
    one, two = cluster.owner(0), cluster.owner(1)
    assert one.claim(granted("urn:x")) is CLAIMED
    tables, one._tables = one._tables, Away()
    assert one.claim(granted("urn:y")) is UNKNOWN
    one.release("local urn:x")
    one._tables = tables
    assert two.claim(granted("urn:x", "two")) is IN_USE, "not released yet: nobody uses it, which does no harm"
    assert one.claim(granted("urn:y")) is CLAIMED
    assert two.claim(granted("urn:x", "two")) is CLAIMED


def test_an_earlier_try_of_unknown_outcome_does_not_count(cluster: Cluster) -> None:
    one, two = cluster.owner(0), cluster.owner(1)
    assert one.claim(granted("urn:first")) is CLAIMED
    tables, one._tables = one._tables, Away(one._tables)
    assert one.claim(granted("urn:x")) is UNKNOWN
    one._tables = tables
    assert two.claim(granted("urn:x")) is IN_USE
    assert one.claim(granted("urn:other")) is CLAIMED
    assert two.claim(granted("urn:x")) is CLAIMED


def test_the_claims_of_a_partition_have_a_bound(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_claims, "MOST_CLAIMS", 2)
    one = cluster.owner(0, [granted("urn:a"), granted("urn:b")])
    assert one.claim(granted("urn:c")) is ClaimResult.FULL
    one.release("local urn:a")
    assert one.claim(granted("urn:c")) is CLAIMED


STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "end", "crash", "away"]), st.integers(0, 2), st.integers(0, 3)), max_size=20
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(STEPS)
def test_no_identifier_has_two_users_whatever_order_claims_ends_and_crashes_have(
    make: Make, steps: list[tuple[str, int, int]]
) -> None:
    """Partitions that crash recover the Sequences that they had stored; half of the claims were not stored before."""
    cluster = make()
    several = [cluster.owner(partition) for partition in range(3)]
    stored: list[dict[str, GrantedIdentifier]] = [{}, {}, {}]
    for count, (what, partition, name) in enumerate(steps):
        identifier, one = f"urn:{name}", several[partition]
        users = [number for number in range(3) if identifier in stored[number]]
        if what == "claim" and identifier not in stored[partition]:
            asked = granted(identifier, f"local {count}")
            result = one.claim(asked)
            assert result is not CLAIMED or not users
            if result is CLAIMED and count % 2:
                stored[partition][identifier] = asked
        elif what == "end" and identifier in stored[partition]:
            one.release(stored[partition].pop(identifier).local_id)
        elif what == "away":
            away = one._tables
            one._tables = away._tables if isinstance(away, Away) and away._tables is not None else Away(away)
        elif what == "crash":
            several[partition] = cluster.owner(partition, stored[partition].values())


@pytest.mark.nightly
def test_of_live_claims_at_once_in_kafka_at_most_one_gets_the_identifier(
    kafka_nodes: Callable[[int], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = read_kafka_address(kafka_nodes(1).new_url(tmp_path / "cache"))
    monkeypatch.setattr(on_kafka, "PATIENCE", 30.0)
    topic = SharedTopic(address, topic_of(address, "identifiers"))
    topic.open(creates=True)
    topic.close()
    name_of_topic = topic_of(address, "identifiers")
    cluster = Cluster(lambda: TopicTables(lambda: SharedTopic(address, name_of_topic)), monkeypatch)
    several = [cluster.owner(partition) for partition in range(4)]
    with ThreadPoolExecutor(len(several)) as threads:
        for name in range(20):
            results = list(threads.map(lambda one, name=name: one.claim(granted(f"urn:{name}")), several))
            assert set(results) <= {CLAIMED, IN_USE} and results.count(CLAIMED) <= 1
    assert several[0].claim(granted("urn:more")) is CLAIMED
    successor = cluster.owner(9)
    assert successor.claim(granted("urn:more", "other")) is IN_USE
    several[0].release("local urn:more")
    assert successor.claim(granted("urn:more", "other")) is CLAIMED


@pytest.mark.parametrize(
    ("location", "engine"), [("kafka://k:9092/orders?cache=c", "Kafka"), ("postgresql://h/d", "PostgreSQL")]
)
def test_tables_that_do_not_answer_are_logged_once_until_they_do(
    monkeypatch: pytest.MonkeyPatch, location: str, engine: str
) -> None:
    """Each message to a service may ask: many times a second."""

    class Tables:
        is_kept = is_away = False

        def run(self, _schema: str, *_: str, **__: Any) -> list[tuple[Any, ...]]:
            if self.is_away:
                raise TablesAway("it did not answer a moment ago")
            return [(1,)]

        def rest(self) -> None:
            pass

    tables, found = Tables(), list[dict[str, Any]]()
    monkeypatch.setattr(shared_claims, "shared_tables", lambda _location, _part: tables)
    monkeypatch.setattr(shared_claims.log, "warning", lambda event, **fields: found.append({"event": event, **fields}))
    returned: list[dict[str, Any]] = []
    monkeypatch.setattr(shared_claims.log, "info", lambda event, **fields: returned.append({"event": event, **fields}))
    claims = SharedClaims(location, 0, 1)
    for outage in range(3):
        tables.is_away = True
        for number in range(20):
            assert claims.claim(granted(f"urn:{number}")) is UNKNOWN
            claims.release(f"local urn:{number}")
        assert len(found) == outage + 1
        tables.is_away = False
        claims.claim(granted("urn:x"))
    assert found[0] == {
        "event": "identifiers.tables_away",
        "engine": engine,
        "why": "it did not answer a moment ago",
        "remedy": f"Check {engine}. Forwarders continue when it answers.",
    }
    assert [(one["event"], one["engine"]) for one in returned] == [("identifiers.tables_back", engine)] * 3
