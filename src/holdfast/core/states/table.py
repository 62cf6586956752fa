"""Common parts of all state tables: names, the originator of an event, and the meaning of an absent cell."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class NoSuchMove(RuntimeError):
    """Our own event has no cell in the current state of a Sequence: a bug in Holdfast, not in the peer."""


class Name(Enum):
    """An enum hashed by identity. Every message looks up the tables, and Enum's own hash is slow."""

    # Members are singletons, so their identity is enough.
    __hash__ = object.__hash__


class Event(Name):
    """An event: its description, and whether this side causes it (a call, a timer, a commit)."""

    is_ours: bool

    def __new__(cls, words: str, is_ours: bool = False) -> Event:
        """Create an event: its description, and whether this side causes it."""
        member = object.__new__(cls)
        member._value_ = words
        member.is_ours = is_ours
        return member


OURS = True

StateT = TypeVar("StateT", bound=Enum)
EventT = TypeVar("EventT", bound=Event)
ActionT = TypeVar("ActionT")


def step(
    table: Mapping[tuple[StateT, EventT], tuple[ActionT, StateT]], state: StateT, event: EventT, about: object
) -> tuple[ActionT | None, StateT]:
    """Return the action of the cell for an event, and the state after it.

    Without a cell, the action is None and the state stays: see :func:`absent`.

    Args:
        about: What has the state; its text is for the error.

    Raises:
        NoSuchMove: for our own event without a cell.
    """
    cell = table.get((state, event))
    if cell is None:
        absent(about, state, event)
        return None, state
    return cell


def absent(about: object, state: Enum, event: Event) -> None:
    """Handle an event without a cell: do nothing for the peer's event, which is then answered as unknown.

    Args:
        about: The Sequence or outbox, in words.

    Raises:
        NoSuchMove: for our own event.
    """
    if event.is_ours:
        raise NoSuchMove(
            f"{about} is in state {state.value!r}, which has no cell for {event.value!r}: an error in Holdfast. "
            "Acknowledged messages are safe. Please report this line and the steps before it."
        )
