"""The Identifiers that peers granted to the partitions of a cluster on Kafka: on a fake topic, and on a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.cluster.group import identifiers
from holdfast.cluster.group.identifiers import TopicClaims, topic_of
from holdfast.cluster.group.pictures import identifiers_of
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.core.sending.identifier_claims import ClaimResult, GrantedIdentifier
from holdfast.store.kafka.address import read_kafka_address

CLAIMED, IN_USE, UNKNOWN = ClaimResult.CLAIMED, ClaimResult.IN_USE, ClaimResult.UNKNOWN


class FakeTopic:
    """One process's view of a topic that is a list."""

    def __init__(self, log: list[tuple[str, bytes | None]]) -> None:
        self.log = log
        self.is_at_end = False
        self.is_away = self.loses_outcomes = False
        self.before_write: Callable[[], object] = lambda: None
        self._next = 0
        self._outcomes: list[Callable[[bool], None]] = []

    def changes(self, wait: float) -> Iterable[tuple[str, bytes | None]]:
        if self.is_away:
            return []
        found = self.log[self._next :]
        self._next += len(found)
        self.is_at_end = True
        return found

    def say(self, key: str, value: bytes | None, then: Callable[[bool], None]) -> None:
        before, self.before_write = self.before_write, lambda: None
        before()
        if not self.is_away:
            self.log.append((key, value))
            self._outcomes += [] if self.loses_outcomes else [then]

    def hear_outcomes(self, wait: float) -> None:
        outcomes, self._outcomes = self._outcomes, []
        for then in outcomes:
            then(True)


class Cluster:
    """Partitions before one topic."""

    def __init__(self) -> None:
        self.log: list[tuple[str, bytes | None]] = []
        self.is_trusted = True

    def owner(self, partition: int, *recovered: GrantedIdentifier) -> tuple[TopicClaims, FakeTopic]:
        topic = FakeTopic(self.log)
        claims = TopicClaims(partition, lambda: self.is_trusted, lambda: topic)
        claims.announce(recovered)
        return claims, topic


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A fake topic answers at once, or never."""
    if "live" not in request.node.name:
        monkeypatch.setattr(identifiers, "PATIENCE", 0.02)
        monkeypatch.setattr(identifiers, "_LOOK", 0.0)


def granted(identifier: str, local_id: str = "", to: str = "http://shop/") -> GrantedIdentifier:
    return GrantedIdentifier(local_id or f"local {identifier}", to, identifier)


def test_an_identifier_belongs_to_one_partition_until_its_sequence_ends() -> None:
    cluster = Cluster()
    (one, _), (two, _) = cluster.owner(0), cluster.owner(1)
    assert one.claim(granted("urn:x")) is CLAIMED
    assert one.claim(granted("urn:x")) is CLAIMED, "the same Sequence again"
    assert two.claim(granted("urn:x")) is IN_USE
    assert two.claim(granted("urn:x", to="http://other/")) is CLAIMED, "of another peer"
    one.release("local urn:x")
    one.release("local urn:x")
    assert two.claim(granted("urn:x", "another")) is CLAIMED
    assert one.claim(granted("urn:x", "a third")) is IN_USE


def test_a_claim_stays_while_its_partition_has_no_owner_and_moves() -> None:
    cluster = Cluster()
    (one, _), (two, _) = cluster.owner(0), cluster.owner(1)
    assert one.claim(granted("urn:x")) is CLAIMED and one.claim(granted("urn:lost")) is CLAIMED
    assert two.claim(granted("urn:x")) is IN_USE
    successor, _ = cluster.owner(0, granted("urn:x"))
    assert two.claim(granted("urn:x")) is IN_USE
    assert successor.claim(granted("urn:y")) is CLAIMED
    assert two.claim(granted("urn:lost")) is CLAIMED, "its Sequence was never stored"


def test_a_recovered_claim_that_the_topic_lacks_is_written() -> None:
    cluster = Cluster()
    (one, _), (two, _) = cluster.owner(0, granted("urn:x"), granted("urn:ended")), cluster.owner(1)
    one.release("local urn:ended")
    assert one.claim(granted("urn:y")) is CLAIMED
    assert two.claim(granted("urn:x")) is IN_USE
    assert two.claim(granted("urn:ended")) is CLAIMED


def test_of_two_claims_at_once_the_first_in_the_topic_counts() -> None:
    cluster = Cluster()
    (one, topic), (two, _) = cluster.owner(0), cluster.owner(1)
    results: list[ClaimResult] = []
    topic.before_write = lambda: results.append(two.claim(granted("urn:x")))
    results.append(one.claim(granted("urn:x")))
    assert results == [CLAIMED, IN_USE]
    two.release("local urn:x")
    assert cluster.owner(2)[0].claim(granted("urn:x")) is CLAIMED, "the second one deleted its claim"


def test_an_earlier_try_of_unknown_outcome_does_not_count() -> None:
    """Otherwise two have it: the other one's claim comes between the deletion of that try and the next one."""
    cluster = Cluster()
    (one, topic), (two, _) = cluster.owner(0), cluster.owner(1)
    topic.loses_outcomes = True
    assert one.claim(granted("urn:x")) is UNKNOWN
    topic.loses_outcomes = False
    results: list[ClaimResult] = []

    def between() -> None:
        topic.before_write = lambda: results.append(two.claim(granted("urn:x")))

    topic.before_write = between
    assert (one.claim(granted("urn:x")), results) == (IN_USE, [CLAIMED])


