"""Parsing of XML in rows into columns, by an XSD or other fields, and validation with an XSD or rules."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lxml import etree
from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.columns import Bodies
from holdfast.pipeline.bodies.leniencies import MAX_ELEMENTS
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.bodies.schemas import schema_of
from holdfast.pipeline.bodies.templates import nullable
from holdfast.pipeline.mediation.transformations.problems import PROBLEMS, Reasons, Work, so_far, with_column
from holdfast.pipeline.mediation.transformations.xsd import XSD
from holdfast.settings import check_arguments

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def parse_xml(
    rows: DataFrame,
    *,
    xsd: XSD | str | Path | None = None,
    element: str = "",
    schema: T.StructType | str | None = None,
    column: str = "body",
    into: str = "parsed",
    validate: bool = True,
    lenient: Collection[str] = (),
    max_elements: int = MAX_ELEMENTS,
) -> DataFrame:
    """Parse the XML of each row into a struct, and add its problems to ``problems``.

    A row that cannot be parsed completely has the values that could be parsed, and the reasons. No row is lost, and
    none stops the others.

    Args:
        rows: Any DataFrame, also a stream's.
        xsd: An XML Schema, or its file: the struct has the form of ``element``.
        element: The expected element, ``{namespace}local`` or the local name; "": with an XSD the only one that it
            declares, otherwise any.
        schema: Instead of an XSD: the fields, as DDL or as Spark's type, parsed as in ``holdfast land``;
            ``infer_schema`` makes one. A field with ``NOT NULL`` that is absent, empty or unreadable is a problem; its
            value is null.
        column: The STRING column with the XML.
        into: The column for the struct.
        validate: With an XSD: also validate the XML against it; each violation is a problem, with its line.
        lenient: Deviations to ignore: "empty", "nanoseconds", "zones", see ``holdfast land``.
        max_elements: XML with more elements is not parsed.

    Raises:
        ConfigurationError: Not exactly one of ``xsd`` and ``schema``; it is not usable; or there is no such column.
    """
    check_arguments(parse_xml, locals())
    if (xsd is None) == (schema is None):
        raise ConfigurationError("XML needs either an xsd or a schema", remedy="Give one of the two")
    given = _xsd(xsd)
    if given is not None:
        element = given.element(element)
        fields = given.columns(element)
    else:
        fields = schema_of(schema)
    BodyReader(fields, lenient)  # raises here instead of in a task
    parser = _Parser(fields, element, given if validate else None, tuple(lenient), max_elements)
    return with_column(rows, column, into, nullable(fields), parser)


def parse_json(rows: DataFrame, schema: T.StructType | str, *, column: str = "body", into: str = "parsed") -> DataFrame:
    """Parse the JSON of each row into a struct, and add its problems to ``problems``.

    Spark's ``from_json`` parses the JSON. A missing field is null. A value that does not fit its type is a problem of
    the row, and the struct is then null.

    Args:
        rows: Any DataFrame, also a stream's.
        schema: The fields, as DDL or as Spark's type.
        column: The STRING column with the JSON.
        into: The column for the struct.

    Raises:
        ConfigurationError: The schema is not usable; or there is no such column.
    """
    from pyspark.sql import functions as F

    fields = schema_of(schema)
    looked = with_column(rows.withColumn(_BEFORE, so_far(rows)), column, "", T.NullType(), _json_checker)
    marked = T.StructType([*fields.fields, T.StructField(_CORRUPT, T.StringType())])
    how = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    read = F.from_json(F.col(f"`{column}`"), marked, how)
    is_broken = F.size(PROBLEMS) > F.size(_BEFORE)
    misfit = ~is_broken & (read.isNull() | read[_CORRUPT].isNotNull())
    told = F.when(misfit, F.lit(f"does not fit {fields.simpleString()}"))
    struct = F.struct(*[read[one.name].alias(one.name) for one in fields.fields])
    made = {
        into: F.when(~is_broken & ~misfit, struct),
        PROBLEMS: F.concat(F.col(PROBLEMS), F.array_compact(F.array(told))),
    }
    return looked.withColumns(made).drop(_BEFORE)


_CORRUPT, _BEFORE = "holdfast_corrupt", "holdfast_before"


def _json_checker() -> Work:
    """Create, in a task, the check that text is a JSON object. Spark ignores text after a value."""

    def problem(text: str | None) -> Reasons:
        if text is None:
            return ["there is no JSON: the column is null"]
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            return [f"is not JSON: {error}"]
        return [] if isinstance(value, dict) else ["is JSON, but not an object"]

    def work(column: pa.StringArray) -> tuple[None, Sequence[Reasons]]:
        return None, [problem(text) for text in column.to_pylist()]

    return work


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a value of JSON")


def validate(
    rows: DataFrame,
    rules: Mapping[str, str] | None = None,
    *,
    xsd: XSD | str | Path | None = None,
    element: str = "",
    column: str = "body",
) -> DataFrame:
    """Add the problems of each row to ``problems``.

    Args:
        rows: Any DataFrame, also a stream's.
        rules: The reported problem -> the SQL condition that must be true; if it is null, the row fails.
        xsd: An XML Schema, or its file, that the XML must match.
        element: The expected element; "": any that the schema declares.
        column: The column with the XML.

    Raises:
        ConfigurationError: Neither rules nor an XSD is given, or one of them is not usable.
    """
    check_arguments(validate, locals())
    from pyspark.sql import functions as F

    given = _xsd(xsd)
    if given is None and not rules:
        raise ConfigurationError("there is nothing to validate with", remedy="Give rules, or an xsd")
    if given is not None:
        expected = given.element(element) if element else ""
        rows = with_column(rows, column, "", T.NullType(), _Parser(T.StructType(), expected, given, (), MAX_ELEMENTS))
    if rules:
        broken = [
            F.when(F.coalesce(F.expr(rule), F.lit(False)), None).otherwise(F.lit(told)) for told, rule in rules.items()
        ]
        rows = rows.withColumn(PROBLEMS, F.concat(so_far(rows), F.array_compact(F.array(*broken))))
    return rows


def _xsd(given: XSD | str | Path | None) -> XSD | None:
    return given if isinstance(given, XSD | None) else XSD.read(given)


@dataclass(frozen=True)
class _Parser:
    """Created in the driver; called in a task to create the parser there."""

    fields: T.StructType
    element: str
    xsd: XSD | None
    lenient: tuple[str, ...]
    max_elements: int

    def __call__(self) -> Work:
        import pyarrow as pa
        import pyarrow.compute as pc

        bodies = Bodies(self.fields, self.lenient, self.max_elements)
        alone = BodyReader(T.StructType(), max_elements=self.max_elements)
        parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True, huge_tree=True)

        def reasons(body: str | None, problem: str | None) -> Reasons:
            if body is None:
                return ["there is no XML: the column is null"]
            content = body.encode()
            if not self.fields.fields:
                problem = alone.read(content)[1]
            told = [problem] if problem is not None else []
            return told + self._against(content, parser, is_read=problem is None)

        def work(column: pa.StringArray) -> tuple[pa.Array | None, Sequence[Reasons]]:
            arrays, problems = bodies.read(pc.fill_null(column, ""))
            texts = zip(column.to_pylist(), problems.to_pylist(), strict=True)
            told = [reasons(body, problem) for body, problem in texts]
            return pa.StructArray.from_arrays(arrays, self.fields.fieldNames()) if arrays else None, told

        return work

    def _against(self, body: bytes, parser: etree.XMLParser, *, is_read: bool) -> Reasons:
        """Check the element's name and the XSD, but nothing that the reader refused to parse."""
        if not (self.element or self.xsd):
            return []
        if not is_read and (b"<!DOCTYPE" in body or body.count(b"<") > self.max_elements):
            return []
        try:
            root = etree.fromstring(body, parser)
        except etree.XMLSyntaxError:
            return []  # the reader has reported it
        tag = str(root.tag)
        if self.element not in ("", tag, tag.rpartition("}")[2]):
            return [f"is <{tag}>, not <{self.element}>"]
        return self.xsd.problems(root) if self.xsd is not None else []
