"""The error of a function names the step that calls it, wherever in the function and wherever it runs.

Covers pipeline/mediation/execution/step_functions.py.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.exceptions import HoldfastError
from holdfast.pipeline.jobs.command import own_frames
from holdfast.pipeline.jobs.mediation import _steps_named
from holdfast.pipeline.mediation.definition.file import read_pipeline
from holdfast.pipeline.mediation.definition.plan import PipelinePlan
from holdfast.pipeline.mediation.execution.samples import made_of
from holdfast.pipeline.mediation.execution.step_functions import calling_steps
from holdfast.pipeline.mediation.fixtures import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = """
import functools

import other_own
from pyspark.sql import functions as F


def plain(rows):
    raise KeyError("plain")


def helped(rows):
    return helper(rows)


def helper(rows):
    raise KeyError("helper")


def elsewhere(rows):
    return other_own.fails(rows)


def nested(rows):
    def inner(one):
        raise KeyError("nested")

    return inner(rows)


def decorated(function):
    @functools.wraps(function)
    def call(rows):
        return function(rows)

    return call


@decorated
def wrapped(rows):
    raise KeyError("wrapped")


class Called:
    def __call__(self, rows):
        raise KeyError("called")


called = Called()


def checked(text):
    return text


def by_name(rows):
    return rows.withColumn("customer", F.udf(checked, "string")("body"))


def in_worker(rows):
    def bad_customer(text):
        raise ValueError(f"{text} is not for me")

    return rows.withColumn("customer", F.udf(bad_customer, "string")("body"))


def fine(rows):
    return rows
"""
STEPS = ("plain", "helped", "elsewhere", "nested", "wrapped", "called")
FILE = """
name = "p"
checkpoint = "work"
[sources.orders]
broker = "http://127.0.0.1:1"
{}
[sinks.show]
console = 5
[[routes]]
input = "{}"
to = "show"
[dead_letters]
table = "dead"
"""
STEP = """
[steps.step_{0}]
python = "own_functions:{0}"
input = "{1}"
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """The directory of a pipeline with modules of functions."""
    (tmp_path / "own_functions.py").write_text(OWN)
    (tmp_path / "other_own.py").write_text('def fails(rows):\n    raise KeyError("elsewhere")\n')
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    for name in ("own_functions", "other_own"):
        sys.modules.pop(name, None)


def plan_with(own: Path, *functions: str) -> PipelinePlan:
    """Return a plan of which each step has a function, with the rows of the one before."""
    inputs = ["orders", *(f"step_{name}" for name in functions)]
    steps = "".join(STEP.format(name, before) for name, before in zip(functions, inputs, strict=False))
    (own / "own.toml").write_text(FILE.format(steps, inputs[-1]))
    return read_pipeline(own / "own.toml")


def test_every_function_that_a_step_leads_to_is_found_and_no_others(own: Path) -> None:
    plan = plan_with(own, *STEPS, "by_name", "fine")
    for step in plan.steps[: len(STEPS)]:
        assert step.python is not None
        with pytest.raises(KeyError) as caught:
            step.python("rows")
        frames = own_frames("".join(traceback.format_exception(caught.value)))
        assert __file__ in {frame[0] for frame in frames}, "which no step leads to"
        assert calling_steps(plan, frames) == [step.name]
    code = sys.modules["own_functions"].checked.__code__
    frame = (code.co_filename, str(code.co_firstlineno + 1), "checked")
    assert calling_steps(plan, [frame]) == ["step_by_name"]
    for wrong in ((frame[0], "9999", frame[2]), (frame[0], frame[1], "plain"), ("x.py", *frame[1:])):
        assert not calling_steps(plan, [wrong])
    assert not calling_steps(plan, [])


def test_all_steps_with_one_function_are_named(own: Path) -> None:
    plan = plan_with(own, "helped", "helper")
    code = sys.modules["own_functions"].helper.__code__
    frame = (code.co_filename, str(code.co_firstlineno + 1), "helper")
    assert calling_steps(plan, [frame]) == ["step_helped", "step_helper"]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("plain", "KeyError: 'plain', raised by plain ("),
        ("in_worker", "ValueError: <a/> is not for me, raised by bad_customer ("),
    ],
)
def test_a_failure_in_the_driver_or_in_a_worker_names_the_step(
    spark: SparkSession, own: Path, function: str, told: str
) -> None:
    plan = plan_with(own, "fine", function)
    with pytest.raises(HoldfastError) as caught, _steps_named(plan):
        made_of(spark, plan, lambda session, source: rows_of(session, source, [{"body": "<a/>"}]))
    assert told in caught.value.message
    assert caught.value.message.endswith(f", in the step step_{function}")
    assert "`problems`" in caught.value.remedy


def test_an_error_that_no_function_has_raised_stays_as_it_is(own: Path) -> None:
    plan = plan_with(own, "fine")
    with pytest.raises(KeyError, match="other"), _steps_named(plan):
        raise KeyError("other")