def test_without_kafka_a_claim_is_unknown_and_what_was_missed_is_written_later() -> None:
    cluster = Cluster()
    (one, topic), (two, _) = cluster.owner(0), cluster.owner(1)
    topic.is_away = True
    assert one.claim(granted("urn:y")) is UNKNOWN
    topic.is_away = False
    assert one.claim(granted("urn:x")) is CLAIMED
    topic.is_away = True
    one.release("local urn:x")
    assert two.claim(granted("urn:x", "two")) is IN_USE, "not released yet: nobody uses it, which does no harm"
    topic.is_away = False
    assert one.claim(granted("urn:y")) is CLAIMED
    assert two.claim(granted("urn:x", "two")) is CLAIMED


def test_an_owner_without_trust_changes_nothing() -> None:
    cluster = Cluster()
    stale, _ = cluster.owner(0, granted("urn:a"))
    owner, _ = cluster.owner(0, granted("urn:a"))
    assert owner.claim(granted("urn:b")) is CLAIMED
    before, cluster.is_trusted = list(cluster.log), False
    assert stale.claim(granted("urn:c")) is UNKNOWN
    stale.release("local urn:a")
    assert cluster.log == before


def test_the_claims_of_a_partition_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifiers, "MOST_CLAIMS", 2)
    one, _ = Cluster().owner(0, granted("urn:a"), granted("urn:b"))
    assert one.claim(granted("urn:c")) is ClaimResult.FULL
    one.release("local urn:a")
    assert one.claim(granted("urn:c")) is CLAIMED


def test_what_is_no_claim_has_no_effect() -> None:
    cluster = Cluster()
    (one, _), digest = cluster.owner(0), ""
    one.claim(granted("urn:x"))
    digest = cluster.log[0][0].partition(" ")[0]
    cluster.log[:] = [(digest, b""), (f"{digest} x", b""), ("", b""), ("a", None)]
    assert cluster.owner(1)[0].claim(granted("urn:y")) is CLAIMED


STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "end", "crash", "lose"]), st.integers(0, 2), st.integers(0, 3)), max_size=20
)


@given(STEPS)
def test_no_identifier_has_two_users_whatever_order_claims_ends_and_crashes_have(
    steps: list[tuple[str, int, int]],
) -> None:
    """Partitions that crash recover the Sequences that they had stored; half of the claims were not stored before."""
    cluster = Cluster()
    several = [cluster.owner(partition) for partition in range(3)]
    stored: list[dict[str, GrantedIdentifier]] = [{}, {}, {}]
    for count, (what, partition, name) in enumerate(steps):
        identifier = f"urn:{name}"
        users = [number for number in range(3) if identifier in stored[number]]
        if what == "claim" and identifier not in stored[partition]:
            asked = granted(identifier, f"local {count}")
            result = several[partition][0].claim(asked)
            assert result is not CLAIMED or not users
            if result is CLAIMED and count % 2:
                stored[partition][identifier] = asked
        elif what == "end" and identifier in stored[partition]:
            several[partition][0].release(stored[partition].pop(identifier).local_id)
        elif what == "lose":
            several[partition][1].loses_outcomes ^= True
        elif what == "crash":
            several[partition] = cluster.owner(partition, *stored[partition].values())


@pytest.mark.nightly
def test_of_live_claims_at_once_one_gets_the_identifier(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> None:
    location = kafka_nodes(1).new_url(tmp_path / "cache")
    address = read_kafka_address(location)
    topic = SharedTopic(address, identifiers_of(address))
    topic.open(creates=True)

    def claim(one: TopicClaims, wanted: GrantedIdentifier) -> ClaimResult:
        while (result := one.claim(wanted)) is UNKNOWN:
            pass
        return result

    several = [TopicClaims(partition, lambda: True, lambda: topic_of(location)) for partition in range(4)]
    with ThreadPoolExecutor(len(several)) as threads:
        for one in several:
            one.announce([])
        for name in range(20):
            results = list(threads.map(lambda one, name=name: claim(one, granted(f"urn:{name}")), several))
            assert sorted(result.name for result in results) == ["CLAIMED"] + ["IN_USE"] * 3
    successor = TopicClaims(9, lambda: True, lambda: topic_of(location))
    successor.announce([])
    assert claim(successor, granted("urn:7", "other")) is IN_USE
    for one in several:
        one.release("local urn:7")
    assert claim(successor, granted("urn:7", "other")) is CLAIMED
    topic.close()
