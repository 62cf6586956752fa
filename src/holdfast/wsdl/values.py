"""Values as zeep takes them, checked first: zeep would write some values of a wrong type as other ones.

For example, zeep writes a tuple as its ``repr``, the text "no" of a Boolean as true, and any text of a binary value as
base64. ``prepared`` refuses these by the name of their field. ``simple_types`` reads what zeep would read as None.
"""

from __future__ import annotations

import base64
import datetime
import enum
import math
import uuid
from binascii import unhexlify
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import zeep.xsd
from lxml import etree
from zeep.xsd.elements.indicators import OrderIndicator
from zeep.xsd.schema import Schema
from zeep.xsd.types import builtins
from zeep.xsd.types.any import AnyType
from zeep.xsd.types.collection import ListType, UnionType
from zeep.xsd.types.simple import AnySimpleType
from zeep.xsd.valueobjects import AnyObject, CompoundValue

from holdfast.exceptions import EnvelopeError, clause
from holdfast.settings import suggestion
from holdfast.wire.body import parse_element
from holdfast.wire.text import NOT_IN_XML
from holdfast.wsdl.fields import ELEMENT, IS_NIL, NIL, TYPE, Member, Typed, nil_fields, with_nil
from holdfast.wsdl.simple_types import PARTS_OF_DATES, Unreadable
from holdfast.wsdl.structures import known_fields
from holdfast.wsdl.substitutes import Substitutes, check_concrete, type_name

_AS_THEY_ARE = (AnyObject, CompoundValue, Member, Typed, etree.CDATA, type(zeep.xsd.Nil), type(zeep.xsd.SkipValue))
"""Values of zeep's own."""
_NUMBERS = (int, float, Decimal)
_TEXTS = (str, uuid.UUID)
_BYTES = (bytes, bytearray, memoryview)
_BOOLEANS = (True, False, "true", "false", "1", "0")
_ONE_NUMBER = (builtins.gYear, builtins.gMonth, builtins.gDay)
_PARTS: dict[type, str] = {
    builtins.gYearMonth: "(year, month, time zone or None)",
    builtins.gMonthDay: "(month, day, time zone or None)",
    builtins.gYear: "(year, time zone or None)",
    builtins.gMonth: "(month, time zone or None)",
    builtins.gDay: "(day, time zone or None)",
}
"""zeep's class of a part of a date -> the tuple that it takes."""
_LISTS = (builtins.NmTokens, builtins.IDREFS, builtins.Entities)
"""zeep has the built-in lists as texts."""
_BINARY = (builtins.Base64Binary, builtins.HexBinary)
_NO_LIST = (str, bytes, bytearray, memoryview, Mapping, etree._Element, CompoundValue)
"""Values that can be iterated over, but are one value."""
_TAKEN: list[tuple[type, tuple[type, ...], str]] = [
    (builtins.Time, (datetime.time, str), "a time"),
    (builtins.DateTime, (datetime.datetime, str), "a datetime"),
    (builtins.Date, (datetime.date, str), "a date"),
    (builtins.Duration, (datetime.timedelta, builtins.isodate.Duration, str), "a timedelta"),
    (builtins.QName, (str, etree.QName), "text such as '{urn:a}name'"),
]
"""zeep's class of a simple type -> what it takes, besides values of zeep's own, and that in words."""
_ANYTHING = (*_TEXTS, *_NUMBERS, bool, datetime.date, datetime.time)


_LARGEST = {
    builtins.Float: Decimal(2) ** 128 - Decimal(2) ** 103,
    builtins.Double: Decimal(2) ** 1024 - Decimal(2) ** 970,
}
"""zeep's class of a number -> the least one that is not rounded to a finite number (IEEE 754)."""

CONTENT = "_value_1"
"""zeep's name of the text of a structure with attributes, and ours of a simple value with a key for its type."""


