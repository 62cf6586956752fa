"""The fields and types of operations as plain data, for texts and for typed modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import zeep.xsd
from lxml import etree
from zeep.xsd.elements.indicators import Choice, OrderIndicator
from zeep.xsd.types import builtins
from zeep.xsd.types.any import AnyType
from zeep.xsd.types.collection import ListType, UnionType

from holdfast.wsdl import fields
from holdfast.wsdl.contract import Contract, Operation, is_bare
from holdfast.wsdl.documents import SCHEMA
from holdfast.wsdl.fields import ELEMENT, TYPE
from holdfast.wsdl.groups import excluding, parts
from holdfast.wsdl.headers import Blocks
from holdfast.wsdl.values import CONTENT

DURATION = "DurationValue"
"""The name of the type of durations in typed modules. With years or months, they are of a class without types."""
_A_YEAR, _TWO_PARTS = "tuple[int, datetime.tzinfo | None]", "tuple[int, int, datetime.tzinfo | None]"
_PYTHON: list[tuple[type, str]] = [
    (builtins.Boolean, "bool"),
    (builtins.Integer, "int"),
    (builtins.Decimal, "Decimal"),
    (builtins.Float, "float"),
    (builtins.Double, "float"),
    (builtins.DateTime, "datetime.datetime"),
    (builtins.Date, "datetime.date"),
    (builtins.Time, "datetime.time"),
    (builtins.Base64Binary, "bytes"),
    (builtins.HexBinary, "bytes"),
    (builtins.String, "str"),
    (builtins.AnyURI, "str"),
    (builtins.QName, "str"),
    (builtins.Duration, DURATION),
    *((kind, _A_YEAR) for kind in (builtins.gYear, builtins.gMonth, builtins.gDay)),
    *((kind, _TWO_PARTS) for kind in (builtins.gYearMonth, builtins.gMonthDay)),
]
"""zeep's class of a simple type -> the Python type of its values. Others vary, so they are Any."""
_IN_UNIONS = ("bool", "int", "Decimal", "float", "datetime.datetime", "datetime.date", "datetime.time", "str")
"""The Python types of values that a union of simple types takes."""


MOST_CHOICES = 20
"""Maximum number of derived types, or of elements, that a field lists."""


@dataclass
class Shape:
    """A type.

    Attributes:
        name: Its name in the schema.
        python: The Python type of a simple type's values; "" for a structure.
        values: The allowed values of a simple type, if the schema lists them.
        fields: The fields of a structure.
        is_list: Whether it is a simple type with a list of values.
        choices: The types of which a value has one, if there are several; such a type has no name. The values of a
            union of simple types may have the type ``python``, too.
    """

    name: str
    python: str = ""
    values: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    is_list: bool = False
    choices: tuple[Shape, ...] = ()


_ANY_STRUCTURE = Shape("any of many types", "dict[str, Any]")
_ATTRIBUTES = Shape("any attributes", "dict[str, str]")


@dataclass(frozen=True)
class Field:
    """A field of a structure.

    Attributes:
        name: Its name.
        shape: Its type.
        is_list: Whether it may be repeated.
        is_optional: Whether it may be absent.
        is_nillable: Whether its value may be nil.
        excluded: The fields that cannot have a value together with it, because a choice has them as alternatives.
    """

    name: str
    shape: Shape
    is_list: bool = False
    is_optional: bool = False
    is_nillable: bool = False
    excluded: tuple[str, ...] = ()


