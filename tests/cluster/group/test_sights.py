"""For how long a node that gets a partition waits, and for how long the node that had it acts: among nodes of two
versions, and with two leases, as while an operator replaces or configures one node after the other.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from expelled_world import ExpelledOwners
from group_world import POLICY, EarlierMembership, ForgetsHandlers, Group
from worlds import each_world

from holdfast.cluster.group.members import GroupMember, GroupPicture, LogNote, ReportedClaim
from holdfast.cluster.group.membership import GroupMembership
from holdfast.cluster.group.sights import Sight, Waits
from holdfast.cluster.lease_policy import LeasePolicy

LEASES = [LeasePolicy(2.0), POLICY, LeasePolicy(20.0)]
LONG = LeasePolicy(30.0)
VERSIONS: dict[str, Any] = {"older": EarlierMembership}
MIXED: dict[str, Any] = {"policies": LEASES}


@pytest.mark.parametrize("nodes", [VERSIONS, MIXED], ids=["versions", "leases"])
@each_world(3, 10)
def test_one_process_acts_on_a_partition_whoever_had_it(seed: int, nodes: dict[str, Any]) -> None:
    group = Group(seed, **nodes)
    group.run(60.0, faults=True)
    group.calm()


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [VERSIONS, MIXED], ids=["versions", "leases"])
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_one_process_acts_in_many_more_groups(first: int, nodes: dict[str, Any]) -> None:
    for seed in range(first, first + 100):
        group = Group(seed, **nodes)
        group.run(60.0, faults=True)
        group.calm()


@each_world(3, 30)
def test_one_process_acts_on_a_partition_if_its_owner_was_gone_for_a_moment(seed: int) -> None:
    ExpelledOwners(seed, ForgetsHandlers).run(60.0, faults=True)


class KeepsWhatItHadBeforeItWasGone(ForgetsHandlers):
    def _kept_until(self, partition: int) -> float:
        self._presence.since = 0.0
        return super()._kept_until(partition)


@pytest.mark.every(3)
def test_a_node_that_keeps_a_partition_although_it_was_gone_is_noticed() -> None:
    def search() -> None:
        for seed in range(10, 310):  # the first one notices it, unless the worlds have changed
            ExpelledOwners(seed, KeepsWhatItHadBeforeItWasGone).run(60.0, faults=True)

    with pytest.raises(AssertionError, match="act"):
        search()


class WaitsForItsOwnHold(Waits):
    """Also for a node that is still in the group, which may keep the partition."""

    def over_after(self, partition: int, epoch: int | None, sight: Sight) -> float:
        found = super().over_after(partition, epoch, sight)
        return found if sight.pin else min(found, sight.since + self._own.hold)


class TakesAnUnknownNodeForGone(Waits):
    """No report says whose claim it is, so it may be that of an earlier version."""

    def over_after(self, partition: int, epoch: int | None, sight: Sight) -> float:
        found, claim = super().over_after(partition, epoch, sight), self._claims.get(partition)
        is_known = claim is not None and claim.epoch == epoch
        return found if sight.pin or is_known else min(found, sight.since + self._own.hold)


class TakesAnEarlierAuthorForTheLast(Waits):
    def over_after(self, partition: int, epoch: int | None, sight: Sight) -> float:
        claim = self._claims.get(partition)
        return super().over_after(partition, claim.epoch if claim is not None else epoch, sight)


class CountsWithItsOwnLease(Waits):
    def noted(self, claims: Any, longest_lease: float) -> None:
        super().noted(claims, 0.0)


def mistaken(waits: type[Waits]) -> type[GroupMembership]:
    class Mistaken(ForgetsHandlers):
        def __init__(self, *known: Any) -> None:
            super().__init__(*known)
            self._waits = waits(self._policy)

    return Mistaken


MISTAKES: list[tuple[type[GroupMembership], dict[str, Any], int]] = [
    (mistaken(WaitsForItsOwnHold), {}, 1),
    (mistaken(TakesAnUnknownNodeForGone), VERSIONS, 2),
    (mistaken(TakesAnEarlierAuthorForTheLast), VERSIONS, 1),
    (mistaken(CountsWithItsOwnLease), MIXED, 6),
]


@pytest.mark.every(3)
@pytest.mark.parametrize(("mistake", "nodes", "first"), MISTAKES)
def test_a_mistake_with_the_wait_is_noticed(mistake: type[GroupMembership], nodes: dict[str, Any], first: int) -> None:
    def search() -> None:
        for seed in range(first, first + 300):  # the first one notices it, unless the worlds have changed
            Group(seed, mistake, **nodes).run(60.0, faults=True)

    with pytest.raises(AssertionError, match="act"):
        search()


# --- the times themselves --------------------------------------------------------------------------------------------

A = GroupMember("x", "a", "http://a", 40.0)
B = GroupMember("y", "b", "http://b", 41.0)
C = GroupMember("z", "c", "http://c", 42.0)


def claim_of(policy: LeasePolicy, epoch: int = 7) -> ReportedClaim:
    return ReportedClaim(epoch, "a", 40.0, policy.lease, policy.hold)


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node of an earlier version has been in the group for long."""
    monkeypatch.setattr(GroupMembership, "_are_alike", True)


