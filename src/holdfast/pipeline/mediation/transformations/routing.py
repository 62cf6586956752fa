"""Routes: the first route with a true condition takes a row.

A condition that is null is not true. Each row is decided once: the sinks are a column, and filters read only that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError
from holdfast.settings import check_arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUTES = "__holdfast_routes"
"""The column with the names of a row's sinks."""


@dataclass(frozen=True)
class Route:
    """A route.

    Args:
        to: Names of its sinks.
        when: An SQL condition; "": every row.
        onwards: Whether its rows also continue to the routes below.
    """

    to: tuple[str, ...]
    when: str = ""
    onwards: bool = False


def route(rows: DataFrame, routes: Iterable[Route | tuple[str, str]]) -> dict[str, DataFrame]:
    """Return rows by sink; under "" the rows that no route takes.

    Args:
        rows: Any DataFrame, also a stream's.
        routes: In order: routes, or pairs of a name and a condition. The condition "" takes every row.

    Raises:
        ConfigurationError: The list of routes is empty.
    """
    check_arguments(route, locals())
    made = [one if isinstance(one, Route) else Route((one[0],), one[1]) for one in routes]
    names = dict.fromkeys(name for one in made for name in one.to)
    decided = with_routes(rows, made)
    return {name: taken(decided, name) for name in (*names, "")}


def with_routes(rows: DataFrame, routes: Sequence[Route]) -> DataFrame:
    """Add a column with the names of each row's destinations."""
    from pyspark.sql import functions as F

    if not routes:
        raise ConfigurationError("the list of routes is empty", remedy="Add a route, with a condition or without")
    decided = F.array().cast("array<string>")
    for one in reversed(routes):
        to = F.array(*[F.lit(name) for name in one.to])
        takes = F.coalesce(F.expr(f"({one.when})").cast("boolean"), F.lit(False)) if one.when else F.lit(True)
        decided = F.when(takes, F.array_union(to, decided) if one.onwards else to).otherwise(decided)
    return rows.withColumn(ROUTES, decided)


def taken(decided: DataFrame, name: str) -> DataFrame:
    """Return the rows with this destination; "": the rows without one."""
    from pyspark.sql import functions as F

    mine = F.array_contains(ROUTES, name) if name else F.size(ROUTES) == 0
    return decided.where(mine).drop(ROUTES)
