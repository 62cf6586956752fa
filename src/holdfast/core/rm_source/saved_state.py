"""Attributes of an outbound Sequence. Writes its saved state, and reads it in this format and in older ones."""

from __future__ import annotations

from typing import Self

from holdfast.core.messages import IncompleteSequenceBehavior
from holdfast.core.origin import Requester
from holdfast.core.policy import SourcePolicy
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.core.rm_source.acknowledgement_history import AcknowledgementHistory
from holdfast.core.rm_source.control_requests import ControlRequests
from holdfast.core.rm_source.doubt import SequenceDoubt
from holdfast.core.rm_source.flight import Flight
from holdfast.core.rm_source.lifetime import Lifetime
from holdfast.core.rm_source.message_numbers import MessageNumbers
from holdfast.core.rm_source.pace import Pace
from holdfast.core.rm_source.transmissions import Transmissions
from holdfast.core.rm_source.waiting_requests import SequenceRequests
from holdfast.core.states.outbound import DoubtEvent, DoubtState, EndState, SourceState
from holdfast.core.versions import Versions


class OutboundSequence:
    """The attributes of one outbound Sequence, most of which its store keeps.

    Args:
        local_id: Its name in the store, which it has before it has an Identifier: the MessageID of its CreateSequence.
            If either side offered the Sequence, or its version has no CreateSequence, the Identifier itself.
        policy: Its limits and timers.
        polled: Whether its destination is an anonymous endpoint: its messages leave only in answers to requests.
    """

    __slots__ = (
        "acknowledged", "acks_to", "address", "asked_first_at", "behavior", "control", "created_at", "doubt", "end",
        "flight", "history", "identifier", "is_final", "is_recovered", "key", "last_fault", "life", "local_id",
        "numbers", "offer", "pace", "policy", "polled", "requester", "saved", "secret", "state", "to", "transmissions",
        "versions", "waiting",
    )  # fmt: skip

    def __init__(
        self, local_id: str, key: str, versions: Versions, policy: SourcePolicy, now: float, *, polled: bool = False
    ):
        self.local_id = local_id
        self.key = key
        self.versions = versions
        self.policy = policy
        self.polled = polled
        self.created_at = now
        self.identifier: str | None = None
        self.state = SourceState.NONE
        self.end = EndState.OPEN
        """Progress of its end."""
        self.numbers = MessageNumbers(policy.max_message_number)
        self.acknowledged = AcknowledgementRanges()
        self.history = AcknowledgementHistory()
        self.flight = Flight()
        self.waiting = SequenceRequests()
        self.pace = Pace(policy, now)
        self.transmissions = Transmissions(self.flight, self.waiting, self.pace)
        self.control = ControlRequests()
        self.doubt = SequenceDoubt(local_id, self.numbers, self.flight, self.waiting, self.acknowledged, self.control)
        """The question which unacknowledged numbers the peer has."""
        self.life = Lifetime(now)
        self.offer: str | None = None
        self.address = self.secret = ""
        """For a forwarder, the address given to the peer and its unguessable part; "" without one."""
        self.acks_to = ""
        """The address that its destination was given for acknowledgements, without the secret; "" if it posts none, or
        a version that did not save it has created the Sequence."""
        self.asked_first_at: float | None = None
        """When this run first asked which numbers the destination has, for its first new message; None: not yet."""
        self.is_final = False
        """Whether the destination has answered our CloseSequence with its final acknowledgement."""
        self.is_recovered = False
        """Whether an earlier run has created it, and it has had no turn since."""
        self.to: str | None = None
        """Destination of a Sequence that answers an Offer; None: the outbox's address, or anonymous."""
        self.requester: Requester | None = None
        """The requester that it replies to; None: none, or unknown."""
        self.behavior = IncompleteSequenceBehavior.NO_DISCARD
        """What the destination does if the Sequence ends with a gap, according to its grant."""
        self.last_fault = ""
        self.saved: State | None = None

    def to_state(self) -> State:
        """Return the state to save. The newest acknowledged ranges may be lost, which costs only retransmissions."""
        state = self.saved
        if state is None:
            state = self.saved = {
                "role": "source",
                "local_id": self.local_id,
                "outbox": self.key,
                "to": self.to,
                "polled": self.polled,
                "created_at": self.created_at,
            }
        state["versions"] = [self.versions.rm.value, self.versions.addressing.value, self.versions.soap.value]
        state["identifier"] = self.identifier
        # A process that reads this state finds it durable, so a granted Sequence is a created one.
        state["state"] = (SourceState.CREATED if self.state is SourceState.GRANTED else self.state).value
        state["start"] = self.numbers.start
        state["last_number"] = self.numbers.last
        state["limit"] = self.numbers.limit
        state["secret"] = self.secret
        if self.address:
            state["address"] = self.address
        if self.acks_to:
            state["acks_to"] = self.acks_to
        if self.requester is not None:
            state["requester"] = list(self.requester)
        state["mark"] = self.numbers.mark
        state["in_doubt"] = self.doubt.is_open
        state["restored"] = self.numbers.is_restored
        # As long as new numbers are withheld, the next run must know which ones are new.
        state["withheld"] = self.numbers.withheld
        state["is_limit_known"] = self.doubt.state is not DoubtState.ASKING_FOR_LIMIT
        # In the batch that stores the replies, so the ranges and the replies become durable together.
        acknowledged = self.acknowledged.copy()
        for number in self.waiting.replying:
            acknowledged.add(number)
        state["acknowledged"] = acknowledged.to_state()
        state["history"] = self.history.to_state()
        state["offer"] = self.offer
        state["message_ids"] = self.control.message_ids.copy()
        state["end_wanted"] = self.end is not EndState.OPEN
        state["last_fault"] = self.last_fault
        state["behavior"] = self.behavior.value
        state["expires"] = self.life.expires
        state["expires_at"] = self.life.expires_at
        return state.copy()

    @classmethod
    def from_state(cls, state: State, policy: SourcePolicy, available: int, now: float) -> Self:
        """Restore a saved Sequence. It retransmits every message that is not known to be acknowledged."""
        versions = Versions(*state["versions"])
        source = cls(state["local_id"], state["outbox"], versions, policy, now, polled=state["polled"])
        source.restore(state, available, now)
        return source

    def restore(self, state: State, available: int, now: float) -> None:
        """Restore the saved state of a new object.

        Args:
            state: What :meth:`to_state` returned, in this version or an older one.
            available: The highest number that has a durable message.
        """
        # A clock that was set back must not make the Sequence younger than it is now.
        self.created_at = min(state.get("created_at", now), now)
        self.to = state["to"]
        self.identifier = state["identifier"]
        self.state = SourceState(state["state"])
        self.numbers.start = state["start"]
        self.numbers.available = available
        self.numbers.last = state["last_number"]
        # The policy may have a lower limit by now.
        self.numbers.limit = min(self.numbers.limit, state["limit"])
        self.numbers.is_restored = state.get("restored", False)
        self.acknowledged.update(AcknowledgementRanges.from_state(state["acknowledged"]))
        self.history = AcknowledgementHistory(AcknowledgementRanges.from_state(state.get("history", [])), now)
        self.offer = state["offer"]
        self.secret = state.get("secret", "")
        self.address = state.get("address", "")
        self.acks_to, self.is_recovered = state.get("acks_to", ""), True
        if "requester" in state:
            self.requester = Requester(*state["requester"])
        self.control.message_ids = dict(state["message_ids"])
        if state["end_wanted"]:
            self.end = EndState.WANTED
        self.last_fault = state["last_fault"]
        self.behavior = IncompleteSequenceBehavior(state.get("behavior", self.behavior))
        self.life.restore(state.get("expires"), state["expires_at"], now)
        # The earlier process may have transmitted any number up to the mark, so the peer may acknowledge any of them.
        # The unacknowledged numbers are transmitted again as the window opens.
        self.numbers.sent_before = self.numbers.last or available
        if "mark" in state:
            self.numbers.mark = state["mark"]
        elif self.identifier is not None:
            self.numbers.mark = self.numbers.sent_before  # saved without a mark by an older version
        self.numbers.durable_mark = self.numbers.mark
        if not self.polled:
            self.numbers.sent_before = min(self.numbers.sent_before, self.numbers.mark)
        # From the first gap on, every number is transmitted again, unless the acknowledged ranges contain it.
        self.numbers.next = self.acknowledged.first_gap
        if state.get("in_doubt", False):
            self.doubt.restore(is_limit_known=state.get("is_limit_known", True))
        if self.numbers.last is not None or self.state in (SourceState.CLOSING, SourceState.TERMINATING):
            self.end = EndState.DURABLE
        if self.numbers.last is not None and self.state is SourceState.CREATED:
            self.state = SourceState.ROLLOVER  # the format of an older version: decided, and not yet numbered
        if self.state is SourceState.CLOSED:
            self.move_rest()
        if self.state is SourceState.CREATING or self.doubt.is_open:
            self.control.due = now

    def move_rest(self) -> None:
        """Move unacknowledged and new messages to the next Sequence, after the peer closed this one."""
        self.numbers.keep_sent()
        self.doubt.resolve(DoubtEvent.MOVED)
        self.doubt.lower_limit(self.acknowledged.first_gap - 1)
