"""Saved state of an inbound Sequence: writes it, and reads it in this format and in older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.messages import EndpointReference, IncompleteSequenceBehavior
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.core.states import DESTINATION_TABLES, DestinationEvent, DestinationState, SettlingState
from holdfast.core.versions import Versions

if TYPE_CHECKING:
    from holdfast.core.rm_destination.destination import RMDestination

_CREATED = DestinationState.CREATED  # an enum's members are slow to look up by its class

UNKNOWN_BYTES = 256 * 1024
"""Size assumed for a held message without a saved size: one of an older version, or one of very many."""


def state_of(destination: RMDestination) -> State:
    """Return the state to save in the same batch as the messages it accepted."""
    # For every message: copy the constant part, then add the parts that changed.
    state = (destination.saved or _constant_state(destination)).copy()
    state["partition"] = destination.partition
    state["accepted"] = destination.accepted.to_state()
    state["next_in_order"] = destination.next_in_order
    state["last_activity"] = destination.last_activity
    if destination.state is not _CREATED:
        state["state"] = destination.state.value
    destination.replies.save(state)
    if destination.marker is not None:
        state["marker"] = destination.marker
    if destination.last_message_number is not None:
        state["last_message_number"] = destination.last_message_number
    if destination.ended_at is not None:
        state["ended_at"] = destination.ended_at
    if destination.last_fault:
        state["last_fault"] = destination.last_fault
    if destination.disowned:
        state["disowned"] = True
    if destination.asks_by_reply_to:
        state["asks"] = True
    if destination.gap_reported:
        state["gaps"] = destination.gap_reported
    if destination.suspended is not None:
        state["suspended"] = destination.suspended
    if destination.held and len(destination.held) <= destination.policy.buffer:  # more only if everything is held
        state["held"] = [*destination.held, *destination.held.values()]
    if destination.routed:
        state["routed"] = [[number, *names] for number, names in destination.routed.items()]
    return state


def _constant_state(destination: RMDestination) -> State:
    """Return the constant part of the state, and initial values of rare changes."""
    versions, acks_to, accept_acks_to = destination.versions, destination.acks_to, destination.accept_acks_to
    destination.saved = {
        "role": "destination",
        "identifier": destination.identifier,
        "versions": [versions.rm.value, versions.addressing.value, versions.soap.value],
        "acks_to": [acks_to.address, list(acks_to.reference_parameters)],
        "accept_acks_to": accept_acks_to.address if accept_acks_to else None,
        "create_message_id": destination.create_message_id,
        "party": destination.party,
        "created_at": destination.created_at,
        "expires": destination.expires,
        "expires_at": destination.expires_at,
        "behavior": destination.behavior.value,
        "offered": destination.offered,
        "kept_alive": destination.is_kept_alive,
        "state": _CREATED.value,
        "accepted": [],
        "awaiting": [],
        "next_in_order": 1,
        "marker": None,
        "last_message_number": None,
        "replies": [],
        "last_activity": destination.created_at,
        "ended_at": None,
        "last_fault": "",
        "gaps": [],
    }
    return destination.saved


def restore(destination: RMDestination, state: State, held: list[int], now: float) -> None:
    """Restore the saved state of a new object.

    Args:
        destination: The Sequence.
        state: What :func:`state_of` returned, in this version or an older one.
        held: The numbers of the held messages in the store.
        now: Seconds.
    """
    destination.behavior = IncompleteSequenceBehavior(state["behavior"])
    destination.state = DestinationState(state["state"])
    destination.accepted = AcknowledgementRanges.from_state(state["accepted"])
    destination.replies.restore(state)
    # Everything in the batch is durable, now that its state is read back: only replies can still be awaited.
    destination.acknowledge_accepted()
    if destination.state is not _CREATED:
        is_awaiting = bool(destination.replies.awaiting)
        destination.settling = SettlingState.AWAITING if is_awaiting else SettlingState.SETTLED
    _restore_held(destination, held, state.get("held", []))
    destination.next_in_order = state["next_in_order"]
    destination.marker = state["marker"]
    destination.last_message_number = state["last_message_number"]
    destination.offered = state["offered"]
    destination.create_message_id = state["create_message_id"]
    destination.party = state.get("party", "")
    if state["accept_acks_to"] is not None:
        destination.accept_acks_to = EndpointReference(state["accept_acks_to"])
    destination.partition = state["partition"]
    for number in destination.replies.numbers:
        destination.acknowledged.add(number)
    destination.expires = state["expires"]
    destination.expires_at = state["expires_at"]
    if destination.expires_at is not None and destination.expires is not None:
        destination.expires_at = min(destination.expires_at, now + destination.expires)
    destination.last_activity = now
    destination.ended_at = None if state["ended_at"] is None else min(state["ended_at"], now)
    destination.last_fault = state["last_fault"]
    destination.disowned = state.get("disowned", False)
    destination.asks_by_reply_to = state.get("asks", False)
    destination.is_kept_alive = state.get("kept_alive", False)
    destination.gap_reported = list(state["gaps"])
    destination.suspended = state.get("suspended")
    destination.routed = {number: names for number, *names in state.get("routed", ())}


def _restore_held(destination: RMDestination, numbers: list[int], saved: list[int]) -> None:
    sizes = dict(zip(saved[: len(saved) // 2], saved[len(saved) // 2 :], strict=True))
    destination.held = {number: sizes.get(number, UNKNOWN_BYTES) for number in numbers}
    destination.held_bytes = sum(destination.held.values())
    if destination.state is not _CREATED:
        destination.leaving.extend(sorted(destination.held))


def closed_state(state: State) -> State:
    """Return the saved state of an inbound Sequence, closed; any other unchanged.

    This serves a store that has lost acknowledged messages. Later messages of such a Sequence would wait behind a gap
    that no sender fills. The sender instead receives SequenceClosed, or SequenceTerminated in WS-RM 1.0.
    """
    if state.get("role") != "destination" or state.get("state") != _CREATED.value:
        return state
    table = DESTINATION_TABLES[Versions(*state["versions"]).rm]
    _, after = table[DestinationState.CREATED, DestinationEvent.DECIDE_TO_CLOSE]
    ended_at = state["last_activity"] if after is DestinationState.TERMINATED else None
    return state | {"state": after.value, "ended_at": ended_at}
