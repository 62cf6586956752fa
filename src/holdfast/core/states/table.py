"""What all state tables share: their names, whose an event is, and what an absent cell means."""

from __future__ import annotations

from enum import Enum


class NoSuchMove(RuntimeError):
    """This side did something to a Sequence in a state that does not allow it: a bug in Holdfast, not in the peer."""


class Name(Enum):
    """An enum hashed by identity: the tables are looked up for every message, and Enum's own hash is slow."""

    __hash__ = object.__hash__


class Event(Name):
    """Something that happens: what it is called, and whether it is we who do it (a call, a timer, a commit)."""

    is_ours: bool

    def __new__(cls, words: str, is_ours: bool = False) -> Event:
        """Create an event: its description, and whether this side causes it."""
        member = object.__new__(cls)
        member._value_ = words
        member.is_ours = is_ours
        return member


OURS = True


def absent(about: str, state: Enum, event: Event) -> None:
    """What to do where a table has no cell: nothing, for what a peer did, which is then answered as unknown.

    Args:
        about: Which Sequence or outbox.
        state: Its state.
        event: What happened.

    Raises:
        NoSuchMove: for what we did ourselves.
    """
    if event.is_ours:
        raise NoSuchMove(
            f"{about} is in state {state.value!r}, which has no cell for {event.value!r}: an error in Holdfast. "
            "Acknowledged messages are safe. Please report this line and the steps before it."
        )
