"""The state table of a partition, as a node of a consumer group sees it."""

from __future__ import annotations

from holdfast.core.states.table import Event, Name


class GroupState(Name):
    """A partition. Only the worker of a partition that is served or given away may act."""

    ELSEWHERE = "elsewhere: no worker"
    WAITING = "waiting: the worker may start, but not act, because an earlier owner may still act"
    SERVED = "served: the worker runs, or starts"
    GIVING = "giving: the worker ends, and the group waits for that"
    LOST = "lost: the worker must end, and may not act"
    RETURNED = "returned: assigned again, and the worker of the earlier assignment must end first"


class GroupEvent(Event):
    """Events of a partition."""

    ASSIGNED = "the group assigned it to this node"
    CLEAR = "no earlier owner acts any longer"
    REVOKED = "the group wants it back, or the node ends"
    TAKEN = "the node is no longer a member"
    STOPPED = "its worker has ended, or none was there"
    FAILED = "its worker cannot be started on this node now"


_S, _E = GroupState, GroupEvent

GROUP_TABLE: dict[tuple[GroupState, GroupEvent], GroupState] = {
    (_S.ELSEWHERE, _E.ASSIGNED): _S.WAITING,
    (_S.ELSEWHERE, _E.REVOKED): _S.ELSEWHERE,
    (_S.ELSEWHERE, _E.TAKEN): _S.ELSEWHERE,
    (_S.ELSEWHERE, _E.STOPPED): _S.ELSEWHERE,
    (_S.WAITING, _E.CLEAR): _S.SERVED,
    (_S.WAITING, _E.REVOKED): _S.ELSEWHERE,
    (_S.WAITING, _E.TAKEN): _S.ELSEWHERE,
    # A report of an earlier worker.
    (_S.WAITING, _E.STOPPED): _S.WAITING,
    (_S.WAITING, _E.FAILED): _S.WAITING,
    (_S.SERVED, _E.REVOKED): _S.GIVING,
    (_S.SERVED, _E.TAKEN): _S.LOST,
    (_S.SERVED, _E.STOPPED): _S.SERVED,
    # The group knows no reason to give it to another node, so this one tries again.
    (_S.SERVED, _E.FAILED): _S.WAITING,
    (_S.GIVING, _E.REVOKED): _S.GIVING,
    (_S.GIVING, _E.TAKEN): _S.LOST,
    (_S.GIVING, _E.STOPPED): _S.ELSEWHERE,
    (_S.LOST, _E.ASSIGNED): _S.RETURNED,
    (_S.LOST, _E.REVOKED): _S.LOST,
    (_S.LOST, _E.TAKEN): _S.LOST,
    (_S.LOST, _E.STOPPED): _S.ELSEWHERE,
    (_S.RETURNED, _E.CLEAR): _S.RETURNED,
    (_S.RETURNED, _E.REVOKED): _S.LOST,
    (_S.RETURNED, _E.TAKEN): _S.LOST,
    (_S.RETURNED, _E.STOPPED): _S.WAITING,
}
"""The group gives a partition of a member to another one only after the member confirmed it, or was removed."""

ENDING = frozenset({_S.GIVING, _S.LOST, _S.RETURNED})
"""States with a worker that must end."""
ASSIGNED = frozenset({_S.WAITING, _S.SERVED, _S.RETURNED})
"""States in which the group gives the partition to this node."""
