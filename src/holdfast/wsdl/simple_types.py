"""Simple types that lose no value, where zeep's read a valid value as None, or as another one."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import zeep.xsd
from lxml import etree
from zeep.xsd.schema import Schema
from zeep.xsd.types import builtins
from zeep.xsd.types.collection import ListType

from holdfast.exceptions import EnvelopeError

PARTS_OF_DATES = (builtins.gYear, builtins.gYearMonth, builtins.gMonth, builtins.gMonthDay, builtins.gDay)
_MARK = "{http://www.w3.org/XML/1998/namespace}present"
"""Needs no declaration of a namespace, which would stay."""


def simple_types(schema: Schema) -> None:
    """Replace the simple types of a schema, before documents are added to it, by those that lose no value.

    zeep logs a valid value that Python cannot hold, such as a date in the year 12026, and returns None.
    """
    for document in schema.documents:
        for name, kind in list(document._types.items()):
            if isinstance(kind, builtins.BuiltinType):
                document._types[name] = _EXACT[type(kind)](is_global=True)


class Unreadable(EnvelopeError):
    """Python cannot hold a valid value."""

    def __init__(self, value: str, error: Exception) -> None:
        super().__init__(f"Python cannot hold the value {value!r:.80}: {error}")
        self.value = value


class _Exact:
    """A simple type that refuses a value instead of reading it as None."""

    def pythonvalue(self, value: str) -> Any:
        try:
            return self._read(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise Unreadable(value, error) from error

    def _read(self, value: str) -> Any:
        return super().pythonvalue(value)  # type: ignore[misc] # of zeep's class


class _Hex(_Exact):
    def _read(self, value: str) -> bytes:
        return bytes.fromhex(value)


class _Decimal(_Exact):
    def xmlvalue(self, value: Any) -> str:
        # A float as Python shows it; zeep writes some with an exponent, which XML does not have here.
        return str(super().xmlvalue(Decimal(float.__repr__(value)) if isinstance(value, float) else value))  # type: ignore[misc]


class _Number(_Exact):
    def xmlvalue(self, value: Any) -> str:
        return str(value)  # zeep would write NaN in upper case


class _Written:
    """A time or date with more than Python's class holds, such as digits: ``isoformat()`` still returns all of it."""

    text = ""

    def isoformat(self, *how: Any, **more: Any) -> str:
        return self.text if self.text and not how and not more else super().isoformat(*how, **more)  # type: ignore[misc]


class _WrittenDate(_Written, datetime.date):
    """A date of a body with a time zone, which Python's class lacks."""


class _WrittenDateTime(_Written, datetime.datetime):
    """A datetime of a body."""


class _WrittenTime(_Written, datetime.time):
    """A time of a body."""


class _WrittenDuration(_Written, datetime.timedelta):
    """A timedelta of a body."""


def _written(found: Any, text: str) -> Any:
    """Return a time that keeps the text that it was read from, if Python's class lacks some of its digits."""
    if _TOO_EXACT.search(text) is None:
        return found
    if isinstance(found, datetime.datetime):
        kept: Any = _WrittenDateTime.combine(found.date(), found.timetz())
    elif isinstance(found, datetime.time):
        kept = _WrittenTime(found.hour, found.minute, found.second, found.microsecond, found.tzinfo)
    elif isinstance(found, datetime.timedelta):
        kept = _WrittenDuration(found.days, found.seconds, found.microseconds)
    else:
        raise ValueError("it has years or months, and a fraction of a second with more than six digits")
    kept.text = text.strip()
    return kept


class _Duration(_Exact):
    def _read(self, value: str) -> Any:
        return _written(super()._read(value), value)

    def xmlvalue(self, value: Any) -> str:
        return duration_text(value)


def duration_text(value: Any) -> str:
    """Return a duration, or the text of one, as XML writes it."""
    if isinstance(value, _Written):
        return value.text
    return value if isinstance(value, str) else str(builtins.isodate.duration_isoformat(value))