def test_a_node_vouches_for_the_claim_that_it_has_waited_for_and_for_no_later_one() -> None:
    node, now = GroupMembership("b", "http://b", 1, POLICY, 41.0), 100.0
    node.assigned([0], "y", now)
    while not node.view.mine:
        now += 0.1
        node.looked(GroupPicture((B, C), True), now, now)
        node.log_noted(0, LogNote(7, False), now)
        assert node.vouched(0) == (7 if node.view.mine else 0)
        node.pass_time(now)
    assert (node.vouched(0), node.trusted_until(0)) == (7, now + POLICY.hold)
    node.log_noted(0, LogNote(8, False), now)
    assert (node.vouched(0), node.trusted_until(0)) == (0, 0.0)


class OverlooksClaims(GroupMembership):
    """A claim that its worker reads says nothing about who may act."""

    def log_noted(self, partition: int, note: LogNote, now: float) -> None:
        self._waits._known_before[partition] = note.epoch
        super().log_noted(partition, note, now)


def waited(
    members: tuple[GroupMember, ...],
    claims: dict[int, ReportedClaim],
    lease: float,
    *,
    late: int = 7,
    kind: type[GroupMembership] = GroupMembership,
) -> float:
    """For how long node b waits for partition 0, from the first look that counts. Its worker reads claim 7 after 0.3 s,
    and then a later one."""
    node = kind("b", "http://b", 1, POLICY, 41.0)

    def step(now: float) -> None:
        node.noted(is_drained=False, is_cut_off=False, now=now, claims=claims, longest_lease=lease)
        node.looked(GroupPicture(members, True), now, now)

    step(99.9)
    node.assigned([0], "y", 100.0)
    for tenths in range(1001, 1300):
        now = tenths / 10
        step(now)
        if now >= 100.4:
            node.log_noted(0, LogNote(7 if now < 100.6 else late, False), now)
        node.pass_time(now)
        if node.view.mine:
            return round(now - 100.1, 1)
    raise AssertionError("it waits for ever")


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize(
    ("members", "claims", "lease", "least"),
    [
        ((B, C), {0: claim_of(POLICY)}, 6.0, POLICY.hold),
        ((A, B, C), {0: claim_of(POLICY)}, 6.0, POLICY.keep),
        ((B, C), {}, 6.0, 0.4 + POLICY.keep),
        ((B, C), {0: claim_of(POLICY, 6)}, 6.0, 0.4 + POLICY.keep),
        ((B, C), {0: claim_of(LONG)}, 30.0, LONG.hold),
        ((A, B, C), {0: claim_of(LONG)}, 30.0, LONG.keep),
        ((B, C), {}, 30.0, 0.4 + LONG.keep),
        ((B, C), {0: claim_of(LeasePolicy(2.0))}, 6.0, 0.5),
    ],
    ids=["gone", "there", "unknown", "earlier claim", "gone, long", "there, long", "unknown, long", "gone, short"],
)
def test_a_node_waits_for_as_long_as_the_last_owner_may_act(
    members: tuple[GroupMember, ...], claims: dict[int, ReportedClaim], lease: float, least: float
) -> None:
    assert least < waited(members, claims, lease) < least + 0.3


