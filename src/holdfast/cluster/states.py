"""The state tables of a node's membership and of each partition, as this node sees it."""

from __future__ import annotations

from holdfast.core.states.table import OURS, Event, Name


class NodeState(Name):
    """The membership of this node."""

    JOINING = "joining"
    MEMBER = "member"
    JOINING_TO_DRAIN = "joining to drain"
    DRAINING = "draining"
    LEAVING = "leaving"
    LEFT = "left"


class NodeEvent(Event):
    """Events of the membership."""

    JOINED = "the database has a new incarnation of this node"
    DECLARED_DEAD = "another node declared this one dead, or took its name"
    DRAIN = "an operator drains this node"
    RESUME = "an operator lets this node take partitions again"
    END = "the node ends"
    GONE = "the row of this node is deleted", OURS
    OVERDUE = "leaving takes too long", OURS


class NodeAction(Name):
    """Actions of the membership."""

    SETTLE = "claim what an earlier incarnation owned, and the rest later"
    LOSE_ALL = "lose all partitions, and join again"
    GIVE_ALL = "give all partitions away"
    STOP = "lose all partitions, and stop"
    NOTHING = "nothing"


_N, _NE, _NA = NodeState, NodeEvent, NodeAction

NODE_TABLE: dict[tuple[NodeState, NodeEvent], tuple[NodeAction, NodeState]] = {
    (_N.JOINING, _NE.JOINED): (_NA.SETTLE, _N.MEMBER),
    (_N.JOINING, _NE.DRAIN): (_NA.NOTHING, _N.JOINING_TO_DRAIN),
    (_N.JOINING, _NE.END): (_NA.STOP, _N.LEFT),
    (_N.MEMBER, _NE.DECLARED_DEAD): (_NA.LOSE_ALL, _N.JOINING),
    (_N.MEMBER, _NE.DRAIN): (_NA.GIVE_ALL, _N.DRAINING),
    (_N.MEMBER, _NE.END): (_NA.GIVE_ALL, _N.LEAVING),
    # A node that drains stays in the cluster: it passes requests on until it ends.
    (_N.JOINING_TO_DRAIN, _NE.JOINED): (_NA.NOTHING, _N.DRAINING),
    (_N.JOINING_TO_DRAIN, _NE.DRAIN): (_NA.NOTHING, _N.JOINING_TO_DRAIN),
    (_N.JOINING_TO_DRAIN, _NE.END): (_NA.STOP, _N.LEFT),
    (_N.DRAINING, _NE.DECLARED_DEAD): (_NA.LOSE_ALL, _N.JOINING_TO_DRAIN),
    (_N.DRAINING, _NE.DRAIN): (_NA.NOTHING, _N.DRAINING),
    (_N.DRAINING, _NE.RESUME): (_NA.NOTHING, _N.MEMBER),
    (_N.DRAINING, _NE.END): (_NA.GIVE_ALL, _N.LEAVING),
    # A node that was declared dead owns nothing, so nothing is left to give away.
    (_N.LEAVING, _NE.DECLARED_DEAD): (_NA.STOP, _N.LEFT),
    (_N.LEAVING, _NE.DRAIN): (_NA.NOTHING, _N.LEAVING),
    (_N.LEAVING, _NE.END): (_NA.NOTHING, _N.LEAVING),
    (_N.LEAVING, _NE.GONE): (_NA.STOP, _N.LEFT),
    (_N.LEAVING, _NE.OVERDUE): (_NA.STOP, _N.LEFT),
    (_N.LEFT, _NE.DRAIN): (_NA.NOTHING, _N.LEFT),
    (_N.LEFT, _NE.END): (_NA.NOTHING, _N.LEFT),
}
"""A node that stops without leaving loses its lock with its connection, and other nodes declare it dead."""


class PartitionState(Name):
    """A partition, as this node sees it. Only the worker of a partition that is served or given away may act."""

    ELSEWHERE = "elsewhere: no worker, and no claim"
    SERVED = "served: the worker runs, or starts"
    GIVING = "giving: the worker ends"
    GIVEN = "given: the worker has ended, and the claim must be released"
    LOST = "lost: no claim, and the worker must end"


class PartitionEvent(Event):
    CLAIMED = "this node claimed it"
    FOUND = "the database names this node as the owner"
    GIVE = "this node gives it away", OURS
    TAKEN = "the claim no longer exists"
    STOPPED = "its worker has ended, or never started"
    RELEASED = "the database names no owner"


_P, _PE = PartitionState, PartitionEvent

PARTITION_TABLE: dict[tuple[PartitionState, PartitionEvent], PartitionState] = {
    (_P.ELSEWHERE, _PE.CLAIMED): _P.SERVED,
    # The answer to the claim was lost.
    (_P.ELSEWHERE, _PE.FOUND): _P.GIVEN,
    (_P.ELSEWHERE, _PE.TAKEN): _P.ELSEWHERE,
    (_P.ELSEWHERE, _PE.STOPPED): _P.ELSEWHERE,
    (_P.SERVED, _PE.FOUND): _P.SERVED,
    (_P.SERVED, _PE.GIVE): _P.GIVING,
    (_P.SERVED, _PE.TAKEN): _P.LOST,
    # The supervisor does not start this worker again.
    (_P.SERVED, _PE.STOPPED): _P.GIVEN,
    (_P.GIVING, _PE.FOUND): _P.GIVING,
    (_P.GIVING, _PE.TAKEN): _P.LOST,
    (_P.GIVING, _PE.STOPPED): _P.GIVEN,
    (_P.GIVEN, _PE.FOUND): _P.GIVEN,
    (_P.GIVEN, _PE.TAKEN): _P.ELSEWHERE,
    (_P.GIVEN, _PE.STOPPED): _P.GIVEN,
    (_P.GIVEN, _PE.RELEASED): _P.ELSEWHERE,
    # This node claims no partition while an earlier worker of it runs.
    (_P.LOST, _PE.TAKEN): _P.LOST,
    (_P.LOST, _PE.STOPPED): _P.ELSEWHERE,
}
"""The row of a partition stays with this node until its worker has ended, so no other node starts one before."""

TRUSTED = frozenset({PartitionState.SERVED, PartitionState.GIVING})
"""States in which the worker may act, as long as the node is trusted."""
