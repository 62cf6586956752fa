"""The state table of a partition, as a node of a consumer group sees it."""

from __future__ import annotations

from holdfast.core.states.table import Event, Name


class GroupState(Name):
    """A partition. Only the worker of a partition that is served or given away may act."""

    ELSEWHERE = "elsewhere: no worker"
    WAITING = "waiting: the worker starts and follows the log, but does not act, because another owner may still act"
    SERVED = "served: the worker runs, or starts"
    GIVING = "giving: the worker must end"
    RETURNED = "returned: this node's again, and the worker of the earlier assignment must end first"


class GroupEvent(Event):
    """Events of a partition."""

    ASSIGNED = "it is this node's"
    CLEAR = "no earlier owner acts any longer"
    CLAIMED = "another process has claimed its log"
    REVOKED = "it is no longer this node's, and the next node is prepared, or the time to keep it is over"
    STOPPED = "its worker has ended, or none was there"
    FAILED = "its worker cannot be started on this node now"


_S, _E = GroupState, GroupEvent

GROUP_TABLE: dict[tuple[GroupState, GroupEvent], GroupState] = {
    (_S.ELSEWHERE, _E.ASSIGNED): _S.WAITING,
    (_S.ELSEWHERE, _E.STOPPED): _S.ELSEWHERE,
    (_S.WAITING, _E.CLEAR): _S.SERVED,
    (_S.WAITING, _E.CLAIMED): _S.WAITING,
    # Its worker may have claimed the log a moment ago.
    (_S.WAITING, _E.REVOKED): _S.GIVING,
    # A report of an earlier worker.
    (_S.WAITING, _E.STOPPED): _S.WAITING,
    (_S.WAITING, _E.FAILED): _S.WAITING,
    (_S.SERVED, _E.CLAIMED): _S.WAITING,
    (_S.SERVED, _E.REVOKED): _S.GIVING,
    (_S.SERVED, _E.STOPPED): _S.SERVED,
    # The group knows no reason to give it to another node, so this one tries again.
    (_S.SERVED, _E.FAILED): _S.WAITING,
    (_S.GIVING, _E.ASSIGNED): _S.RETURNED,
    (_S.GIVING, _E.STOPPED): _S.ELSEWHERE,
    (_S.RETURNED, _E.REVOKED): _S.GIVING,
    (_S.RETURNED, _E.STOPPED): _S.WAITING,
}
"""An absent cell cannot occur."""

ENDING = frozenset({_S.GIVING, _S.RETURNED})
"""States with a worker that must end."""
ASSIGNED = frozenset({_S.WAITING, _S.SERVED, _S.RETURNED})
"""States in which the partition is this node's, or it keeps it for a while."""
