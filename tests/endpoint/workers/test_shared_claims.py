"""The Identifiers that peers granted to the partitions of a cluster, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from databases import PostgreSQL
from hypothesis import HealthCheck, given, settings

from holdfast.cluster.shared_database import SharedDatabase, shared_database
from holdfast.core.sending.identifier_claims import ClaimResult, GrantedIdentifier
from holdfast.endpoint.workers import shared_claims
from holdfast.endpoint.workers.shared_claims import SharedClaims

CLAIMED, IN_USE, UNKNOWN = ClaimResult.CLAIMED, ClaimResult.IN_USE, ClaimResult.UNKNOWN
Claims = Callable[[int, int], SharedClaims]


@pytest.fixture
def claims(servers: Callable[[str], PostgreSQL]) -> Iterator[Claims]:
    """Makes the claims of a partition in an epoch."""
    server = servers("postgresql")
    location = server.new_url()
    yield lambda partition, epoch: SharedClaims(location, partition, epoch)
    shared_database(location).close()


def granted(identifier: str, local_id: str = "", to: str = "http://shop/") -> GrantedIdentifier:
    return GrantedIdentifier(local_id or f"local {identifier}", to, identifier)


def test_an_identifier_belongs_to_one_partition_until_its_sequence_ends(claims: Claims) -> None:
    one, two = claims(0, 1), claims(1, 1)
    one.announce([])
    two.announce([])
    assert one.claim(granted("urn:x")) is CLAIMED
    assert one.claim(granted("urn:x")) is CLAIMED, "the same Sequence again"
    assert two.claim(granted("urn:x")) is IN_USE
    assert two.claim(granted("urn:x", to="http://other/")) is CLAIMED, "of another peer"
    one.release("local urn:x")
    one.release("local urn:x")
    assert two.claim(granted("urn:x", "another")) is CLAIMED


def test_a_claim_stays_while_its_partition_has_no_owner_and_moves(claims: Claims) -> None:
    one, two = claims(0, 1), claims(1, 1)
    one.announce([])
    assert one.claim(granted("urn:x")) is CLAIMED and one.claim(granted("urn:lost")) is CLAIMED
    two.announce([])  # partition 0 has no owner now
    assert two.claim(granted("urn:x")) is IN_USE
    successor = claims(0, 2)
    successor.announce([granted("urn:x")])
    assert two.claim(granted("urn:x")) is IN_USE
    assert two.claim(granted("urn:lost")) is CLAIMED, "its Sequence was never stored"


def test_an_owner_that_wakes_after_its_takeover_changes_nothing(claims: Claims) -> None:
    stale, owner, other = claims(0, 1), claims(0, 2), claims(1, 1)
    stale.announce([granted("urn:a")])
    owner.announce([granted("urn:a")])
    assert owner.claim(granted("urn:b")) is CLAIMED
    stale.announce([granted("urn:c")])
    assert stale.claim(granted("urn:d")) is IN_USE
    other.announce([])
    assert [other.claim(granted(f"urn:{one}", "other")) for one in "abcd"] == [IN_USE, IN_USE, CLAIMED, CLAIMED]


def test_of_partitions_that_claim_one_identifier_at_once_one_gets_it(
    servers: Callable[[str], PostgreSQL], monkeypatch: pytest.MonkeyPatch
) -> None:
    location = servers("postgresql").new_url()
    databases: list[SharedDatabase] = []

    def connect(location: str) -> SharedDatabase:
        databases.append(SharedDatabase(location))
        return databases[-1]

    monkeypatch.setattr(shared_claims, "shared_database", connect)
    several = [SharedClaims(location, partition, 1) for partition in range(6)]
    for one in several:
        one.announce([])
    with ThreadPoolExecutor(len(several)) as threads:
        for name in range(20):
            results = list(threads.map(lambda one, name=name: one.claim(granted(f"urn:{name}")), several))
            assert sorted(result.name for result in results) == ["CLAIMED"] + ["IN_USE"] * 5
    for database in databases:
        database.close()


def test_without_a_database_a_claim_is_unknown_and_what_was_missed_is_written_later(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = claims(0, 1), claims(1, 1)
    one.announce([])
    two.announce([])
    assert one.claim(granted("urn:x")) is CLAIMED
    database = one._db
    monkeypatch.setattr(one, "_db", SharedDatabase("postgresql://nobody@127.0.0.1:9/none"))
    assert one.claim(granted("urn:y")) is UNKNOWN
    one.release("local urn:x")
    monkeypatch.setattr(one, "_db", database)
    assert two.claim(granted("urn:x", "two")) is IN_USE, "not released yet: nobody uses it, which does no harm"
    assert one.claim(granted("urn:y")) is CLAIMED
    assert two.claim(granted("urn:x", "two")) is CLAIMED


def test_the_claims_of_a_partition_have_a_bound(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_claims, "MOST_CLAIMS", 2)
    one = claims(0, 1)
    one.announce([granted("urn:a"), granted("urn:b")])
    assert one.claim(granted("urn:c")) is ClaimResult.FULL
    one.release("local urn:a")
    assert one.claim(granted("urn:c")) is CLAIMED


STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "end", "crash"]), st.integers(0, 2), st.integers(0, 3)), max_size=20
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(STEPS)
def test_no_identifier_has_two_users_whatever_order_claims_ends_and_crashes_have(
    servers: Callable[[str], PostgreSQL], steps: list[tuple[str, int, int]]
) -> None:
    """Partitions that crash recover the Sequences that they had stored; half of the claims were not stored before."""
    location = servers("postgresql").new_url()
    epochs = [1, 1, 1]
    several = [SharedClaims(location, partition, 1) for partition in range(3)]
    for one in several:
        one.announce([])
    stored: list[dict[str, GrantedIdentifier]] = [{}, {}, {}]
    for count, (what, partition, name) in enumerate(steps):
        identifier = f"urn:{name}"
        users = [number for number in range(3) if identifier in stored[number]]
        if what == "claim" and identifier not in stored[partition]:
            asked = granted(identifier, f"local {count}")
            result = several[partition].claim(asked)
            assert result is not CLAIMED or not users
            if result is CLAIMED and count % 2:
                stored[partition][identifier] = asked
        elif what == "end" and identifier in stored[partition]:
            several[partition].release(stored[partition].pop(identifier).local_id)
        elif what == "crash":
            epochs[partition] += 1
            several[partition] = SharedClaims(location, partition, epochs[partition])
            several[partition].announce(stored[partition].values())
    shared_database(location).close()
