"""What a row of looks has shown of a partition, and how long a node waits for the one that may still act on it.

A node acts by the last claim of the log. Until when it may is the author's matter: nodes may be of two versions, or
have two leases while the operator changes them. So a waiting node counts with the author's times, or with the longest
that it knows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from holdfast.cluster.group.members import ReportedClaim
from holdfast.cluster.lease_policy import LeasePolicy


@dataclass(frozen=True, slots=True)
class Sight:
    """What an unbroken row of looks has shown of a partition.

    Args:
        pin: Its only pin; "": none; None: several.
        since: When the answer to the first of them came that counts; infinite: none counts yet.
        sent: When the last one was sent.
        is_clear: Whether no other node acts, as long as the row lasts.
    """

    pin: str | None
    since: float
    sent: float
    is_clear: bool = False

    def continued(self, sent: float, now: float) -> Sight:
        """Return the sight after another look that shows the same pins."""
        return replace(self, sent=sent, since=min(self.since, now))

    def begun_again(self) -> Sight:
        """Return the sight if only later looks count."""
        return replace(self, since=math.inf, is_clear=False)


class Presence:
    """Until when the others find this node in the group.

    A member that two looks show was in the group from one to the other. So while each look shows a member of the look
    before it, no other node can have found this one gone.

    Args:
        policy: That of this node.

    Attributes:
        until: A hold after the last look was sent that has shown a member of this node.
        since: When the first look of the present row was sent, in which each look shows a member of the look before.
    """

    def __init__(self, policy: LeasePolicy) -> None:
        self.until, self.since = 0.0, math.inf
        self._hold = policy.hold
        self._members: frozenset[str] = frozenset()

    def looked(self, members: frozenset[str], sent: float) -> bool:
        """A look has shown these members of this node. Return False if it may have been gone since the look before."""
        is_unbroken, self._members = bool(members & self._members), members
        if members:
            self.until = sent + self._hold
        if not is_unbroken:
            self.since = sent
        return is_unbroken


class Waits:
    """How long a node waits for the author of the last claim of a log.

    Args:
        policy: That of this node.

    Attributes:
        longest: That of the node with the longest lease, as far as is known.
    """

    def __init__(self, policy: LeasePolicy) -> None:
        self.longest = self._own = policy
        self._claims: Mapping[int, ReportedClaim] = {}
        self._known_before: dict[int, int] = {}
        self._known: dict[int, int] = {}
        """Partition -> its last claim that was known when the last look was answered."""
        self._gone: dict[int, tuple[int, float]] = {}
        """Partition -> a claim, and when the answer to the first of the last looks came that do not show its node."""

    def noted(self, claims: Mapping[int, ReportedClaim], longest_lease: float) -> None:
        """Follow the last claims and the longest lease that nodes have reported."""
        self._claims = claims
        if (lease := max(longest_lease, self._own.lease)) != self.longest.lease:
            self.longest = LeasePolicy(lease)

    def begin(self, partition: int) -> None:
        """This node has got a partition."""
        claim = self._claims.get(partition)
        self._known_before[partition] = 0 if claim is None else claim.epoch

    def known_before(self, partition: int) -> int:
        """Return the last claim of a log that a node had reported when this node got the partition; 0: none had."""
        return self._known_before.get(partition, 0)

    def looked(self, nodes: Collection[tuple[str, float]], now: float) -> None:
        """A look has shown these nodes, with the start of each, and no others.

        A node acts by one claim as long as it has the partition, and for a hold after it was last in the group. If it
        gets the partition again, it claims the log again. So a look that does not show the author of a claim ends what
        that node may do by it. The claim must be older than the look.
        """
        for partition, claim in self._claims.items():
            if (claim.node, claim.since) in nodes:
                self._gone.pop(partition, None)
            elif self._known.get(partition) == claim.epoch != self._gone.get(partition, (0, 0.0))[0]:
                self._gone[partition] = (claim.epoch, now)
        self._known = {partition: claim.epoch for partition, claim in self._claims.items()}

    def over_after(self, partition: int, epoch: int | None, sight: Sight) -> float:
        """Return after when the last look of a row must be sent so that no other node acts.

        Args:
            partition: The partition.
            epoch: The last claim of its log; None: not known yet.
            sight: What the row has shown.
        """
        if sight.pin:
            return sight.since + self.longest.lease
        until, claim, gone = sight.since + self.longest.keep, self._claims.get(partition), self._gone.get(partition)
        has_looked = sight.since < math.inf  # before that, the partition may have a pin
        if has_looked and claim is not None and gone is not None and claim.epoch == epoch == gone[0]:
            until = min(until, gone[1] + claim.hold)
        return until
