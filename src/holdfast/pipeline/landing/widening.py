"""Merge the schemas of rows that were landed at different times.

Fields come and go, and a type may become one that holds all values of the earlier type. This module knows types only.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from holdfast.exceptions import ConfigurationError

_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_ORDER: list[type[DataType]] = [ByteType, ShortType, IntegerType, LongType]
_TEXTS = (*_ORDER, DecimalType, BooleanType, DateType)
"""Types with one text for each value, in every session."""


def widens(old: DataType, new: DataType) -> bool:
    """Whether the new type can represent each value of the old one exactly."""
    if old == new:
        return True
    if isinstance(new, StringType):
        return isinstance(old, _TEXTS)
    if isinstance(new, DecimalType):
        whole = new.precision - new.scale
        if isinstance(old, DecimalType):
            return bool(new.scale >= old.scale and whole >= old.precision - old.scale)
        digits = _DIGITS.get(type(old))
        return digits is not None and bool(whole >= digits)
    if isinstance(new, DoubleType):
        return isinstance(old, FloatType | ByteType | ShortType | IntegerType)
    if type(old) in _ORDER and type(new) in _ORDER:
        return _ORDER.index(type(old)) < _ORDER.index(type(new))
    return False


def merged(schemas: Sequence[StructType]) -> StructType:
    """Return the schema that can read the rows of all schemas.

    It has the fields of the newest schema, in its order and with its types, then those that only older ones have.

    Args:
        schemas: The newest first.

    Raises:
        ConfigurationError: The newest type of a field cannot hold the values of an older one.
    """
    all_of_them = schemas[0]
    for older in schemas[1:]:
        all_of_them = _struct(older, all_of_them, "")
    return all_of_them


def _struct(old: StructType, new: StructType, path: str) -> StructType:
    by_name = {field.name.lower(): field for field in old.fields}
    fields = []
    for field in new.fields:
        older = by_name.pop(field.name.lower(), None)
        kind = field.dataType
        if older is not None:
            if older.name != field.name:
                raise _refusal(path, field, f"is called {older.name}", "call it as before, or")
            kind = _type(older, field, path)
        fields.append(StructField(field.name, kind))
    return StructType([*fields, *by_name.values()])


def _type(older: StructField, newer: StructField, path: str) -> DataType:
    old, new = older.dataType, newer.dataType
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _struct(old, new, f"{path}{newer.name}.")
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(_type(StructField("", old.elementType), StructField(newer.name, new.elementType), path))
    if isinstance(old, MapType) and isinstance(new, MapType) and old.keyType == new.keyType:
        value = _type(StructField("", old.valueType), StructField(newer.name, new.valueType), path)
        return MapType(new.keyType, value, old.valueContainsNull or new.valueContainsNull)
    if not widens(old, new):
        raise _refusal(path, newer, f"is {old.simpleString()}")
    return new


def fits(new: DataType, there: DataType) -> bool:
    """Whether values of a type fit a table's type, apart from further fields of structs at any depth.

    The table may also have fields that the new type lacks; they are then null.
    """
    if isinstance(new, StructType) and isinstance(there, StructType):
        known = {field.name: field.dataType for field in there.fields}
        return all(fits(field.dataType, known.get(field.name, field.dataType)) for field in new.fields)
    if isinstance(new, ArrayType) and isinstance(there, ArrayType):
        return fits(new.elementType, there.elementType)
    if isinstance(new, MapType) and isinstance(there, MapType):
        may_be_null = there.valueContainsNull or not new.valueContainsNull
        return new.keyType == there.keyType and may_be_null and fits(new.valueType, there.valueType)
    return bool(new == there)


def adds(new: DataType, there: DataType) -> bool:
    """Whether a type that fits a table's type has further fields."""
    if isinstance(new, StructType) and isinstance(there, StructType):
        known = {field.name: field.dataType for field in there.fields}
        return any(field.name not in known or adds(field.dataType, known[field.name]) for field in new.fields)
    if isinstance(new, ArrayType) and isinstance(there, ArrayType):
        return adds(new.elementType, there.elementType)
    return isinstance(new, MapType) and isinstance(there, MapType) and adds(new.valueType, there.valueType)


def _refusal(path: str, field: StructField, there: str, before: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"{path}{field.name} would become {field.dataType.simpleString()}, but {there} in the landed rows",
        remedy=f"{before} parse the rows into another table with `holdfast reland`; continue there".strip(),
    )


def as_written(own: DataType | None, whole: DataType) -> DataType:
    """Return the merged type, with the types of a file for the fields that the file has."""
    if isinstance(own, StructType) and isinstance(whole, StructType):
        there = {field.name: field.dataType for field in own.fields}
        return StructType([StructField(f.name, as_written(there.get(f.name), f.dataType)) for f in whole.fields])
    if isinstance(own, ArrayType) and isinstance(whole, ArrayType):
        return ArrayType(as_written(own.elementType, whole.elementType))
    if isinstance(own, MapType) and isinstance(whole, MapType):
        return MapType(own.keyType, as_written(own.valueType, whole.valueType), whole.valueContainsNull)
    return whole if own is None else own
