"""The event journal as columns of the source: those of its files."""

from __future__ import annotations

from holdfast.endpoint.journal import columns as journal_columns
from holdfast.pipeline.reader.columns import Typed

_TYPES = {"int": "integer", "bigint": "long"}
"""Type in the journal -> its name here, if different."""

COLUMNS: list[Typed] = [(one.name, _TYPES.get(one.type, one.type), True) for one in journal_columns.COLUMNS]