class _Moment(_Exact):
    def _read(self, value: str) -> Any:
        midnight = _MIDNIGHT.fullmatch(value.strip())
        if midnight is None:
            return _written(super()._read(value), value)
        day, zone = midnight.groups("")
        found = super()._read(f"{day}00:00:00{zone}")
        return found + datetime.timedelta(days=1) if day else found


class _Day(_Exact):
    def _read(self, value: str) -> Any:
        found, text = super()._read(value), value.strip()
        if _ZONE.search(text) is None:
            return found
        kept = _WrittenDate(found.year, found.month, found.day)
        kept.text = text
        return kept


class _PartOfDate(_Exact):
    def xmlvalue(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        text = str(super().xmlvalue((abs(value[0]), *value[1:])))  # type: ignore[misc] # of zeep's class
        return f"-{text}" if value[0] < 0 else text  # zeep would write -44 as -044


class _Month(_PartOfDate):
    def xmlvalue(self, value: Any) -> str:
        text = super().xmlvalue(value)
        return text if text[3:4].isdigit() else f"--0{text[2:]}"  # zeep writes one digit


class _Name(_Exact):
    """A QName as ``{namespace}name``."""

    def parse_xmlelement(self, xmlelement: etree._Element, *_: Any, **__: Any) -> str | None:
        return clark_names(xmlelement, xmlelement.text or "") or None


def clark_names(element: etree._Element, text: str) -> str:
    """Return a QName, or a list of them, as ``{namespace}name``, where the prefix is that of an element."""
    split = [one.rpartition(":") for one in text.split()]
    found = [(element.nsmap.get(prefix or None), name) for prefix, _, name in split]
    return " ".join(f"{{{namespace}}}{name}" if namespace else name for namespace, name in found)


def prefixed_names(element: etree._Element, names: Iterable[Any]) -> str:
    """Return QNames as a list, with prefixes that an element declares."""
    words = []
    for name in names:
        element.set(_MARK, name)  # lxml declares the namespace, and the declaration stays
        words.append(str(element.attrib.pop(_MARK)))
    return " ".join(words)


class NameList(ListType):
    """A list of QNames."""

    def parse_xmlelement(self, xmlelement: etree._Element, *_: Any, **__: Any) -> list[str]:
        return clark_names(xmlelement, xmlelement.text or "").split()

    def render(self, node: etree._Element, value: Any, *_: Any, **__: Any) -> None:
        node.text = prefixed_names(node, value)


class NameListAttribute(zeep.xsd.Attribute):
    """An attribute with a list of QNames."""

    def render(self, parent: etree._Element, value: Any, *_: Any, **__: Any) -> None:
        if isinstance(value, list):
            parent.set(self.qname, prefixed_names(parent, value))


def has_names(kind: Any) -> bool:
    return isinstance(kind.item_type if isinstance(kind, ListType) else kind, builtins.QName)


_MIDNIGHT = re.compile(r"(.+T)?24:00:00(?:\.0+)?(Z|[-+]\d\d:\d\d)?")
"""The end of a day, which is valid in XML Schema and no time in Python."""
_TOO_EXACT = re.compile(r"\.\d{6}\d*[1-9]")
"""More than six digits of a fraction, such as .NET writes."""
_ZONE = re.compile(r"(?:Z|[-+]\d\d:\d\d)\Z")
_SPECIAL: dict[type, type[_Exact]] = {
    builtins.HexBinary: _Hex,
    builtins.Decimal: _Decimal,
    builtins.Float: _Number,
    builtins.DateTime: _Moment,
    builtins.Time: _Moment,
    builtins.Date: _Day,
    builtins.Duration: _Duration,
    builtins.QName: _Name,
    **dict.fromkeys(PARTS_OF_DATES, _PartOfDate),
    builtins.gMonth: _Month,
}
_EXACT = {
    cls: type(cls.__name__, (_SPECIAL.get(cls, _Exact), cls), {"__module__": cls.__module__})
    for cls in builtins._types
    if issubclass(cls, builtins.BuiltinType)
}
