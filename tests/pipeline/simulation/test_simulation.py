"""Grids of trials on Spark, and the figures of their report.

Covers pipeline/simulation/report.py.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.pipeline.landing.tables import read_landed
from holdfast.pipeline.simulation import report as simulation_report
from holdfast.pipeline.simulation import trials as simulation
from holdfast.pipeline.simulation.grid import Grid, parse_grid
from holdfast.simulation import trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRID = parse_grid(
    ["loss=0,0.2", "delay=10ms", "window=4,16", "backoff=usual,eager", "messages=6"], sequences=30, seed=5
)


def row(**given: Any) -> dict[str, Any]:
    usual = {"loss": 0.1, "delay": 0.1, "window": 8, "backoff": "usual", "goodput": 10.0, "overhead": 0.1}
    more = {
        "incomplete": 0,
        "requests": 1.3,
        "latency_50": 0.1,
        "latency_95": 0.2,
        "latency_99": 0.3,
        "longest": 0.4,
        "cell": 0,
    }
    return usual | more | given


@pytest.mark.spark
def test_spark_gives_what_each_trial_gives_by_itself(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulation, "PER_TASK", 70)  # tasks that hold parts of several combinations
    found = {(one.cell, one.seed): one for one in simulation.simulate(spark, GRID).collect()}
    assert len(found) == GRID.total
    cells = GRID.cells
    for (number, seed), one in found.items():
        outcome = trial.run(GRID.trial(cells[number]), seed)
        assert (one.loss, one.delay, one.window, one.backoff) == tuple(
            getattr(cells[number], name) for name in ("loss", "delay", "window", "backoff")
        )
        assert (one.seconds, one.transmissions, one.requests, one.dropped, one.is_complete) == (
            outcome.seconds,
            outcome.transmissions,
            outcome.requests,
            outcome.dropped,
            outcome.is_complete,
        )
        assert one.latencies == pytest.approx(outcome.latencies)


@pytest.mark.spark
def test_the_summary_is_what_the_outcomes_come_to(spark: SparkSession):
    rows = simulation.summarize(simulation.simulate(spark, GRID)).collect()
    cells = GRID.cells
    assert [one.cell for one in rows] == list(range(len(cells)))
    for one in rows:
        outcomes = [trial.run(GRID.trial(cells[one.cell]), seed) for seed in range(5, 35)]
        latencies = sorted(latency for outcome in outcomes for latency in outcome.latencies)
        delivered = len(latencies)
        assert (one.sequences, one.incomplete) == (30, 0)
        assert one.goodput == pytest.approx(delivered / sum(outcome.seconds for outcome in outcomes))
        assert one.overhead == pytest.approx(sum(outcome.transmissions for outcome in outcomes) / delivered - 1)
        assert one.requests == pytest.approx(sum(outcome.requests for outcome in outcomes) / delivered)
        for name, share in (("latency_50", 0.5), ("latency_95", 0.95), ("latency_99", 0.99)):
            near = latencies[int(share * delivered) - 2 : int(share * delivered) + 3]
            allowed = 1e-6 * near[-1]  # Spark keeps them in 4 bytes
            assert near[0] - allowed <= one[name] <= near[-1] + allowed
        assert one.longest == pytest.approx(latencies[-1])


@pytest.mark.nightly
@pytest.mark.spark
def test_quantiles_are_those_of_the_latencies_and_margins_those_of_a_bootstrap(spark: SparkSession):
    grid = parse_grid(["loss=0.2", "delay=20ms", "window=32", "backoff=patient"], sequences=600)
    outcomes = [trial.run(grid.trial(grid.cells[0]), seed) for seed in range(grid.sequences)]
    (found,) = simulation.summarize(simulation.simulate(spark, grid)).collect()
    latencies = sorted(latency for outcome in outcomes for latency in outcome.latencies)
    for name, share in (("latency_50", 0.5), ("latency_95", 0.95), ("latency_99", 0.99)):
        at = int(share * len(latencies))
        assert latencies[at - 1] - 1e-5 <= found[name] <= latencies[at + 1] + 1e-5
    chance = random.Random(1)
    goodput, overhead = [], []
    for _ in range(1_000):
        drawn = chance.choices(outcomes, k=len(outcomes))
        delivered = sum(len(one.latencies) for one in drawn)
        goodput.append(delivered / sum(one.seconds for one in drawn))
        overhead.append(sum(one.transmissions for one in drawn) / delivered - 1)
    assert found.goodput_margin == pytest.approx(1.96 * stdev(goodput), rel=0.1)
    assert found.overhead_margin == pytest.approx(1.96 * stdev(overhead), rel=0.1)


def test_the_best_policy_is_quick_and_of_those_the_one_that_sends_least():
    quick, thrifty = row(goodput=10.0, overhead=0.5), row(goodput=9.8, overhead=0.1)
    assert simulation_report.best_of([quick, thrifty, row(goodput=5.0, overhead=0.0)]) is thrifty


def test_a_policy_that_leaves_sequences_incomplete_is_not_the_best():
    safe = row(goodput=1.0)
    assert simulation_report.best_of([row(goodput=100.0, incomplete=1), safe]) is safe


def test_the_reading_has_a_sentence_for_each_network():
    rows = [
        row(loss=loss, backoff=name, goodput=goodput)
        for loss in (0.0, 0.5)
        for name, goodput in (("a", 4.0), ("b", 2.0))
    ]
    lines = simulation_report.reading([*rows, row(loss=0.9, incomplete=3)])
    assert lines[0].startswith(
        "Loss 0%, delay 100 ms: window 8 with the backoff a is best, 4 messages/s at 10% overhead"
    )
    assert "2 times the goodput of window 8 with b" in lines[1]
    assert "3 Sequences did not complete" in lines[-1]


@pytest.mark.nightly  # the next tests have its parts without another Java
@pytest.mark.spark
def test_the_command_says_what_came_of_each_combination_and_keeps_the_rows(tmp_path: Path, spark: SparkSession):
    out, page = tmp_path / "grid", tmp_path / "grid.html"
    words = ["--grid", "loss=0,0.2 delay=10ms window=8", "--grid", "backoff=usual,eager", "--sequences", "20"]
    command = ["simulate", *words, "--out", str(out), "--html", str(page), "--master", "local[1]", "--json"]
    done = subprocess.run([sys.executable, "-m", "holdfast", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["loss"], line["backoff"], line["sequences"]) for line in lines] == [
        (loss, name, 20) for loss in (0.0, 0.2) for name in ("usual", "eager")
    ]
    assert read_landed(spark, str(out / "outcomes")).count() == 80
    assert "Best policies" in page.read_text()


def test_a_grid_without_a_place_for_its_rows_is_wrong_usage():
    command = [sys.executable, "-m", "holdfast", "simulate", "--grid", "loss=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--out" in done.stderr


def test_a_page_has_every_combination():
    grid = Grid(loss=(0.1,), delay=(0.1,), window=(8,))
    rows = [row(cell=number, backoff=name) for number, name in enumerate(grid.backoff)]
    parts = simulation_report.parts(grid, rows, 3.0)
    tables = [part for part in parts if isinstance(part, simulation_report.Table)]
    assert [one[3] for one in tables[0].rows] == list(grid.backoff)
    assert [dict(zip(tables[0].columns, one, strict=True))["longest"] for one in tables[0].rows] == ["400 ms"] * 4
