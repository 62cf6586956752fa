"""The options and columns of the ``wsrm`` format."""

from __future__ import annotations

import dataclasses
import importlib

from generation.docstrings import as_markdown
from generation.settings import class_of
from holdfast.settings import meaning_of


def options(room: str = "reader.options", name: str = "ReadOptions") -> str:
    """Return the options of the ``wsrm`` source, or of another options class."""
    cls = class_of(f"pipeline.{room}", name)
    # The address of the server comes first, the other connection options last.
    fields = sorted(
        dataclasses.fields(cls), key=lambda field: (field.name != "broker", field.name not in cls.__annotations__)
    )
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for field in fields:
        if not field.metadata:
            continue  # computed from the other options
        if field.default is dataclasses.MISSING:
            default = "required"
        elif field.default in ("", None, (), frozenset()):
            default = "none"
        else:
            default = f"`{str(field.default).lower()}`"
        alias = f" Also called `{field.metadata['alias']}`." if field.metadata["alias"] else ""
        lines.append(f"| `{field.metadata['name']}` | {default} | {as_markdown(meaning_of(cls, field.name))}{alias} |")
    return "\n".join(lines)


def columns() -> str:
    """Return the columns of the ``wsrm`` source."""
    return _typed_columns("columns")


def letters() -> str:
    """Return the columns of dead letters."""
    return _typed_columns("letter_columns")


def _typed_columns(room: str) -> str:
    columns = importlib.import_module(f"holdfast.pipeline.reader.{room}").COLUMNS
    lines = ["| column | type | may be null |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| `{name}` | {kind} | {'yes' if null else 'no'} |" for name, kind, null in columns)])
