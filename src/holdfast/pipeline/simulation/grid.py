"""The combinations of networks and policies to simulate, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import product
from typing import TYPE_CHECKING, Any

from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.settings import seconds_of, suggestion

if TYPE_CHECKING:
    from holdfast.simulation.trial import Trial

BACKOFFS = {
    "usual": RetransmissionPolicy(),
    "eager": RetransmissionPolicy(initial=0.5, floor=0.05, cap=5.0),
    "steady": RetransmissionPolicy(initial=1.0, floor=1.0, cap=1.0),
    "patient": RetransmissionPolicy(initial=5.0, floor=2.0, cap=60.0),
}
"""By name: the defaults; as soon as the measured round trip allows; each second, without growth; seldom."""


MOST, MOST_EACH = 10**10, 10**6
"""Maximum of Sequences of a grid, and of messages of each: more is a typing error, or a row that no task can hold."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination.

    Args:
        loss: Share of requests and of answers that are lost.
        delay: Seconds one way.
        window: Maximum of messages in flight.
        backoff: The name of a retransmission policy.
    """

    loss: float
    delay: float
    window: int
    backoff: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of the first four fields, each with the same seeds.

    Args:
        loss: Shares of requests, and of answers, that are lost.
        delay: Seconds one way.
        window: Maximum of messages in flight.
        backoff: Retransmission policies by name.
        sequences: Sequences simulated for each combination; each is a seed.
        seed: The first seed.
        messages: Of each Sequence.
        interval: Seconds from one message to the next; 0: all at once.
        capacity: Requests per second that get through the network; more wait in line.
        line: Requests that may wait in line; the network drops the next one.

    Raises:
        ConfigurationError: The grid is empty, or a number is out of range.
    """

    loss: tuple[float, ...] = (0.0, 0.05, 0.2)
    delay: tuple[float, ...] = (0.01, 0.1)
    window: tuple[int, ...] = (4, 32)
    backoff: dict[str, RetransmissionPolicy] = field(default_factory=lambda: dict(BACKOFFS))
    sequences: int = 1_000
    seed: int = 0
    messages: int = 10
    interval: float = 0.0
    capacity: float = 1_000.0
    line: int = 64

    def __post_init__(self) -> None:
        for name in ("loss", "delay", "window", "backoff"):
            if not getattr(self, name):
                raise ConfigurationError(f"the grid has no {name}", remedy=f"Give at least one: {name}=…")
        if self.sequences < 1 or self.seed < 0:
            raise ConfigurationError(
                f"sequences={self.sequences}, seed={self.seed}: there is nothing to simulate",
                remedy="Set sequences to at least 1, and seed to at least 0.",
            )
        for name, given, most in (
            ("Sequences", self.total, MOST),
            ("messages of each Sequence", self.messages, MOST_EACH),
        ):
            if given > most:
                raise ConfigurationError(
                    f"the grid has {given:,} {name}, but at most {most:,} can be simulated",
                    remedy="Use fewer: two cores simulate a million Sequences of ten messages in some minutes.",
                )
        for cell in self.cells:  # raises here instead of in a task
            self.trial(cell)

    @property
    def cells(self) -> list[Cell]:
        """The combinations, in order."""
        return [Cell(*one) for one in product(self.loss, self.delay, self.window, self.backoff)]

    def trial(self, cell: Cell) -> Trial:
        """Return the trial of one combination.

        Raises:
            ConfigurationError: One of its numbers is not valid.
        """
        from holdfast.simulation.trial import Link, Trial

        source = SourcePolicy(self.backoff[cell.backoff], window=cell.window, initial_window=min(4, cell.window))
        link = Link(cell.loss, cell.delay, capacity=self.capacity, line=self.line)
        return Trial(link, source, messages=self.messages, interval=self.interval)

    @property
    def total(self) -> int:
        return len(self.cells) * self.sequences


def parse_grid(words: Iterable[str], **instead: Any) -> Grid:
    """Parse a grid from words such as ``loss=0,0.1 delay=10ms,200ms window=8,32 backoff=usual,steady``.

    A backoff is a name of :data:`BACKOFFS`, or ``NAME:initial=1s;floor=100ms;cap=10s``.

    Args:
        words: Each ``name=value,value…``; other fields have the defaults of :class:`Grid`.
        instead: Fields that override the words.

    Raises:
        ConfigurationError: A word is not valid.
    """
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _READERS or not equals:
            known = [f"{one}=" for one in _READERS]
            raise ConfigurationError(
                f"the grid has no {word!r}", remedy=suggestion(f"{name}=", known, f"It has {', '.join(known)}.")
            )
        try:
            given[name] = _READERS[name](value)
        except ValueError as error:
            raise ConfigurationError(
                f"the grid's {word!r} cannot be read: {error}",
                remedy="Example: loss=0,0.1 delay=10ms,200ms window=8,32 backoff=usual,steady messages=20.",
            ) from error
    return Grid(**given, **{name: value for name, value in instead.items() if value is not None})


def _seconds(text: str) -> float:
    seconds = seconds_of(text)
    return float(text) if seconds is None else seconds


def _several(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(read(one) for one in text.split(","))


def _backoffs(text: str) -> dict[str, RetransmissionPolicy]:
    return dict(_backoff(one) for one in text.split(","))


def _backoff(text: str) -> tuple[str, RetransmissionPolicy]:
    name, _, settings = text.partition(":")
    if not settings:
        if name not in BACKOFFS:
            raise ValueError(
                f"{name!r} is not one of {', '.join(BACKOFFS)}; define your own as NAME:initial=1s;cap=10s"
            )
        return name, BACKOFFS[name]
    pairs = [one.partition("=") for one in settings.split(";")]
    known = [one.name for one in fields(RetransmissionPolicy)]
    if wrong := [key for key, _, _ in pairs if key not in known]:
        raise ValueError(f"a backoff has no {wrong[0]!r}; it has {', '.join(known)}")
    given: dict[str, Any] = {key: int(value) if key == "steady" else _seconds(value) for key, _, value in pairs}
    return name, RetransmissionPolicy(**given)


_READERS: dict[str, Callable[[str], Any]] = {
    "loss": _several(float),
    "delay": _several(_seconds),
    "window": _several(int),
    "backoff": _backoffs,
    "messages": int,
    "interval": _seconds,
    "capacity": float,
    "line": int,
}
