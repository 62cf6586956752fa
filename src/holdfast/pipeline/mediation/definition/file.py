"""Read a pipeline file, TOML or Python, into a plan, and report every mistake at once with its line, key and fix.

A Python file builds the same tables by calls of a :class:`Pipeline`, which are then checked like those of a TOML file.
"""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.config.lines import KeyLines, KeyPath
from holdfast.config.tables import Table, TableReading, Wrong, load_toml, read_file
from holdfast.config.values import Kind
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.checks import Said, contradictions
from holdfast.pipeline.mediation.definition.plan import PipelinePlan
from holdfast.pipeline.spark.files import names_system
from holdfast.settings import check_arguments, nearest

_PARAMETER = re.compile(r"\$\{([^}]*)\}")


_PATHS = ("cafile", "certificatefile", "keyfile", "tokenfile")
"""Options of ``wsrm`` that are paths; those of Kafka end in ``.location``."""
More = Callable[[Said], Iterable[Wrong]]
"""Checks in addition to those of every file."""
Last = Callable[[PipelinePlan], Iterable[Wrong]]
"""Checks of a plan that has no other mistakes."""


def read_pipeline(
    file: str | Path,
    parameters: Mapping[str, str] | None = None,
    more: More = lambda _: (),
    last: Last = lambda _: (),
) -> PipelinePlan:
    """Read the pipeline in a file; this runs a Python file, and imports modules with functions that the file names.

    Args:
        file: Its path; ``.py`` is Python, anything else TOML.
        parameters: Name -> value; takes precedence over the file's ``[parameters]``.
        more: Further checks, such as ``sql_syntax.syntax_mistakes``.
        last: Checks of a plan that passes all others.

    Raises:
        ConfigurationMistakes: The file has mistakes; lists all of them.
        ConfigurationError: It cannot be read, or has no parameter of a given name.
    """
    path = Path(file)
    content = read_file(path, "pipeline", "Check the path.")
    if path.suffix == ".py":
        made = Pipeline(path)
        made.read()
        return plan_of(made.tables, str(file), made.lines, path.parent, parameters or {}, more, last)
    text, data = load_toml(content, str(file))
    return plan_of(data, str(file), KeyLines(text), path.parent, parameters or {}, more, last)


def plan_of(
    data: Table,
    name: str,
    lines: Any,
    base: Path,
    parameters: Mapping[str, str],
    more: More = lambda _: (),
    last: Last = lambda _: (),
) -> PipelinePlan:
    """Build the pipeline from tables.

    Args:
        data: The tables.
        name: Name of the file in mistakes.
        lines: Path of a key -> its line.
        base: The directory that relative paths start at.
        parameters, more, last: As for :func:`read_pipeline`.

    Raises:
        ConfigurationMistakes: There are mistakes in them; lists all of them.
        ConfigurationError: They lack a given parameter.
    """
    reading = _FilledReading(name, lines, base)
    told = data.get("parameters")
    known = {key: str(value) for key, value in told.items()} if isinstance(told, dict) else {}
    if strange := sorted(set(parameters) - set(known)):
        near = nearest(strange[0], known)
        remedy = f"Did you mean {near!r}?" if near else f"Its [parameters] are {', '.join(known) or 'none'}"
        raise ConfigurationError(f"{name} has no parameter {strange[0]!r}", remedy=remedy)
    values = {**known, **parameters}
    filled = {key: _filled(value, values) for key, value in data.items() if key != "parameters"}
    for kind in ("sources", "sinks"):
        for one in filled[kind].values() if isinstance(filled.get(kind), dict) else ():
            if isinstance(one, dict) and isinstance(one.get("options"), dict):
                one["options"] = {name: _beside(base, name, value) for name, value in one["options"].items()}
    if told is not None:
        filled["parameters"] = told
    said, _ = reading.read_table(PipelinePlan, filled, ())
    reading.end((*contradictions(said, filled), *more(said)))
    plan = PipelinePlan(**said)
    reading.end(last(plan))
    return plan


def _beside(base: Path, name: str, value: Any) -> Any:
    """Return the value of an option; a relative path starts at the directory of the file."""
    is_path = (
        isinstance(value, str)
        and value
        and not isinstance(value, _Unfilled)
        and (name.lower() in _PATHS or name.lower().endswith(".location"))
    )
    return str(base / value) if is_path and not names_system(value) else value


class _Unfilled(str):
    """A text with parameters that do not exist.

    Attributes:
        wrong: What is wrong, and how to fix it, for each.
    """

    wrong: tuple[tuple[str, str], ...] = ()