def prepared(
    element: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], substitutes: Substitutes, *, is_json: bool
) -> Any:
    """Return zeep's value for the element of a body.

    Args:
        element: The element.
        arguments: The values of its first fields, or its own if it has no fields.
        values: The fields by name.
        substitutes: The types and elements that values may name with ``@type`` and ``@element``.
        is_json: Whether the values are from JSON, which has no bytes: binary values are then texts.

    Raises:
        EnvelopeError: A value has a type that its field cannot have; the message names the field.
    """
    writer = _Preparation(substitutes, is_json=is_json)
    kind = element.type
    if len(arguments) == 1 and not values and element.is_named(arguments[0]):
        values, arguments = arguments[0], ()
    if ELEMENT in values and not arguments:
        return writer.one(element, values, element.name)
    check_concrete(element, element.name)
    if values.get(IS_NIL) is True and not arguments:
        return writer.item(kind, values, element.name)
    if not isinstance(kind, zeep.xsd.ComplexType):
        given = (*arguments, *values.values())
        wrong = next((name for name in values if name not in ("value", "_value_1")), None)
        if wrong is not None:
            raise EnvelopeError(f"{element.name} is one value without fields. It is named 'value', not '{wrong}'.")
        if len(given) != 1:
            raise EnvelopeError(f"{element.name} is one value without fields, and {len(given)} are given.")
        return writer.item(kind, given[0], element.name)
    kind, values = writer.typed(kind, values, "")
    arguments, values = writer.fields(kind, arguments, values, "")
    return kind(*arguments, **values)


