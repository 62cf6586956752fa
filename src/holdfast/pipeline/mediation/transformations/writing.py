"""Rows as XML: one element with a given name for each row, well-formed for all values, valid by an XSD if requested.

A struct becomes an element with children, an array repeats its element, and null gives no element. The metadata of a
struct's field (as in columns parsed with an XSD) can make the field an attribute or the element's text, or give it
another namespace. Texts use XML Schema's canonical forms, as ``simple_types`` parses them.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lxml import etree
from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.forms import FORM, NIL, NIL_MARK, PLACE, UNHELD
from holdfast.pipeline.mediation.transformations.problems import PROBLEMS, Reasons, Work, with_column
from holdfast.pipeline.mediation.transformations.xsd import XSD
from holdfast.settings import check_arguments, suggestion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_ROW = "__holdfast_row"
_XML = "http://www.w3.org/XML/1998/namespace"
_NAME = re.compile(r"(?:\{(?P<namespace>[^{}]*)\})?(?P<local>[^\W\d][\w.-]*)")


def to_xml(
    rows: DataFrame,
    element: str,
    columns: Sequence[str | Column] | None = None,
    *,
    xsd: XSD | str | Path | None = None,
    into: str = "body",
    qualified: bool = True,
    prefix: str = "",
    zone: str = "",
) -> DataFrame:
    """Add a column of XML, one element for each row, and add its problems to ``problems``.

    Args:
        rows: Any DataFrame, also a stream's.
        element: Its name, ``{namespace}local``; with an XSD the local name is enough.
        columns: Its content, each column a child: names, SQL expressions with an alias (``"o.id AS id"``), or columns.
            None: all columns except ``problems``. A single struct contributes its fields, each at the place in its
            metadata.
        xsd: An XML Schema, or its file. For each column it determines, by name, whether the column is a child, an
            attribute or the text, its namespace and its order. The element is validated against it, and each violation
            is a problem.
        into: The column for the XML.
        qualified: Without an XSD: whether children are in the element's namespace, or in none.
        prefix: Prefix of the element's namespace; "": it is the default namespace, unless a nested name has none.
        zone: The time zone of written TIMESTAMP values, "Europe/Berlin" or "+02:00"; "": UTC, written as Z.

    Raises:
        ConfigurationError: The name is not valid for an element; there is no such zone; or XML, or the XSD, has no
            place for a column's type or name.
    """
    check_arguments(to_xml, locals())
    from pyspark.sql import functions as F

    given = xsd if isinstance(xsd, XSD | None) else XSD.read(xsd)
    name = given.element(element) if given is not None else element
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigurationError(
            f"{name!r} is not a valid name of an element", remedy='Write it as "{urn:orders}order"'
        )
    chosen = [F.expr(one) if isinstance(one, str) else one for one in columns or []]
    if not chosen:
        chosen = [F.col(f"`{one}`") for one in rows.columns if one.lower() != PROBLEMS]
    held = rows.select(*chosen).schema
    is_one = len(held.fields) == 1 and isinstance(held.fields[0].dataType, T.StructType)
    fields = held.fields[0].dataType if is_one else T.StructType([T.StructField(f.name, f.dataType) for f in held])
    if given is not None:
        fields = shaped(fields, given.columns(name), name)
    namespace = match["namespace"] or ""
    writer = XMLWriter(fields, namespace, match["local"], namespace if qualified else "", prefix, zone)
    made = rows.withColumn(_ROW, chosen[0] if is_one else F.struct(*chosen))
    return with_column(made, _ROW, into, T.StringType(), _Writing(writer, given), keep=False)


@dataclass(frozen=True)
class _Writing:
    """Created in the driver; called in a task to create the writer there."""

    writer: XMLWriter
    xsd: XSD | None

    def __call__(self) -> Work:
        def write(value: dict[str, Any] | None) -> tuple[str | None, Reasons]:
            if value is None:
                return None, ["there is nothing to write as XML: the struct is null"]
            try:
                root = self.writer.element(value)
            except ValueError as error:
                return None, [f"cannot be written as XML: {error}"]
            text = etree.tostring(root, encoding="unicode")
            if self.xsd is None:
                return text, []
            # Parsed as a receiver parses it, so that line numbers are those of the sent text.
            return text, self.xsd.problems(etree.fromstring(text, _PARSER))

        def work(column: pa.Array) -> tuple[Sequence[Any], Sequence[Reasons]]:
            written = [write(value) for value in column.to_pylist()]
            return [text for text, _ in written], [reasons for _, reasons in written]

        return work


_PARSER = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True)


def shaped(fields: T.StructType, shape: T.StructType, name: str) -> T.StructType:
    """Give fields the place, namespace and order of an XSD.

    Raises:
        ConfigurationError: The XSD has no such field, or a different kind of content there.
    """
    there = {field.name.lower(): field for field in fields.fields}
    known = [field.name for field in shape.fields]
    for field in fields.fields:
        if field.name.lower() not in (one.lower() for one in (*known, FORM)):  # the XSD determines the form
            raise ConfigurationError(
                f"the XSD has no {field.name!r} in {name}",
                remedy=suggestion(field.name, known, f"It has {', '.join(known)}"),
            )
    made = []
    for field in shape.fields:
        own = there.get(field.name.lower())
        if own is not None:
            kind = _shaped(own.dataType, field.dataType, f"{name}.{field.name}")
            metadata = {"name": field.name, **(field.metadata or {})}
            made.append(T.StructField(own.name, kind, metadata=metadata))
    return T.StructType(made)


def _shaped(own: T.DataType, shape: T.DataType, name: str) -> T.DataType:
    if isinstance(shape, T.ArrayType):
        inner = own.elementType if isinstance(own, T.ArrayType) else own
        shaped_inner = _shaped(inner, shape.elementType, name)
        return T.ArrayType(shaped_inner) if isinstance(own, T.ArrayType) else shaped_inner
    if isinstance(own, T.ArrayType):
        raise ConfigurationError(
            f"{name} is an array, but occurs only once in the XSD", remedy="Select one of its values"
        )
    if isinstance(own, T.StructType) != isinstance(shape, T.StructType):
        what = "a struct, not a single text" if isinstance(own, T.StructType) else "a single value, not a struct"
        raise ConfigurationError(f"{name} is {what} in the XSD", remedy=f"The XSD requires {shape.simpleString()}")
    return shaped(own, shape, name) if isinstance(own, T.StructType) else own


class XMLWriter:
    """Writes values of one struct as an element.

    Args:
        fields: The struct.
        namespace, local: The element's name.
        inside: The namespace of fields with metadata that names none.
        prefix: Of the element's namespace; "": the default namespace.
        zone: The time zone of a written TIMESTAMP; "": UTC.

    Raises:
        ConfigurationError: The zone does not exist; a type has no text form, or a name is not valid for an element.
    """

    def __init__(
        self, fields: T.StructType, namespace: str, local: str, inside: str, prefix: str = "", zone: str = ""
    ) -> None:
        self._tag = _tag(namespace, local)
        self._struct = _StructWriter(fields, inside, local, zone_of(zone))
        inner = list(dict.fromkeys(self._struct.namespaces()))
        self._nsmap: dict[str | None, str] = {}
        if namespace not in ("", _XML):  # as the default it would apply to elements without a namespace
            self._nsmap[prefix or ("m" if "" in inner else None)] = namespace
        for one in inner:
            if one not in ("", _XML, *self._nsmap.values()):
                self._nsmap[f"n{len(self._nsmap)}"] = one

    def element(self, value: dict[str, Any]) -> Any:
        """Return the element of one value.

        Raises:
            ValueError: A text contains a character that XML cannot contain.
        """
        root = etree.Element(self._tag, nsmap=self._nsmap)
        self._struct.write(value, root)
        return root


class _FieldWriter:
    def __init__(self, field: T.StructField, inside: str, path: str, zone: tzinfo) -> None:
        metadata = field.metadata or {}
        self.name, self.place = field.name, metadata.get("xml") or "element"
        self._nil = bool(metadata.get("nil"))
        self._optional = bool(metadata.get("optional"))
        local = metadata.get("name", field.name)
        if _NAME.fullmatch(local) is None or local.startswith("{"):
            raise ConfigurationError(
                f"{path}: {local!r} is not a valid name of an element",
                remedy="Give the column an alias that is a valid name",
            )
        namespace = metadata.get("namespace", inside if self.place == "element" else "")
        self._namespace = namespace
        self._tag = _tag(namespace, local)
        kind = field.dataType
        self.many = isinstance(kind, T.ArrayType)
        if isinstance(kind, T.ArrayType):
            kind = kind.elementType
        self._struct = _StructWriter(kind, inside, path, zone) if isinstance(kind, T.StructType) else None
        self._text = _to_text(kind, path, zone) if self._struct is None else str
        if self.place != "element" and (self.many or self._struct):
            raise ConfigurationError(f"{path} has several values, and is not a child", remedy="Remove its metadata")

    def namespaces(self) -> Iterator[str]:
        """Yield the namespaces of its elements and attributes; "" for an element without one."""
        if self.place == "element" or self._namespace:
            yield self._namespace
        if self._struct is not None:
            yield from self._struct.namespaces()

    def write(self, value: Any, parent: Any) -> None:
        """Write the field in its default form."""
        if self.place == PLACE or (self.place != "element" and value is None):
            return
        if self.place == "attribute":
            parent.set(self._tag, self._text(value))
        elif self.place == "text":
            parent.text = self._text(value)
        elif self.many:
            for one in value or ():
                self.write_one(one, parent)
        elif value is not None or not self._optional:
            self.write_one(value, parent)

    def write_one(self, value: Any, parent: Any, *, is_nil: bool = False) -> None:
        """Write one child; for a null none, unless the child is nillable or was nil."""
        if value is not None or is_nil or (self._nil and (self.many or not self._optional)):
            self._child(value, parent)

    def _child(self, value: Any, parent: Any) -> None:
        child = etree.SubElement(parent, self._tag)
        if value is None:
            child.set(NIL, "true")
        elif self._struct is not None:
            self._struct.write(value, child)
        else:
            child.text = self._text(value)


class _StructWriter:
    def __init__(self, fields: T.StructType, inside: str, path: str, zone: tzinfo) -> None:
        self._fields = [_FieldWriter(field, inside, f"{path}.{field.name}", zone) for field in fields.fields]
        self._form = next((field.name for field in self._fields if field.place == PLACE), None)
        self._path = path

    def namespaces(self) -> Iterator[str]:
        for field in self._fields:
            yield from field.namespaces()

    def write(self, value: dict[str, Any], element: Any) -> None:
        form = None if self._form is None else value[self._form]
        if form is None:
            for field in self._fields:
                field.write(value[field.name], element)
        elif form == NIL_MARK:
            self._write_nil(value, element)
        else:
            self._write_as(form.split(), value, element)

    def _write_nil(self, value: dict[str, Any], element: Any) -> None:
        for field in self._fields:
            if field.place == "attribute":
                field.write(value[field.name], element)
            elif field.place != PLACE and value[field.name] is not None:
                raise ValueError(f"{self._path}: {self._form} is {NIL_MARK}, but {field.name} is not null")
        element.set(NIL, "true")

    def _write_as(self, words: list[str], value: dict[str, Any], element: Any) -> None:
        """Write the children in the order in which they were parsed.

        Raises:
            ValueError: They are not the children that were parsed, or these are not all that was parsed.
        """
        if UNHELD in words:
            raise ValueError(
                f"{self._path} had content that no column holds, of a wildcard or of mixed content; set {self._form} "
                "to null to write it without"
            )
        children = {field.name.lower(): field for field in self._fields if field.place == "element"}
        left = {}
        for field in self._fields:
            if field.place != "element":
                field.write(value[field.name], element)
            else:
                items = (value[field.name] or ()) if field.many else (value[field.name],)
                left[field.name.lower()] = deque(items)
        for word in words:
            name, _, mark = word.lower().partition(":")
            if name in children and left[name]:
                children[name].write_one(left[name].popleft(), element, is_nil=bool(mark))
            elif name not in children or children[name].many:
                raise ValueError(self._unlike(name))
        for name, items in left.items():
            if items if children[name].many else any(one is not None for one in items):
                raise ValueError(self._unlike(name))

    def _unlike(self, name: str) -> str:
        return (
            f"{self._path}: {self._form} has the order of other children than those of the column {name}; set "
            f"{self._form} to null to write the children in the order of the columns"
        )


def _tag(namespace: str, local: str) -> str:
    return f"{{{namespace}}}{local}" if namespace else local


# --- texts ------------------------------------------------------------------------------------------------------------


_OFFSET = re.compile(r"([+-])(0[0-9]|1[0-4]):([0-5][0-9])")


def zone_of(name: str) -> tzinfo:
    """Return the time zone for a name or an offset; UTC for "".

    Raises:
        ConfigurationError: The zone does not exist.
    """
    if name in ("", "Z"):
        return UTC
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"the time zone {name!r} does not exist", remedy='Give its name, such as "Europe/Berlin", or "+02:00"'
        ) from None


def _to_text(kind: T.DataType, path: str, zone: tzinfo) -> Callable[[Any], str]:
    if isinstance(kind, T.DecimalType):
        return partial(_decimal, kind.scale) if (kind.precision, kind.scale) != _ANY_DECIMAL else _shortest
    if isinstance(kind, T.TimestampType):
        return partial(_moment, zone)
    found = _TEXTS.get(type(kind))
    if found is None:
        raise ConfigurationError(
            f"{path} has type {kind.simpleString()}, which has no text form in XML", remedy="Convert it to a STRING"
        )
    return found


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _float(value: float) -> str:
    import numpy as np

    return _special(value) or str(np.float32(value))


def _double(value: float) -> str:
    return _special(value) or repr(value)


def _special(value: float) -> str:
    if value != value:
        return "NaN"
    return {float("inf"): "INF", float("-inf"): "-INF"}.get(value, "")


_ANY_DECIMAL = (38, 18)
"""Precision and scale of a plain XSD decimal: no column has this scale."""


def _decimal(scale: int, value: Decimal) -> str:
    return f"{value:.{scale}f}"


def _shortest(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _moment(zone: tzinfo, value: datetime) -> str:
    try:
        at = value.astimezone(zone)
    except OverflowError:
        raise ValueError(f"{value.isoformat()} is not in the years 0001 to 9999 in {zone}") from None
    offset = at.isoformat()[len(at.replace(tzinfo=None).isoformat()) :]
    if len(offset) > len("+00:00"):
        raise ValueError(f"{value.isoformat()} is {offset} from UTC in {zone}, which XML cannot express")
    return _local_moment(at.replace(tzinfo=None)) + ("Z" if offset == "+00:00" else offset)


def _local_moment(value: datetime) -> str:
    text = value.isoformat()
    return text.rstrip("0") if "." in text else text


def _day(value: date) -> str:
    return value.isoformat()


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


_TEXTS: dict[type[T.DataType], Callable[[Any], str]] = {
    T.StringType: str,
    T.BooleanType: _boolean,
    T.ByteType: str,
    T.ShortType: str,
    T.IntegerType: str,
    T.LongType: str,
    T.FloatType: _float,
    T.DoubleType: _double,
    T.DateType: _day,
    T.TimestampNTZType: _local_moment,
    T.BinaryType: _bytes,
}