class _FilledReading(TableReading):
    """Reports a text with unknown parameters as unreadable, so that no check uses it without them."""

    def _read(self, kind: Kind, value: Any, path: KeyPath) -> Any:
        if not isinstance(value, _Unfilled):
            return super()._read(kind, value, path)
        for what, remedy in value.wrong:
            self.wrong(path, what, remedy)
        return None


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, values) for one in value]
    if not isinstance(value, str):
        return value
    told = _PARAMETER.sub(lambda match: values.get(match[1], match[0]), value)
    unknown = [name for name in dict.fromkeys(_PARAMETER.findall(value)) if name not in values]
    if not unknown:
        return told
    unfilled = _Unfilled(told)
    near = {name: nearest(name, values) for name in unknown}
    unfilled.wrong = tuple(
        (
            f"the parameter '{name}' does not exist",
            f"Did you mean ${{{near[name]}}}?" if near[name] else "Add it with its value below [parameters].",
        )
        for name in unknown
    )
    return unfilled


# --- in Python --------------------------------------------------------------------------------------------------------


class Pipeline:
    """The argument of ``def pipeline(p)`` in a Python file: each call is a table of a TOML file, with the same keys.

    Args:
        path: The file; "": a program, which then calls ``plan()``.
    """

    def __init__(self, path: Path | None = None) -> None:
        check_arguments(Pipeline, locals())
        self._path = path
        self.tables: Table = {}
        self.lines = _CallLines()

    def settings(self, **keys: Any) -> None:
        """Set the keys at the top of the file: ``name``, ``checkpoint``, ``interval``."""
        self._note((), keys)

    def parameter(self, name: str, value: str) -> None:
        """Add a parameter with its default value, which ``--set`` overrides; texts refer to it as ``${name}``."""
        check_arguments(Pipeline.parameter, locals())
        self._note(("parameters",), {name: value})

    def source(self, name: str, **keys: Any) -> str:
        """Add a queue, the table ``[sources.NAME]``; return its name, as all of these methods do."""
        return self._named("sources", name, keys)

    def table(self, name: str, **keys: Any) -> str:
        """Add a table to join with, ``[tables.NAME]``."""
        return self._named("tables", name, keys)

    def step(self, name: str, function: Callable[..., Any] | None = None, *inputs: str, **keys: Any) -> str:
        """Add a step, ``[steps.NAME]``.

        Args:
            name: Name of its rows.
            function: A function that takes one DataFrame for each input and returns one. It may use all of
                ``holdfast.pipeline.mediation``; rows with a ``problem`` go to the dead letters.
            inputs: Names of the rows for the function.
            keys: Instead of a function, the keys of the table: ``sql=``, ``parse={"xsd": …}``, and so on.
        """
        if function is not None:
            keys["python"] = function
        if inputs:
            keys["input"] = list(inputs)
        return self._named("steps", name, keys)

    def route(self, input: str, to: str | list[str], when: str = "", *, onwards: bool = False) -> None:
        """Add a route, ``[[routes]]``."""
        keys = {"input": input, "to": to, **({"when": when} if when else {}), "onwards": onwards}
        routes = self.tables.setdefault("routes", [])
        self.lines.note(("routes", len(routes)))
        routes.append(keys)

    def sink(self, name: str, **keys: Any) -> str:
        """Add a destination of rows, ``[sinks.NAME]``."""
        return self._named("sinks", name, keys)

    def dead_letters(self, **keys: Any) -> None:
        """Set the destination of failed rows, ``[dead_letters]``."""
        self._note(("dead_letters",), keys)

    def plan(self, parameters: Mapping[str, str] | None = None) -> PipelinePlan:
        """Return the plan.

        Raises:
            ConfigurationMistakes: It has mistakes; lists all of them.
        """
        check_arguments(Pipeline.plan, locals())
        name = str(self._path or "the pipeline")
        return plan_of(self.tables, name, self.lines, self._path.parent if self._path else Path(), parameters or {})

    def read(self) -> None:
        """Run the file, and call its ``pipeline``.

        Raises:
            ConfigurationError: It defines none, or fails.
        """
        assert self._path is not None
        directory = str(self._path.resolve().parent)
        if directory not in sys.path:
            sys.path.insert(0, directory)
        try:
            told = runpy.run_path(str(self._path)).get("pipeline")
        except Exception as error:
            raise ConfigurationError(
                f"{self._path} failed: {type(error).__name__}: {error}", remedy="Run the file on its own with python"
            ) from error
        if not callable(told):
            raise ConfigurationError(f"{self._path} defines no pipeline", remedy="Define def pipeline(p): … in it")
        self.lines.file = str(self._path)
        told(self)

    def _named(self, kind: str, name: str, keys: Table) -> str:
        check_arguments(Pipeline._named, locals())
        self._note((kind, name), keys)
        return name

    def _note(self, path: KeyPath, keys: Table) -> None:
        table = self.tables
        for step in path:
            table = table.setdefault(str(step), {})
        self.lines.note(path)
        table.update(keys)


class _CallLines:
    """The line of the call that defined each table."""

    def __init__(self) -> None:
        self.file = ""
        self._lines: dict[KeyPath, int] = {}

    def note(self, path: KeyPath) -> None:
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        self._lines[path] = frame.f_lineno if frame is not None else 1

    def __getitem__(self, path: KeyPath) -> int:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)