class Shapes:
    """The types of a contract's operations.

    Args:
        contract: The operations.
        taken: Names that no structure gets.
    """

    def __init__(self, contract: Contract, taken: Iterable[str] = ()) -> None:
        self._taken = {_word(one) for one in taken}
        self._numbers: Counter[str] = Counter()
        """Name -> how many further ones it has."""
        self._values, self._anonymous = _enumerations(contract)
        self._known: dict[int, Shape] = {}
        self._variants: dict[tuple[str, str], Shape] = {}
        self._derived = contract.substitutes.types
        self._types: list[Any] = []
        """Every zeep type seen, so that its id stays its own."""
        self.named: list[Shape] = []
        """Structures with a name, in the order in which operations need them: each after those that it needs."""

    def input(self, operation: Operation) -> list[Field]:
        """Return the fields of an operation's input."""
        return self.fields(operation.input)

    def bare_input(self, operation: Operation) -> Shape | None:
        """Return the type of an input that is one value without fields; None for another input."""
        return self._shape(operation.input.type, operation.input.name) if is_bare(operation.input) else None

    def output(self, operation: Operation) -> Field | Shape | None:
        """Return what a call returns: the only field, a structure of all fields, or None without fields."""
        if operation.output is None:
            return None
        kind = operation.output.type
        if not isinstance(kind, zeep.xsd.ComplexType):
            return self._shape(kind, operation.output.name)
        found = self.fields(operation.output)
        if not found:
            return None
        return found[0] if len(found) == 1 else self._shape(kind, operation.output.name)

    def fields(self, element: Any) -> list[Field]:
        """Return the fields of a body's element: none for an element without fields."""
        kind = getattr(element, "type", None)
        return list(self._fields(kind)) if isinstance(kind, zeep.xsd.ComplexType) else []

    def faults(self, operation: Operation) -> dict[str, Shape]:
        """Return the types of the values of an operation's declared faults, by the name of the fault."""
        return {name: self._shape(one.type, one.name) for name, one in operation.faults.items()}

    def headers(self, blocks: Blocks) -> list[Field]:
        """Return the header blocks of a message as fields."""
        return [
            Field(
                block.key,
                self._of_element(block.element, block.element.name),
                is_optional=not block.is_required,
                is_nillable=bool(block.element.nillable),
            )
            for block in blocks.values()
        ]

    def structure(self, name: str, fields: list[Field]) -> Shape:
        """Return a new structure with a name like the given one."""
        made = Shape(self._unique(name), fields=fields)
        self.named.append(made)
        return made

    def _fields(self, kind: Any) -> Iterator[Field]:
        yield from self._fields_in(kind)
        for name, attribute in kind.attributes:
            is_open = isinstance(attribute, zeep.xsd.AnyAttribute)
            shape = _ATTRIBUTES if is_open else self._shape(getattr(attribute, "type", None), name)
            yield Field(name, shape, is_optional=not getattr(attribute, "required", False))

    def _fields_in(self, part: Any) -> Iterator[Field]:
        """Yield the elements of a type or of a group. A repeated group is a list of structures."""
        seen: set[str] = set()
        excluded = excluding(part if isinstance(part, OrderIndicator) else part._element)
        for name, element, is_optional in parts(part):
            if name in seen:  # of another alternative of a choice
                continue
            seen.add(name)
            is_group = isinstance(element, OrderIndicator)
            shape = self._group(element) if is_group else self._of_element(element, name)
            is_nillable = bool(getattr(element, "nillable", False))
            yield Field(name, shape, bool(element.accepts_multiple), is_optional, is_nillable, excluded.get(name, ()))

    def _of_element(self, element: Any, name: str) -> Shape:
        """Return the type of an element: one of several, if it may have derived types or be another element."""
        kind = getattr(element, "type", None)
        own = self._shape(kind, name)
        if not isinstance(element, fields.Field):
            return own
        choices: list[Shape] = []
        if not element.is_abstract:
            derived = self._derived.derived(kind) if isinstance(kind, zeep.xsd.ComplexType) else []
            is_abstract = isinstance(kind, zeep.xsd.ComplexType) and self._derived.is_abstract(kind)
            choices += [own] if not is_abstract or not derived else []
            few = len(derived) <= MOST_CHOICES
            choices += [self._variant(TYPE, one.qname, one) for one in derived] if few else [_ANY_STRUCTURE]
        few = len(element.members) <= MOST_CHOICES
        choices += [self._variant(ELEMENT, one.qname, one.type) for one in element.members] if few else [_ANY_STRUCTURE]
        return choices[0] if len(choices) == 1 else Shape("", choices=tuple(choices)) if choices else own

    def _variant(self, key: str, qname: etree.QName, kind: Any) -> Shape:
        """Return the structure of a value that names its type or element."""
        known = self._variants.get((key, qname.text))
        if known is None:
            end = "Typed" if key == TYPE else "Element"
            name = self._unique(f"{qname.localname[:1].upper()}{qname.localname[1:]}{end}")
            known = self._variants[key, qname.text] = Shape(name)
            is_structure = isinstance(kind, zeep.xsd.ComplexType)
            inner = list(self._fields(kind)) if is_structure else [Field(CONTENT, self._shape(kind, qname.localname))]
            known.fields = [Field(key, Shape("name", "str", (qname.text,))), *inner]
            self.named.append(known)
        return known

    def _group(self, group: Any) -> Shape:
        known = self._known.get(id(group))
        if known is None:
            self._types.append(group)
            is_choice = isinstance(group, Choice)
            known = self._known[id(group)] = Shape(self._unique("Choice" if is_choice else "Group"))
            known.fields = [replace(one, is_optional=is_choice or one.is_optional) for one in self._fields_in(group)]
            self.named.append(known)
        return known

    def _shape(self, kind: Any, of: str) -> Shape:
        known = self._known.get(id(kind))
        if known is not None:
            return known
        self._types.append(kind)
        if isinstance(kind, ListType):
            item = self._shape(kind.item_type, of)
            return Shape(item.name, item.python, item.values, is_list=True)
        name = getattr(kind, "name", None) or ("anything" if type(kind) is AnyType else of)
        if not isinstance(kind, zeep.xsd.ComplexType):
            shape = self._known[id(kind)] = self._simple(kind, name)
            return shape
        shape = self._known[id(kind)] = Shape(self._unique(name[:1].upper() + name[1:]))
        shape.fields = list(self._fields(kind))
        self.named.append(shape)
        return shape

    def _simple(self, kind: Any, name: str) -> Shape:
        if isinstance(kind, UnionType):
            members = [self._shape(one, name) for one in kind.item_types]
            # Others are texts. What zeep cannot read as one class for all members arrives as text, too.
            given = (
                one if one.python in _IN_UNIONS and not one.is_list else Shape(one.name, "str", one.values)
                for one in members
            )
            return Shape("", "str", choices=tuple(given))
        qname = str(getattr(kind, "qname", "") or "")
        built_in = getattr(kind, "_default_qname", None)
        if qname in self._anonymous and built_in is not None:
            name = built_in.localname
        python = next((text for cls, text in _PYTHON if isinstance(kind, cls)), "Any")
        return Shape(name, python, self._values.get(qname, ()))

    def _unique(self, name: str) -> str:
        unique = name
        while _word(unique) in self._taken:
            self._numbers[name] += 1
            unique = f"{name}{self._numbers[name] + 1}"
        self._taken.add(_word(unique))
        return unique


def _word(name: str) -> str:
    """Return a name as Python allows it: two names of a schema may differ only in other signs."""
    return re.sub(r"\W", "_", name)


def _enumerations(contract: Contract) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Return the allowed values of simple types, which zeep does not keep, and the names of those without a name.

    zeep gives a type without a name that of its element or attribute. If several types have one name, and not the same
    values, no values are returned for it.
    """
    values: dict[str, tuple[str, ...]] = {}
    named: set[str] = set()
    for schema in contract.documents.schemas():
        for kind in schema.root.iter(f"{{{SCHEMA}}}simpleType"):
            is_named = kind.getparent() is schema.root
            around = kind if is_named else next(kind.iterancestors())
            name = schema.defined(around.get("name", "Anonymous"))
            listed = kind.iterfind(f"{{{SCHEMA}}}restriction/{{{SCHEMA}}}enumeration")
            found = tuple(one.get("value", "") for one in listed)
            values[name] = found if values.get(name, found) == found else ()
            if is_named:
                named.add(name)
    return values, values.keys() - named