@pytest.mark.usefixtures("alike")
def test_a_claim_that_was_made_since_begins_the_wait_again() -> None:
    """The start of the worker does not delay a takeover, but this node may have lost the partition meanwhile."""
    claims = {0: claim_of(POLICY)}
    assert waited((B, C), claims, 6.0) < 0.3 + POLICY.hold < 0.5 + POLICY.keep < waited((B, C), claims, 6.0, late=8)
    assert waited((B, C), {}, 6.0, kind=OverlooksClaims) < 0.4 + POLICY.keep, "the mistake is noticed"


@pytest.mark.parametrize(
    ("looks", "gone"),
    [
        (["a b", "a b", "b"], 2),
        (["b", "b"], 1),
        (["a b", "b", "b"], 1),
        (["a b", "b", "a b"], None),
        (["b", "a b", "b"], 2),
    ],
    ids=["gone", "claimed meanwhile", "still gone", "back again", "gone again"],
)
def test_an_author_is_gone_from_the_first_look_after_its_claim_that_does_not_show_it(
    looks: list[str], gone: int | None
) -> None:
    """The claim is reported after the first look was sent, so that look says nothing about its author."""
    waits, sight = Waits(POLICY), Sight("", 100.0, 100.0)
    for number, nodes in enumerate(looks):
        waits.noted({0: claim_of(POLICY)}, 6.0)
        waits.looked([(node, {"a": 40.0, "b": 41.0}[node]) for node in nodes.split()], float(number))
    expected = 100.0 + POLICY.keep if gone is None else gone + POLICY.hold
    assert waits.over_after(0, 7, sight) == expected
    assert waits.over_after(0, 8, sight) == waits.over_after(0, None, sight) == 100.0 + POLICY.keep


def keeps(*looks: GroupMember, is_removed: bool = False) -> float:
    """For how long after its last look as the owner node a acts that has lost a partition, if looks then show these
    members of it, one each."""
    node = GroupMembership("a", "http://a", 1, POLICY, 40.0)
    node.assigned([0], "x", 90.0)
    for tenths in range(900, 1001):
        node.looked(GroupPicture((A, B), True), tenths / 10, tenths / 10)
        node.log_noted(0, LogNote(1, False), tenths / 10)
    node.lost([0], 100.0, is_removed=is_removed)
    now = 100.0
    for one in looks:
        now += 0.2
        if now > node.trusted_until(0):
            break
        node.looked(GroupPicture((one, B), True), now, now)
    return round(node.trusted_until(0) - 100.0, 6)


AGAIN = GroupMember("again", "a", "http://a", 40.0)


def test_a_node_keeps_a_lost_partition_as_long_as_it_is_in_the_group() -> None:
    assert keeps(*[A] * 20) == round(POLICY.keep, 6)
    assert keeps() == POLICY.hold
    assert keeps(A, A) == 0.4 + POLICY.hold


def test_a_node_that_may_have_been_gone_meanwhile_keeps_nothing() -> None:
    """It has joined again, so that the next owner may have found it gone."""
    assert keeps(A, AGAIN, AGAIN, AGAIN) == 0.2 + POLICY.hold
    assert keeps(*[A] * 20, is_removed=True) == POLICY.hold


def both_act(kind: type[GroupMembership], expelled: float, joins: float) -> list[float]:
    """When node a and node b act on a partition of a, which the group removes and gives to b after so many seconds. The
    second member of a joins after so many, and only then its first one leaves."""
    a, b = kind("a", "http://a", 1, POLICY, 40.0), kind("b", "http://b", 1, POLICY, 41.0)
    a.assigned([0], "x", 90.0)
    b.noted(is_drained=False, is_cut_off=False, now=90.0, claims={0: claim_of(POLICY)}, longest_lease=6.0)
    found, is_given, has_left = [], False, False
    for step in range(2000, 2100):
        now = step / 20
        members = (A, B) if now < 100.0 + expelled else (B,) if now < 100.0 + joins else (AGAIN, B)
        if A not in members and not is_given:
            is_given = True
            b.assigned([0], "y", now)
        for node in (a, b):
            node.looked(GroupPicture(members, True), now, now)
        if not has_left and a.has_joined(AGAIN.id):
            has_left = True
            a.give_all(now)
        a.log_noted(0, LogNote(7, False, 7), now)
        if is_given:
            b.log_noted(0, LogNote(8, False, 8) if b.view.mine else LogNote(7, False), now)
        for node in (a, b):
            node.pass_time(now)
        if all(0 in node.view.mine and now < node.trusted_until(0) for node in (a, b)):
            found.append(now)
    assert b.view.mine
    return found


