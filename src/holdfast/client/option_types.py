"""The numbers of a command line: the one reader of seconds, shares and counts for every option of every command. And
options that several commands have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.settings import MOST_SECONDS

Command = TypeVar("Command", bound=Callable[..., Any])
LARGEST = 2**53
"""The largest whole number that every reader of JSON keeps."""


class Number(click.FloatRange):
    """A number within bounds, neither ``nan`` nor ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Seconds(Number):
    """A number of seconds, 0 or more, that a clock can reach.

    Args:
        zero: Whether 0 is valid.
    """

    def __init__(self, *, zero: bool = True) -> None:
        super().__init__(min=0, max=MOST_SECONDS, min_open=not zero)


class Count(click.IntRange):
    """A whole number within bounds."""

    def __init__(self, least: int = 1, most: int = LARGEST) -> None:
        super().__init__(least, most)


def with_options(*added: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(added):
            command = option(command)
        return command

    return decorate
