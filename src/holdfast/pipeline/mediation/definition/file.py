"""Read a pipeline file, TOML or Python, into a plan, and report every mistake at once with its line, key and fix.

A Python file builds the same tables by calls of a :class:`Pipeline`, which are then checked like those of a TOML file.
"""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from holdfast.config.lines import KeyLines, KeyPath
from holdfast.config.tables import Table, TableReading, load_toml, read_file
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes
from holdfast.pipeline.mediation.definition.checks import Said, Wrong, contradictions
from holdfast.pipeline.mediation.definition.plan import PipelinePlan

_PARAMETER = re.compile(r"\$\{([^}]*)\}")


More = Callable[[Said], Iterable[Wrong]]
"""Checks in addition to those of every file."""


def read_pipeline(
    file: str | Path, parameters: Mapping[str, str] | None = None, more: More = lambda _: ()
) -> PipelinePlan:
    """Read the pipeline in a file. A Python file is run, and so are modules whose functions it names.

    Args:
        file: Its path; ``.py`` is Python, anything else TOML.
        parameters: Name -> value; takes precedence over the file's ``[parameters]``.
        more: Further checks, such as ``sql_syntax.syntax_mistakes``.

    Raises:
        ConfigurationMistakes: The file has mistakes; lists all of them.
        ConfigurationError: It cannot be read, or has no parameter of a given name.
    """
    path = Path(file)
    content = read_file(path, "pipeline", "Check the path.")
    if path.suffix == ".py":
        made = Pipeline(path)
        made.read()
        return plan_of(made.tables, str(file), made.lines, path.parent, parameters or {}, more)
    text, data = load_toml(content, str(file))
    return plan_of(data, str(file), KeyLines(text), path.parent, parameters or {}, more)


def plan_of(
    data: Table, name: str, lines: Any, base: Path, parameters: Mapping[str, str], more: More = lambda _: ()
) -> PipelinePlan:
    """The pipeline that tables tell.

    Args:
        data: The tables.
        name: What mistakes call the file.
        lines: Path of a key -> its line.
        base: The directory that relative paths start at.
        parameters, more: As above.

    Raises:
        ConfigurationMistakes: There are mistakes in them; says all of them.
        ConfigurationError: A parameter is given that they do not have.
    """
    reading = TableReading(name, lines, base)
    told = data.get("parameters")
    known = {key: str(value) for key, value in told.items()} if isinstance(told, dict) else {}
    if strange := sorted(set(parameters) - set(known)):
        near = get_close_matches(strange[0], known, 1, 0.6)
        remedy = f"did you mean {near[0]}?" if near else f"its [parameters] are {', '.join(known) or 'none'}"
        raise ConfigurationError(f"{name} has no parameter {strange[0]!r}", remedy=remedy)
    values = {**known, **parameters}
    filled = {key: _filled(value, (key,), values, reading) for key, value in data.items() if key != "parameters"}
    if told is not None:
        filled["parameters"] = told
    said, _ = reading.read_table(PipelinePlan, filled, ())
    for path, what, remedy in (*contradictions(said, filled), *more(said)):
        reading.wrong(path, what, remedy)
    if reading.mistakes:
        raise ConfigurationMistakes(sorted(reading.mistakes, key=lambda mistake: (mistake.line, mistake.key)))
    return PipelinePlan(**said)


def _filled(value: Any, path: KeyPath, values: Mapping[str, str], reading: TableReading) -> Any:
    """A value with its parameters' values in their places."""
    if isinstance(value, dict):
        return {key: _filled(one, (*path, key), values, reading) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, (*path, index), values, reading) for index, one in enumerate(value)]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            near = get_close_matches(match[1], values, 1, 0.6)
            remedy = f"Did you mean ${{{near[0]}}}?" if near else "Add it with its value below [parameters]."
            reading.wrong(path, f"the parameter '{match[1]}' does not exist", remedy)
        return values.get(match[1], "")

    return _PARAMETER.sub(fill, value)


# --- in Python --------------------------------------------------------------------------------------------------------