GONE = [(at, at + later) for at, later in product([0.05, 0.2, 0.45], [0.05, 0.2, 0.4, 0.6, 0.8, 1.0, 1.4, 2.0])]


@pytest.mark.usefixtures("alike")
def test_a_node_whose_second_member_joins_late_keeps_nothing() -> None:
    """The group may have removed its first member meanwhile, and the client reports that later."""
    assert {gone: found for gone in GONE if (found := both_act(GroupMembership, *gone))} == {}
    mistaken = [gone for gone in GONE if both_act(KeepsWhatItHadBeforeItWasGone, *gone)]
    assert (0.05, 0.65) in mistaken, "the mistake is noticed"


@pytest.mark.usefixtures("alike")
def test_a_node_serves_a_partition_only_after_a_further_look() -> None:
    """Although it has found the last owner gone before: it knows no pins that came since its last look."""
    node = GroupMembership("b", "http://b", 2, POLICY, 41.0)
    node.noted(is_drained=False, is_cut_off=False, now=90.0, claims={0: claim_of(POLICY)}, longest_lease=6.0)
    node.assigned([1], "y", 90.0)
    for tenths in range(900, 980):
        members = (A, B) if tenths < 960 else (B,)
        node.looked(GroupPicture(members, True), tenths / 10, tenths / 10)
    node.assigned([0], "y", 97.95)
    node.log_noted(0, LogNote(7, False), 97.96)
    node.pass_time(97.96)
    assert 0 not in node.view.mine
    node.looked(GroupPicture((B,), True), 98.0, 98.0)
    assert 0 in node.view.mine


class CountsFromTheSendingOfALook(ForgetsHandlers):
    def looked(self, picture: GroupPicture, sent: float, now: float) -> None:
        super().looked(picture, sent, sent)


ANSWERS = [
    (i / 20, took) for i, took in product(range(25), [0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.9, 1.3]) if took > i / 20
]
"""How long before 100.0 the first look without node a was sent, and how long the answer to it took."""


def too_early(kind: type[GroupMembership]) -> list[tuple[float, ...]]:
    """The times with which node b serves a partition while node a may act, which was last in the group at 99.99: those
    of an answer, how much later b gets the partition, and how long b waits between its next looks."""
    found = []
    for (before, took), later, pause in product(ANSWERS, [0.0, 0.1, 0.3], [0.02, 0.1]):
        node, sent, last = kind("b", "http://b", 1, POLICY, 41.0), 100.0 - before, 99.99 + POLICY.hold

        def look(members: tuple[GroupMember, ...], sent: float, now: float, node: GroupMembership = node) -> None:
            node.noted(is_drained=False, is_cut_off=False, now=now, claims={0: claim_of(POLICY)}, longest_lease=6.0)
            node.looked(GroupPicture(members, True), sent, now)

        look((A, B), sent - 0.2, sent - 0.15)
        look((A, B), sent - 0.1, sent - 0.05)
        answered, given = sent + took, 100.01 + later
        for now in sorted((answered, given)):
            if now == given:
                node.assigned([0], "y", now)
            else:
                look((B,), sent, now)
        node.log_noted(0, LogNote(7, False), now)
        node.pass_time(now)
        while not node.view.mine:
            now += pause
            look((B,), now, now + 0.01)
            node.log_noted(0, LogNote(7, False), now + 0.01)
            node.pass_time(now + 0.01)
        if now < last:
            found.append((before, took, later, pause))
    return found


@pytest.mark.usefixtures("alike")
def test_a_node_waits_for_an_owner_that_may_have_asked_until_the_answer() -> None:
    assert too_early(GroupMembership) == []
    assert len(too_early(CountsFromTheSendingOfALook)) > 10, "the mistake is noticed"