class _Preparation:
    """One pass over the values of a body."""

    def __init__(self, substitutes: Substitutes, *, is_json: bool) -> None:
        self._types, self._elements = substitutes.types, substitutes.elements
        self._is_json = is_json

    def typed(self, kind: Any, values: Mapping[str, Any], path: str) -> tuple[Any, Mapping[str, Any]]:
        """Return the type of a structure, and its fields without the name of that type."""
        if TYPE in values:
            kind, _ = self._types.find(kind, values[TYPE], path)
            values = _without(values, TYPE)
        else:
            self._types.check_concrete(kind, path)
        return kind, values

    def fields(
        self, kind: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], path: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        known = known_fields(kind)
        for name in values:
            if name not in known and name != "_raw_elements":
                raise _no_field(name, path, known)
        if len(arguments) > len(known):
            raise EnvelopeError(f"{len(arguments)} values are given without a name, for {len(known)} fields.")
        values = _with_nil_fields(values)
        if isinstance(getattr(kind, "_element", None), OrderIndicator):
            given = dict(zip(known, arguments, strict=False)) | values
            check_choices(kind._element, given, path or kind.name)
        names = [*known, *(None,) * len(arguments)]
        return (
            tuple(self._field(known, name, value, path) for name, value in zip(names, arguments, strict=False)),
            {name: self._field(known, name, value, path) for name, value in values.items()},
        )

    def _field(self, known: Mapping[str, Any], name: str | None, value: Any, path: str) -> Any:
        where = f"{path}.{name}" if path else f"{name}"
        element = known.get(name or "")
        if isinstance(element, OrderIndicator):  # a repeated group of elements
            if isinstance(value, list | tuple):
                return [self._of_group(element, one, f"{where}[{at}]") for at, one in enumerate(value)]
            return self._of_group(element, value, where)
        if element is None:  # for zeep to refuse
            return value
        if not isinstance(element, zeep.xsd.Element):
            return self._open(element, value, where)
        if element.accepts_multiple and isinstance(value, Iterator):
            raise _unfit(where, "a list", value)
        if not element.accepts_multiple or value is None or not _is_repeated(element.type, value):
            return self.one(element, value, where)
        return [self._one_of(element, one, f"{where}[{at}]") for at, one in enumerate(value)]

    def _of_group(self, group: Any, value: Any, where: str) -> Any:
        """Return one value of a repeated group."""
        if not isinstance(value, dict):  # for the group to refuse
            return value
        known = known_fields(group)
        unknown = next((name for name in value if name not in known), None)
        if unknown is not None:
            raise _no_field(unknown, where, known)
        found = {name: self._field(known, name, one, where) for name, one in _with_nil_fields(value).items()}
        check_choices(group, found, where)
        if group.is_empty(found):  # zeep would drop it
            nil = [name for name, one in value.items() if one is None and getattr(known[name], "nillable", False)]
            if len(value) != 1 or not nil:
                raise EnvelopeError(f"{where} has no value for any of its fields: {', '.join(known):.400}")
            return {nil[0]: zeep.xsd.Nil}  # a nil element is None where it arrives
        return found

    def _one_of(self, element: Any, value: Any, where: str) -> Any:
        if value is None:
            if not element.nillable:
                raise EnvelopeError(f"{where} is None.", remedy="Leave absent values out of the list.")
            return zeep.xsd.Nil
        return self.one(element, value, where)

    def one(self, element: Any, value: Any, where: str) -> Any:
        """Return one value of an element."""
        if isinstance(value, Mapping) and ELEMENT in value:
            member = self._elements.member(element, value, where)
            return Member(member, self._content(member.type, _without(value, ELEMENT), where))
        if value is not None and not isinstance(value, Member):
            check_concrete(element, where)
        return self.item(element.type, value, where)

    def _content(self, kind: Any, value: Mapping[str, Any], where: str) -> Any:
        """Return the value of an element that a key of the value names."""
        is_plain = set(value) == {CONTENT} and not isinstance(kind, zeep.xsd.ComplexType)
        written = self.item(kind, value[CONTENT] if is_plain else value, where)
        return kind(**written) if isinstance(written, dict) else zeep.xsd.Nil if written is None else written

    def _open(self, wildcard: Any, value: Any, where: str) -> Any:
        """Return the value of a wildcard (``xs:any``, ``xs:anyAttribute``)."""
        if value is None or isinstance(value, _AS_THEY_ARE):
            return value
        if isinstance(wildcard, zeep.xsd.AnyAttribute):
            if not isinstance(value, Mapping):
                raise _unfit(where, "a dict of names and texts", value)
            return {
                name: _attribute(name, one, f"{where}[{getattr(name, 'text', name)!r}]") for name, one in value.items()
            }
        if wildcard.accepts_multiple and _is_list(value):
            return [self._open_one(wildcard, one, f"{where}[{at}]") for at, one in enumerate(value)]
        return self._open_one(wildcard, value, where)

    def _open_one(self, wildcard: Any, value: Any, where: str) -> Any:
        if isinstance(value, Mapping) and ELEMENT in value:
            return self.one(wildcard, value, where)
        if isinstance(value, str | bytes):
            try:
                return parse_element(value.encode() if isinstance(value, str) else value)
            except EnvelopeError as error:
                raise EnvelopeError(f"{where}: {clause(error.message.replace('the body', 'it'))}.") from None
        if not isinstance(value, _AS_THEY_ARE) and not isinstance(value, etree._Element):
            raise _unfit(where, f"an element (lxml or XML text), or a dict with the key {ELEMENT!r}", value)
        return value

    def item(self, kind: Any, value: Any, where: str) -> Any:
        """Return one value of a type."""
        if value is None or isinstance(value, _AS_THEY_ARE):
            return value
        if isinstance(value, Mapping) and value.get(IS_NIL) is True:
            return self._nil(kind, value, where)
        if isinstance(kind, zeep.xsd.ComplexType):
            return self._structure(kind, value, where)
        if isinstance(value, Mapping) and TYPE in value:
            return self._typed_value(kind, value, where)
        if type(kind) is AnyType and isinstance(value, list) and all(isinstance(one, etree._Element) for one in value):
            return value
        if isinstance(value, str):
            _check_characters(where, value)
        if isinstance(kind, ListType):
            if not _is_list(value):
                raise _unfit(where, "a list", value)
            return [self._word(kind.item_type, one, f"{where}[{at}]") for at, one in enumerate(value)]
        written = self._simple(kind, value, where)
        if not isinstance(kind, _BINARY):
            _check_convertible(kind, written, where)
        return written

    def _nil(self, declared: Any, value: Mapping[str, Any], where: str) -> Any:
        """Return a value that is nil, but may have attributes."""
        rest = _without(value, IS_NIL)
        if not rest:
            return zeep.xsd.Nil
        kind, rest = self.typed(declared, rest, where)
        attributes = [name for name, _ in kind.attributes] if isinstance(kind, zeep.xsd.ComplexType) else []
        given = {name: one for name, one in rest.items() if name in attributes or one not in (None, [])}
        wrong = next((name for name in given if name not in attributes), None)
        if wrong is not None:
            raise EnvelopeError(
                f"{where}.{wrong} has a value, but {where} is nil.", remedy=f"Remove it, or the key {IS_NIL!r}."
            )
        made = kind(**self.fields(kind, (), given, where)[1])
        made[IS_NIL] = True
        return made

    def _typed_value(self, declared: Any, value: Mapping[str, Any], where: str) -> Any:
        """Return a value that names its type, where a simple type or none is declared."""
        own, name = self._types.find(declared, value[TYPE], where)
        rest = _without(value, TYPE)
        if isinstance(own, zeep.xsd.ComplexType):
            made = own(**self.fields(own, (), rest, where)[1])
            return AnyObject(own, made) if type(declared) is AnyType else made
        if set(rest) != {CONTENT}:
            raise EnvelopeError(f"{where} needs the key {CONTENT!r}, with the value of the type {name}, and no others.")
        return Typed(own, name, self.item(own, rest[CONTENT], where))

    def _structure(self, kind: Any, value: Any, where: str) -> Any:
        if isinstance(value, Mapping):
            own, fields = self.typed(kind, value, where)
            prepared = self.fields(own, (), fields, where)[1]
            return prepared if own is kind else own(**prepared)
        self._types.check_concrete(kind, where)
        if kind._array_type is not None:
            return value
        if isinstance(kind._element, zeep.xsd.Element):  # a text with attributes
            return self.fields(kind, (value,), {}, where)[0][0]
        raise _no_dict(kind, value, where)  # zeep would take it as the first field

    def _word(self, kind: Any, value: Any, where: str) -> Any:
        written = self.item(kind, value, where)
        if isinstance(written, str) and len(written.split()) != 1:
            raise EnvelopeError(f"{where} is not one word, and spaces separate the values of its type.")
        return written

    def _simple(self, kind: Any, value: Any, where: str) -> Any:
        if isinstance(kind, _BINARY):
            return self._binary(kind, value, where)
        if isinstance(kind, builtins.Boolean):
            return _checked(where, value, value in _BOOLEANS, "True or False")
        if isinstance(kind, _LISTS) and _is_list(value):
            return " ".join(
                self._word(kind, _text(f"{where}[{at}]", one), f"{where}[{at}]") for at, one in enumerate(value)
            )
        if isinstance(kind, builtins.String | builtins.AnyURI) or (
            isinstance(kind, UnionType) and issubclass(kind.item_class or object, builtins.String)
        ):
            return _text(where, value)
        if (
            isinstance(kind, builtins.Float | builtins.Double | UnionType)
            and isinstance(value, float)
            and not math.isfinite(value)
        ):
            return "NaN" if math.isnan(value) else "INF" if value > 0 else "-INF"
        if isinstance(kind, builtins.Date) and isinstance(value, datetime.date):
            is_date = not isinstance(value, datetime.datetime)
            return _checked(where, value, is_date, "a date (value.date())").isoformat()
        if isinstance(kind, PARTS_OF_DATES):
            if isinstance(kind, _ONE_NUMBER) and isinstance(value, int) and not isinstance(value, bool):
                return (value, None)
            told = next(one for cls, one in _PARTS.items() if isinstance(kind, cls))
            *numbers, zone = value if isinstance(value, tuple) and value else (None,)
            fits = isinstance(value, str) or (
                len(numbers) == told.count(",")
                and all(isinstance(one, int) and not isinstance(one, bool) for one in numbers)
                and isinstance(zone, datetime.tzinfo | None)
            )
            return _checked(where, value, fits, f"text, or a tuple {told}")
        for one, taken, told in _TAKEN:
            if isinstance(kind, one):
                _checked(where, value, isinstance(value, taken), told)
                return _name(where, value, told) if one is builtins.QName else value
        is_unspecific = type(kind) in (AnyType, AnySimpleType) or isinstance(kind, UnionType)
        if isinstance(value, enum.Enum) or (is_unspecific and not isinstance(value, _ANYTHING)):
            raise _unfit(where, "text or a number", value)
        return _checked(where, value, not _is_collection(value), "a single value")

    def _binary(self, kind: Any, value: Any, where: str) -> Any:
        is_hex = isinstance(kind, builtins.HexBinary)
        form = "hexadecimal" if is_hex else "base64"
        if self._is_json and isinstance(value, str):
            try:
                value = unhexlify(value) if is_hex else base64.b64decode(value, validate=True)
            except ValueError as error:  # also binascii.Error
                raise EnvelopeError(f"{where} is not {form}: {clause(str(error))}.") from None
        if not isinstance(value, _BYTES):
            remedy = "Encode text first: text.encode()." if isinstance(value, str) else ""
            raise _unfit(where, f"text in {form}" if self._is_json else "bytes", value, remedy)
        return bytes(value).hex().upper() if is_hex else value


