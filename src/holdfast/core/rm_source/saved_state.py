"""Saved state of an outbound Sequence: writes it, and reads it in this format and in older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.messages import IncompleteSequenceBehavior
from holdfast.core.origin import Requester
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.core.rm_source.acknowledgement_history import AcknowledgementHistory
from holdfast.core.states import DoubtState, EndState, SourceState

if TYPE_CHECKING:
    from holdfast.core.rm_source.source import RMSource


def state_of(source: RMSource) -> State:
    """Return the state to save. A crash may lose the newest acknowledged ranges, which costs only retransmissions."""
    state = source.saved
    if state is None:
        state = source.saved = {
            "role": "source",
            "local_id": source.local_id,
            "outbox": source.key,
            "to": source.to,
            "polled": source.polled,
            "created_at": source.created_at,
        }
    state["versions"] = [source.versions.rm.value, source.versions.addressing.value, source.versions.soap.value]
    state["identifier"] = source.identifier
    # A process that reads this state finds it durable, so a granted Sequence is a created one.
    state["state"] = (SourceState.CREATED if source.state is SourceState.GRANTED else source.state).value
    state["start"] = source.numbers.start
    state["last_number"] = source.numbers.last
    state["limit"] = source.numbers.limit
    state["secret"] = source.secret
    if source.address:
        state["address"] = source.address
    if source.requester is not None:
        state["requester"] = list(source.requester)
    state["mark"] = source.numbers.mark
    state["in_doubt"] = source.doubt.is_open
    state["restored"] = source.numbers.is_restored
    state["is_limit_known"] = source.doubt.state is not DoubtState.ASKING_FOR_LIMIT
    acknowledged = source.acknowledged.copy()
    for number in source.waiting.replying:
        acknowledged.add(number)
    state["acknowledged"] = acknowledged.to_state()
    state["history"] = source.history.to_state()
    state["offer"] = source.offer
    state["message_ids"] = source.control.message_ids.copy()
    state["end_wanted"] = source.end is not EndState.OPEN
    state["last_fault"] = source.last_fault
    state["behavior"] = source.behavior.value
    state["expires"] = source.life.expires
    state["expires_at"] = source.life.expires_at
    return state.copy()


def restore(source: RMSource, state: State, available: int, now: float) -> None:
    """Restore the saved state of a new object.

    Args:
        source: The Sequence.
        state: What :func:`state_of` returned, in this version or an older one.
        available: The highest number that has a durable message.
        now: Seconds.
    """
    source.created_at = min(state.get("created_at", now), now)
    source.to = state["to"]
    source.identifier = state["identifier"]
    source.state = SourceState(state["state"])
    source.numbers.start = state["start"]
    source.numbers.available = available
    source.numbers.last = state["last_number"]
    source.numbers.limit = min(source.numbers.limit, state["limit"])
    source.numbers.is_restored = state.get("restored", False)
    source.acknowledged.update(AcknowledgementRanges.from_state(state["acknowledged"]))
    source.history = AcknowledgementHistory(AcknowledgementRanges.from_state(state.get("history", [])), now)
    source.offer = state["offer"]
    source.secret = state.get("secret", "")
    source.address = state.get("address", "")
    if "requester" in state:
        source.requester = Requester(*state["requester"])
    source.control.message_ids = dict(state["message_ids"])
    if state["end_wanted"]:
        source.end = EndState.WANTED
    source.last_fault = state["last_fault"]
    source.behavior = IncompleteSequenceBehavior(state.get("behavior", source.behavior))
    source.life.restore(state.get("expires"), state["expires_at"], now)
    # The earlier process may have transmitted any number up to the mark, so the peer may acknowledge any of them. The
    # unacknowledged numbers are transmitted again as the window opens.
    source.numbers.sent_before = source.numbers.last or available
    if "mark" in state:
        source.numbers.mark = state["mark"]
    elif source.identifier is not None:
        source.numbers.mark = source.numbers.sent_before  # saved without a mark by an older version
    source.numbers.durable_mark = source.numbers.mark
    if not source.polled:
        source.numbers.sent_before = min(source.numbers.sent_before, source.numbers.mark)
    source.numbers.next = source.acknowledged.first_gap
    if state.get("in_doubt", False):
        source.doubt.restore(is_limit_known=state.get("is_limit_known", True))
    if source.numbers.last is not None or source.state in (SourceState.CLOSING, SourceState.TERMINATING):
        source.end = EndState.DURABLE
    if source.numbers.last is not None and source.state is SourceState.CREATED:
        source.state = SourceState.ROLLOVER  # the format of an older version: decided, and not yet numbered
    if source.state is SourceState.CLOSED:
        source.move_rest()
    if source.state is SourceState.CREATING or source.doubt.is_open:
        source.control.due = now
