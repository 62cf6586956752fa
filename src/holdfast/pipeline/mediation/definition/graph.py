"""The dependencies between the parts of a pipeline, and which rows one Spark query carries.

A source is one query, and its batches run all of its steps. A step with state is a separate query, because only Spark's
stream keeps state: its inputs run in the stream, its outputs in the batches of that query.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.pipeline.mediation.definition.plan import PipelinePlan, RoutePlan, SinkPlan, SourcePlan, StepPlan

_NOT_NAMES = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def inputs_of(step: StepPlan, above: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs of a step; for SQL, all names above that occur in its text as a word."""
    if not step.sql:
        return step.input
    words = {word.lower() for word in _WORD.findall(_NOT_NAMES.sub(" ", step.sql))}
    return tuple(name for name in above if name.lower() in words)


def can_fail(step: StepPlan) -> bool:
    """Whether rows of the step may go to the dead letters."""
    return not step.keep and not step.sql


@dataclass(frozen=True)
class Query:
    """The work of one Spark query.

    Args:
        name: Its name: the source's, or that of the step with state.
        source: The source it reads.
        stream: Steps that run in the stream itself; the last has state. None: all run in its batches.
        steps: Steps that run in its batches.
        routes: Routes of their rows.
        sinks: The sinks of these.
    """

    name: str
    source: SourcePlan
    stream: tuple[StepPlan, ...]
    steps: tuple[StepPlan, ...]
    routes: tuple[RoutePlan, ...]
    sinks: tuple[SinkPlan, ...]

    @property
    def replaces(self) -> bool:
        """Whether each batch replaces the content of the query's tables."""
        return any(step.state is not None and step.state.output == "complete" for step in self.stream)


class Graph:
    """The dependencies between the parts of a plan.

    Args:
        plan: A plan without mistakes, or the readable part of one.
    """

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan = plan
        self.inputs: dict[str, tuple[str, ...]] = {}
        above = [*(one.name for one in plan.sources), *(one.name for one in plan.tables)]
        for step in plan.steps:
            self.inputs[step.name] = tuple(name for name in inputs_of(step, above) if name in above)
            above.append(step.name)

    def ancestors(self, name: str) -> set[str]:
        """Return all parts that the rows depend on, including themselves."""
        found = {name}
        for one in self.inputs.get(name, ()):
            found |= self.ancestors(one)
        return found

    def sources(self, name: str) -> list[str]:
        ancestors = self.ancestors(name)
        return [one.name for one in self.plan.sources if one.name in ancestors]

    def states(self, name: str) -> list[str]:
        """Return the steps with state that the rows come from."""
        ancestors = self.ancestors(name)
        return [one.name for one in self.plan.steps if one.state is not None and one.name in ancestors]

    def query(self, name: str) -> str:
        """Return the query that carries rows; "" for rows made of tables only."""
        return next(iter([*self.states(name), *self.sources(name)]), "")

    def queries(self) -> list[Query]:
        """Return the queries that the pipeline needs."""
        made = [self._query(source.name, source, ()) for source in self.plan.sources]
        for step in self.plan.steps:
            if step.state is not None:
                ancestors = self.ancestors(step.name)
                stream = tuple(one for one in self.plan.steps if one.name in ancestors)
                source = next(one for one in self.plan.sources if one.name in ancestors)
                made.append(self._query(step.name, source, stream))
        return [one for one in made if one.routes or any(can_fail(step) for step in one.steps)]

    def _query(self, name: str, source: SourcePlan, stream: tuple[StepPlan, ...]) -> Query:
        plan = self.plan
        routes = tuple(one for one in plan.routes if self.query(one.input) == name)
        fed = {sink for one in routes for sink in one.to}
        own = [one for one in plan.steps if self.query(one.name) == name and one not in stream]
        wanted = {ancestor for one in routes for ancestor in self.ancestors(one.input)}
        wanted |= {ancestor for one in own if can_fail(one) for ancestor in self.ancestors(one.name)}
        steps = tuple(one for one in plan.steps if one.name in wanted and self._is_in(one, name, stream))
        return Query(name, source, stream, steps, routes, tuple(one for one in plan.sinks if one.name in fed))

    def _is_in(self, step: StepPlan, query: str, stream: tuple[StepPlan, ...]) -> bool:
        of = self.query(step.name)
        return of == "" or (of == query and step not in stream)  # rows made of tables only exist in both
