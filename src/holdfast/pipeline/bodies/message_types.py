"""Several message types in one queue: the table for each message, by its body's element."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lxml import etree
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.columns import parts_of
from holdfast.pipeline.bodies.reader import has_doctype
from holdfast.pipeline.spark import files
from holdfast.pipeline.spark.workers import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

OTHER = "other"
"""The table of messages of all other types."""
TABLE = "holdfast_table"
"""The column with the name of a message's table."""

_ELEMENT = re.compile(r"(?:\{[^{}]+\})?([^\W\d_][\w.-]*)")
_NOTES = "holdfast-types"
"""File in the checkpoint: the batch in progress, and the types that divide it."""
_CHUNK = 4096
"""Bytes of a body that are parsed at a time, until its first tag is complete."""


def table_names(elements: Iterable[str]) -> dict[str, str]:
    """Return the table of each type: its element's local name.

    Args:
        elements: ``{namespace}local``, or the local name for any namespace.

    Raises:
        ConfigurationError: A name is not valid for an element, or two tables would have the same name.
    """
    found: dict[str, str] = {}
    taken = {OTHER: "the table of all other messages"}
    for element in elements:
        match = _ELEMENT.fullmatch(element)
        if match is None:
            raise ConfigurationError(
                f"{element!r} is not the name of an element that begins with a letter",
                remedy='Write it as "order" or "{urn:example:orders}order"',
            )
        if (before := taken.get(match[1].lower())) is not None:
            raise ConfigurationError(
                f"the table of {element} would have the same name as {before}",
                remedy="Land one of the two in another job",
            )
        taken[match[1].lower()] = f"the table of {element}"
        found[element] = match[1]
    return found


def with_table(envelope: StructType) -> StructType:
    """Return the columns of messages and the one with their table."""
    return StructType([*envelope.fields, StructField(TABLE, StringType())])


class TableNames:
    """For ``mapInArrow``: adds the name of each message's table, as the last column.

    Args:
        tables: Element, as of ``table_names`` -> table.
    """

    def __init__(self, tables: Mapping[str, str]) -> None:
        self._tables = dict(tables)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        spare_collections()
        for batch in batches:
            for part in parts_of(batch, "body"):
                bodies = part.column("body").cast(pa.binary()).to_pylist()
                found = pa.array([self.table_of(body or b"") for body in bodies], pa.string())
                names = [*part.schema.names, TABLE]
                yield pa.RecordBatch.from_arrays([*part.columns, found], names=names)

    def table_of(self, body: bytes) -> str:
        """Return the table of a body; OTHER if its first tag belongs to no type, or is unreadable."""
        tag = element_of(body)
        return self._tables.get(tag) or self._tables.get(tag.rpartition("}")[2]) or OTHER


def element_of(body: bytes) -> str:
    """Return the name of a body's element, ``{namespace}local``, from its first tag alone; "" without one."""
    if has_doctype(body):
        return ""
    parser = etree.XMLPullParser(
        events=("start",), encoding="utf-8", resolve_entities=False, no_network=True, huge_tree=True
    )
    with contextlib.suppress(etree.XMLSyntaxError):  # the error may be after the first tag
        for start in range(0, len(body), _CHUNK):
            parser.feed(body[start : start + _CHUNK])
            if (tag := _first(parser)) is not None:
                return tag
        parser.close()  # for a short body, the parser has waited for more
    return _first(parser) or ""


def _first(parser: etree.XMLPullParser) -> str | None:
    return next((str(element.tag) for _, element in parser.read_events()), None)


def note_types(spark: SparkSession, checkpoint: str, batch: int, elements: Iterable[str]) -> None:
    """Record the types that divide a batch, before any of its rows is landed.

    A crash may leave a batch in some tables and not in others. The next start lands the rest, and must divide the batch
    in the same way. Otherwise a message would be in two tables, or in none.

    Raises:
        PipelineError: An earlier start has begun the batch with other types.
    """
    directory, told = f"{checkpoint}/{_NOTES}", sorted(elements)
    there = files.names(spark, directory)
    if str(batch) in there:
        before = json.loads(files.read_text(spark, f"{directory}/{batch}"))
        if before != told:
            raise PipelineError(
                f"batch {batch} was started with the types {', '.join(before)}, but the current types are "
                f"{', '.join(told)}",
                remedy="Run again with the old types until the batch is landed, then change them",
            )
        return
    files.publish_text(spark, f"{directory}/{batch}", json.dumps(told))
    for name in there:
        if name.isdigit() and int(name) < batch:
            files.delete(spark, f"{directory}/{name}")
