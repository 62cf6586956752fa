"""Each row goes in exactly the right places, by any routes, whatever is null.

Covers pipeline/mediation/transformations/routing.py.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.transformations.routing import Route, route

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONDITIONS = {
    "": lambda n, s: True,
    "n > 5": lambda n, s: n is not None and n > 5,
    "n % 3 = 0": lambda n, s: n is not None and n % 3 == 0,
    "s = 'a'": lambda n, s: s == "a",
    "n > 2 AND s = 'b'": lambda n, s: n is not None and n > 2 and s == "b",
    "n IS NULL OR s IS NULL": lambda n, s: n is None or s is None,
    "false": lambda n, s: False,
}
ROWS = [(place, n, s) for place, (n, s) in enumerate((n, s) for n in (None, 0, 1, 3, 6, 9) for s in (None, "a", "b"))]


def places(routes: list[Route], n: int | None, s: str | None) -> set[str]:
    found: set[str] = set()
    for one in routes:
        if CONDITIONS[one.when](n, s):
            found |= set(one.to)
            if not one.onwards:
                break
    return found


@pytest.mark.nightly
@pytest.mark.spark
def test_each_row_follows_the_first_route_that_matches_and_onwards_if_told(
    spark: SparkSession,
) -> None:
    chance = random.Random(7)
    rows = spark.createDataFrame(ROWS, "id INT, n INT, s STRING")
    for _ in range(12):
        routes = [
            Route(
                tuple(chance.sample("abcd", chance.randint(1, 2))), chance.choice([*CONDITIONS]), chance.random() < 0.4
            )
            for _ in range(chance.randint(1, 5))
        ]
        found = {name: {row.id for row in taken.collect()} for name, taken in route(rows, routes).items()}
        expected = {name: set[int]() for name in {*(name for one in routes for name in one.to), ""}}
        for place, n, s in ROWS:
            for name in places(routes, n, s) or {""}:
                expected[name].add(place)
        assert found == expected, routes


@pytest.mark.spark
def test_routes_may_be_pairs_and_none_is_an_error(spark: SparkSession) -> None:
    rows = spark.range(4)
    found = route(rows, [("few", "id < 1"), ("rest", "")])
    assert {name: taken.count() for name, taken in found.items()} == {"few": 1, "rest": 3, "": 0}
    assert found["few"].columns == ["id"]
    with pytest.raises(ConfigurationError, match="the list of routes is empty"):
        route(rows, [])