def check_choices(group: Any, values: Mapping[str, Any], where: str) -> None:
    """Check that no choice in a group has values of two alternatives.

    Raises:
        EnvelopeError: One has; names a field of each.
    """
    conflict = group.conflict(values)
    if conflict is not None:
        wrong, chosen = conflict
        raise EnvelopeError(
            f"{where} cannot have {wrong!r} together with {chosen!r}: they are alternatives of a choice"
        )


def _with_nil_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    nil = nil_fields(values)
    return {name: zeep.xsd.Nil if value is None and name in nil else value for name, value in values.items()}


def _without(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return with_nil({name: value for name, value in values.items() if name != key}, nil_fields(values))


def _is_repeated(kind: Any, value: Any) -> bool:
    """Whether a value of an element that may be repeated is several values."""
    return _is_list(value) and not (isinstance(value, tuple) and isinstance(kind, PARTS_OF_DATES))


def _is_list(value: object) -> bool:
    """Whether a value is several values, that can be read twice: an iterator cannot."""
    return isinstance(value, Collection) and not isinstance(value, _NO_LIST)


def _is_collection(value: object) -> bool:
    return isinstance(value, _BYTES) or (isinstance(value, Iterable) and not isinstance(value, str))


def _text(where: str, value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # also of an enumeration with texts
    return str(_checked(where, value, isinstance(value, _TEXTS), "text"))


def _attribute(name: Any, value: Any, where: str) -> str | etree.QName:
    """Return the value of an attribute whose name the caller chooses, where lxml's errors would name no field."""
    is_name = isinstance(name, str | bytes | etree.QName)
    _name(where, _checked(where, name, is_name, "a text as its name"), "'{namespace}name' as its name")
    if isinstance(value, etree.QName):
        return value
    is_ascii = isinstance(value, bytes | bytearray) and value.isascii()
    text = value.decode() if is_ascii else _text(where, value)
    _check_characters(where, text)
    return text


def _check_convertible(kind: Any, value: Any, where: str) -> None:
    """Convert a value as zeep will, which names no field if it fails."""
    try:
        text = kind.xmlvalue(value)
    except Exception as error:  # zeep raises many kinds of errors for values of a wrong type
        raise EnvelopeError(f"{where} cannot be written as {_in_words(kind)}: {clause(str(error))}.") from error
    largest = next((one for cls, one in _LARGEST.items() if isinstance(kind, cls)), None)
    if largest is not None and _is_beyond(text, largest):
        raise EnvelopeError(f"{where} is beyond the range of {_in_words(kind)}.", remedy="Give math.inf for INF.")


def _is_beyond(text: str, largest: Decimal) -> bool:
    try:
        return largest <= Decimal(text).copy_abs() < math.inf
    except ArithmeticError:  # not a number: the schema says so
        return False


def _in_words(kind: Any) -> str:
    return f"xs:{kind._default_qname.localname}" if kind._default_qname is not None else "its type"


def _check_characters(where: str, value: str) -> None:
    found = NOT_IN_XML.search(value)
    if found is not None:
        raise EnvelopeError(
            f"{where} has the character {found[0]!a}, which XML does not allow.",
            remedy="Remove it.",
        )


def _no_field(name: str, path: str, known: Collection[str]) -> EnvelopeError:
    hint = suggestion(name, known, f"The fields are: {', '.join(known) or 'none'}.")
    return EnvelopeError(f"{f'{path} has' if path else 'there is'} no field {name!r}. {hint:.400}")


def _name(where: str, value: Any, told: str) -> etree.QName:
    try:
        return etree.QName(value)  # lxml writes its namespace with a prefix
    except ValueError:
        raise _unfit(where, told, value) from None


def _no_dict(kind: Any, value: object, where: str) -> EnvelopeError:
    known = known_fields(kind).items()
    names = ", ".join(name for name, one in known if not isinstance(one, zeep.xsd.AnyAttribute))
    return _unfit(where, f"a dict of its fields ({names or 'none'})", value)


def check_one_value(element: Any, value: object, what: str) -> None:
    """Check that a body may be given as one value.

    Args:
        element: The element of the body; None for an empty body.
        value: The value.
        what: The body, in words.

    Raises:
        EnvelopeError: it is a structure.
    """
    kind = None if element is None else element.type
    if isinstance(kind, zeep.xsd.ComplexType) and not isinstance(kind._element, zeep.xsd.Element):
        raise _no_dict(kind, value, what)


def _checked(where: str, value: Any, fits: bool, told: str) -> Any:
    if not fits:
        raise _unfit(where, told, value)
    return value


def _unfit(where: str, told: str, value: object, remedy: str = "") -> EnvelopeError:
    shown = repr(value) if isinstance(value, str) and len(value) < 30 else f"a value of the type {type(value).__name__}"
    if isinstance(value, Iterator):
        remedy = "Write list(…) around an iterator or generator."
    return EnvelopeError(f"{where} takes {told}, not {shown}.", remedy=remedy)


def parsed(element: Any, body: etree._Element, schema: Schema, *, is_json: bool = False) -> Any:
    """Return the values of a valid body as plain Python data: dicts, lists, and the values of simple types.

    Args:
        element: zeep's element of the body.
        body: The body. Comments in it are removed: zeep reads a text up to the first one.
        schema: zeep's types.
        is_json: Whether the values are for JSON, which has no bytes: binary values are then texts.
    """
    etree.strip_tags(body, etree.Comment, etree.ProcessingInstruction)
    for one in body.iter(etree.Element):
        if not len(one) and one.text is None and NIL not in one.attrib:
            one.text = ""  # zeep reads None as an absent text
    try:
        declared = next((one for one in element.members if one.qname.text == body.tag), element)
        value = declared.parse(body, schema)
        return _plain(value if declared is element else Member(declared, value), element.type, is_json=is_json)
    except Unreadable as error:
        error.message = f"{_place(body, error.value)}: {error.message}"
        raise


def _plain(value: Any, declared: Any, *, is_json: bool) -> Any:
    """Return zeep's value as plain Python data.

    Args:
        value: The value.
        declared: Its declared type, or the repeated group that it is of; None if the schema has none.
        is_json: As for :func:`parsed`.
    """
    if isinstance(value, list):
        return [_plain(one, declared, is_json=is_json) for one in value]
    if isinstance(value, Member):
        inner = _plain(value.value, value.element.type, is_json=is_json)
        fields = {IS_NIL: True} if inner is None else inner if isinstance(inner, dict) else {CONTENT: inner}
        return with_nil({ELEMENT: str(value.element.qname.text)} | fields, nil_fields(fields))
    if isinstance(value, Typed):
        return {TYPE: value.name, CONTENT: _plain(value.value, value.kind, is_json=is_json)}
    if not isinstance(value, dict | CompoundValue):
        return None if value is zeep.xsd.Nil else _json_value(value, declared) if is_json else value
    own = getattr(value, "_xsd_type", declared)
    known = known_fields(own) if isinstance(own, zeep.xsd.ComplexType | OrderIndicator) else {}
    name = type_name(value, declared)
    found: dict[str, Any] = {} if name is None else {TYPE: name}
    for key in value:
        part = known.get(key)
        kind = part if isinstance(part, OrderIndicator) else getattr(part, "type", None)
        found[key] = _plain(value[key], kind, is_json=is_json)
        if is_json and value[key] is zeep.xsd.Nil:
            found[key] = {IS_NIL: True}  # null is an absent one
    return with_nil(found, [key for key in value if value[key] is zeep.xsd.Nil])


def _json_value(value: Any, kind: Any) -> Any:
    """Return a value that JSON lacks as its type writes it."""
    if isinstance(kind, ListType):
        kind = kind.item_type
    if isinstance(value, bytes):
        is_hex = isinstance(kind, builtins.HexBinary)
        return value.hex().upper() if is_hex else base64.b64encode(value).decode()
    if isinstance(value, tuple) and isinstance(kind, PARTS_OF_DATES):  # JSON has no tuples
        return kind.xmlvalue(value)
    return etree.tostring(value, encoding="unicode", with_tail=False) if isinstance(value, etree._Element) else value


def _place(body: etree._Element, value: str) -> str:
    """Return the name of the first element or attribute with a value, or with a list that has it."""
    for one in body.iter(etree.Element):
        if value == one.text or value in (one.text or "").split():
            return str(etree.QName(one).localname)
        for name, text in one.items():
            if value == text or value in text.split():
                return str(etree.QName(name).localname)
    return str(etree.QName(body).localname)