class Pipeline:
    """What ``def pipeline(p)`` of a Python file is called with: each call is a table of a TOML file, by the same keys.

    Args:
        path: The file; "": of a program, which then calls ``plan()``.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.tables: Table = {}
        self.lines = _CallLines()

    def settings(self, **keys: Any) -> None:
        """The keys of the file's top: ``name``, ``checkpoint``, ``interval``."""
        self._note((), keys)

    def parameter(self, name: str, value: str) -> None:
        """A parameter and its value, unless ``--set`` says otherwise; texts have it as ``${name}``."""
        self._note(("parameters",), {name: value})

    def source(self, name: str, **keys: Any) -> str:
        """A queue, the table ``[sources.NAME]``. Returns its name, as all of these do."""
        return self._named("sources", name, keys)

    def table(self, name: str, **keys: Any) -> str:
        """A table to join with, ``[tables.NAME]``."""
        return self._named("tables", name, keys)

    def step(self, name: str, function: Callable[..., Any] | None = None, *inputs: str, **keys: Any) -> str:
        """A step, ``[steps.NAME]``.

        Args:
            name: What its rows are called.
            function: A function of DataFrames, one for each input, that gives one. It may use all of
                ``holdfast.pipeline.mediation``; rows with a ``problem`` go to the dead letters.
            inputs: The rows it is called with.
            keys: Instead of a function, the keys of the table: ``sql=``, ``parse={"xsd": …}``, and so on.
        """
        if function is not None:
            keys["python"] = function
        if inputs:
            keys["input"] = list(inputs)
        return self._named("steps", name, keys)

    def route(self, input: str, to: str | list[str], when: str = "", *, onwards: bool = False) -> None:
        """A route, ``[[routes]]``."""
        keys = {"input": input, "to": to, **({"when": when} if when else {}), "onwards": onwards}
        routes = self.tables.setdefault("routes", [])
        self.lines.note(("routes", len(routes)))
        routes.append(keys)

    def sink(self, name: str, **keys: Any) -> str:
        """Where rows go, ``[sinks.NAME]``."""
        return self._named("sinks", name, keys)

    def dead_letters(self, **keys: Any) -> None:
        """Where rows go that fail, ``[dead_letters]``."""
        self._note(("dead_letters",), keys)

    def plan(self, parameters: Mapping[str, str] | None = None) -> PipelinePlan:
        """The plan that was told.

        Raises:
            ConfigurationMistakes: It has mistakes; says all of them.
        """
        name = str(self._path or "the pipeline")
        return plan_of(self.tables, name, self.lines, self._path.parent if self._path else Path(), parameters or {})

    def read(self) -> None:
        """Run the file, and call its ``pipeline``.

        Raises:
            ConfigurationError: It has none, or fails.
        """
        assert self._path is not None
        directory = str(self._path.resolve().parent)
        if directory not in sys.path:
            sys.path.insert(0, directory)
        try:
            told = runpy.run_path(str(self._path)).get("pipeline")
        except Exception as error:
            raise ConfigurationError(
                f"{self._path} failed: {type(error).__name__}: {error}", remedy="run the file on its own with python"
            ) from error
        if not callable(told):
            raise ConfigurationError(f"{self._path} defines no pipeline", remedy="define def pipeline(p): … in it")
        self.lines.file = str(self._path)
        told(self)

    def _named(self, kind: str, name: str, keys: Table) -> str:
        self._note((kind, name), keys)
        return name

    def _note(self, path: KeyPath, keys: Table) -> None:
        table = self.tables
        for step in path:
            table = table.setdefault(str(step), {})
        self.lines.note(path)
        table.update(keys)


class _CallLines:
    """The lines of the calls that told each table."""

    def __init__(self) -> None:
        self.file = ""
        self._lines: dict[KeyPath, int] = {}

    def note(self, path: KeyPath) -> None:
        """Remember the line of the current call in the running file."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        self._lines[path] = frame.f_lineno if frame is not None else 1

    def __getitem__(self, path: KeyPath) -> int:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)
