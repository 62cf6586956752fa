"""The event journal as columns of the source: those that its files have. Knows nothing of the network."""

from __future__ import annotations

from holdfast.endpoint.journal import columns as journal_columns
from holdfast.pipeline.reader.columns import Typed

_TYPES = {"int": "integer", "bigint": "long"}
"""What a type of the journal's is called here, if otherwise."""

COLUMNS: list[Typed] = [(one.name, _TYPES.get(one.type, one.type), True) for one in journal_columns.COLUMNS]
