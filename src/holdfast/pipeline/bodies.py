"""XML bodies into typed values by a Spark schema: strict, namespace-aware, and never silent about what does not fit.

A field takes the child element of its local name, else the attribute of that name. A nested StructType takes an
element with children, an ArrayType every child of that name. A field's metadata ``{"namespace": "urn:x"}`` narrows it
to that namespace. Texts are read as XML Schema writes them; a dateTime without a zone is taken for UTC.
Knows lxml and Spark's types, not the network.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from lxml import etree
from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError

NIL = "{http://www.w3.org/2001/XMLSchema-instance}nil"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
_DOUBLE = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SPECIAL = {"INF": float("inf"), "+INF": float("inf"), "-INF": float("-inf"), "NaN": float("nan")}
_DATE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(Z|[+-][0-9]{2}:[0-9]{2})?")
_DATETIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})?")
_BOOLEAN = {"true": True, "1": True, "false": False, "0": False}

Convert = Callable[[str], Any]


class BodyReader:
    """Reads bodies by one schema. Cheap to make; one parser for all bodies.

    Args:
        schema: The fields of the body's element.

    Raises:
        ConfigurationError: The schema has a type that no text can be read as.
    """

    def __init__(self, schema: T.StructType) -> None:
        self._fields = [(field, _reader_of(field.name, field.dataType)) for field in schema.fields]
        self._parser = etree.XMLParser(
            resolve_entities=False, no_network=True, huge_tree=False, remove_comments=True, remove_pis=True
        )

    def read(self, body: bytes) -> tuple[dict[str, Any], str | None]:
        """The values by field name, None where there is none, and what is wrong with the body, None if nothing."""
        empty = dict.fromkeys(field.name for field, _ in self._fields)
        try:
            root = etree.fromstring(body, self._parser)
        except etree.XMLSyntaxError as error:
            return empty, f"not well-formed: {error.msg}"
        if root.getroottree().docinfo.doctype:
            return empty, "has a DOCTYPE, which SOAP forbids"
        problems: list[str] = []
        values = _struct(root, self._fields, problems, "")
        return values, "; ".join(problems) or None


_Reader = Any  # Convert for a text, _Nested for an element with children, _Many for repeated ones


class _Nested:
    def __init__(self, fields: list[tuple[T.StructField, _Reader]]) -> None:
        self.fields = fields


class _Many:
    def __init__(self, item: _Reader) -> None:
        self.item = item


def _struct(
    element: Any, fields: list[tuple[T.StructField, _Reader]], problems: list[str], path: str
) -> dict[str, Any]:
    children: dict[str, list[Any]] = {}
    for child in element:
        if isinstance(child.tag, str):
            children.setdefault(_local(child.tag), []).append(child)
    return {field.name: _field(element, children, field, reader, problems, path) for field, reader in fields}


def _field(
    element: Any, children: dict[str, list[Any]], field: T.StructField, reader: _Reader, problems: list[str], path: str
) -> Any:
    name = path + field.name
    namespace = field.metadata.get("namespace") if field.metadata else None
    found = [c for c in children.get(field.name, ()) if namespace is None or _namespace(c.tag) == namespace]
    if isinstance(reader, _Many) and found:
        return [_value(child, reader.item, problems, f"{name}[{i}]") for i, child in enumerate(found)]
    if len(found) > 1:
        problems.append(f"{name} occurs {len(found)} times")
        return None
    if found:
        return _value(found[0], reader, problems, name)
    if callable(reader):
        for key, text in element.attrib.items():
            if _local(key) == field.name and (namespace is None or _namespace(key) == namespace):
                return _text(text, reader, problems, name)
    if not field.nullable:
        problems.append(f"{name} is missing")
    return None


def _value(element: Any, reader: _Reader, problems: list[str], name: str) -> Any:
    if element.get(NIL) in ("true", "1"):
        return None
    if isinstance(reader, _Nested):
        return _struct(element, reader.fields, problems, f"{name}.")
    if len(element):
        problems.append(f"{name} has child elements")
        return None
    return _text(element.text or "", reader, problems, name)


def _text(text: str, convert: Convert, problems: list[str], name: str) -> Any:
    try:
        return convert(text)
    except (ValueError, ArithmeticError) as error:
        problems.append(f"{name}: {text.strip()[:100]!r} is not {error}")
        return None


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _namespace(tag: str) -> str:
    return tag[1:].partition("}")[0] if tag.startswith("{") else ""


# --- texts of XML Schema's simple types; each raises ValueError(what it is not) ---------------------------------------


def _matched(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise ValueError(what)
    return match


def _integer(bits: int) -> Convert:
    def convert(text: str) -> int:
        value = int(_matched(_INTEGER, text, "an integer")[0])
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError(f"an integer of {bits} bits")
        return value

    return convert


def _double(text: str) -> float:
    special = _SPECIAL.get(text.strip())
    return special if special is not None else float(_matched(_DOUBLE, text, "a number")[0])


def _decimal(precision: int, scale: int) -> Convert:
    def convert(text: str) -> Decimal:
        value = Decimal(_matched(_DECIMAL, text, "a decimal number")[0])
        _, digits, exponent = value.normalize().as_tuple()
        if not isinstance(exponent, int) or -exponent > scale or len(digits) + exponent > precision - scale:
            raise ValueError(f"a decimal({precision},{scale})")
        return value

    return convert


def _boolean(text: str) -> bool:
    value = _BOOLEAN.get(text.strip())
    if value is None:
        raise ValueError("a boolean")
    return value


def _date(text: str) -> date:
    try:
        return date.fromisoformat(_matched(_DATE, text, "a date")[1])
    except ValueError:
        raise ValueError("a date") from None


def _timestamp(text: str) -> datetime:
    try:
        value = datetime.fromisoformat(_matched(_DATETIME, text, "a dateTime")[0])
    except ValueError:
        raise ValueError("a dateTime") from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _local_timestamp(text: str) -> datetime:
    return _timestamp(text).replace(tzinfo=None)


_SCALARS: dict[type[Any], Convert] = {
    T.StringType: str,
    T.BooleanType: _boolean,
    T.ByteType: _integer(8),
    T.ShortType: _integer(16),
    T.IntegerType: _integer(32),
    T.LongType: _integer(64),
    T.FloatType: _double,
    T.DoubleType: _double,
    T.DateType: _date,
    T.TimestampType: _timestamp,
    T.TimestampNTZType: _local_timestamp,
}


def _reader_of(name: str, kind: T.DataType) -> _Reader:
    if isinstance(kind, T.StructType):
        return _Nested([(field, _reader_of(f"{name}.{field.name}", field.dataType)) for field in kind.fields])
    if isinstance(kind, T.ArrayType) and not isinstance(kind.elementType, T.ArrayType):
        return _Many(_reader_of(name, kind.elementType))
    if isinstance(kind, T.DecimalType):
        return _decimal(kind.precision, kind.scale)
    if convert := _SCALARS.get(type(kind)):
        return convert
    raise ConfigurationError(
        f"the field {name} has type {kind.simpleString()}, which a body cannot be read as",
        remedy="read it as STRING and convert it with Spark",
    )
