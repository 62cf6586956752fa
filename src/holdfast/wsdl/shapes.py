"""The fields and types of operations as plain data, for texts and for typed modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import zeep.xsd
from lxml import etree
from zeep.xsd.elements.indicators import Choice
from zeep.xsd.types import builtins
from zeep.xsd.types.collection import ListType

from holdfast.wsdl.contract import Contract, Operation
from holdfast.wsdl.documents import SCHEMA

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
]
"""zeep's class of a simple type -> the Python type of its values. Others vary, so they are Any."""


@dataclass
class Shape:
    """A type.

    Attributes:
        name: Its name in the schema.
        python: The Python type of a simple type's values; "" for a structure.
        values: The allowed values of a simple type, if the schema lists them.
        fields: The fields of a structure.
        is_list: Whether it is a simple type with a list of values.
    """

    name: str
    python: str = ""
    values: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    is_list: bool = False


@dataclass(frozen=True)
class Field:
    """A field of a structure.

    Attributes:
        name: Its name.
        shape: Its type.
        is_list: Whether it may be repeated.
        is_optional: Whether it may be absent.
        is_nillable: Whether its value may be nil.
    """

    name: str
    shape: Shape
    is_list: bool = False
    is_optional: bool = False
    is_nillable: bool = False


class Shapes:
    """The types of a contract's operations."""

    def __init__(self, contract: Contract) -> None:
        self._values = dict(_enumerations(contract))
        self._known: dict[int, Shape] = {}
        self._types: list[Any] = []
        """Every zeep type seen, so that its id stays its own."""
        self.named: list[Shape] = []
        """Structures with a name, in the order in which operations need them: each after those that it needs."""

    def input(self, operation: Operation) -> list[Field]:
        """Return the fields of an operation's input."""
        return self.fields(operation.input)

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

    def _fields(self, kind: Any) -> Iterator[Field]:
        for name, element, is_choice in _elements(kind):
            shape = self._shape(getattr(element, "type", None), name)
            is_optional = is_choice or bool(element.is_optional)
            yield Field(
                name, shape, bool(element.accepts_multiple), is_optional, bool(getattr(element, "nillable", False))
            )
        for name, attribute in kind.attributes:
            shape = self._shape(getattr(attribute, "type", None), name)
            yield Field(name, shape, is_optional=not getattr(attribute, "required", False))

    def _shape(self, kind: Any, of: str) -> Shape:
        known = self._known.get(id(kind))
        if known is not None:
            return known
        self._types.append(kind)
        if isinstance(kind, ListType):
            item = self._shape(kind.item_type, of)
            return Shape(item.name, item.python, item.values, is_list=True)
        name = getattr(kind, "name", None) or of
        if not isinstance(kind, zeep.xsd.ComplexType):
            qname = str(getattr(kind, "qname", "") or "")
            python = next((text for cls, text in _PYTHON if isinstance(kind, cls)), "Any")
            shape = self._known[id(kind)] = Shape(name, python, self._values.get(qname, ()))
            return shape
        shape = self._known[id(kind)] = Shape(self._unique(name[:1].upper() + name[1:]))
        shape.fields = list(self._fields(kind))
        self.named.append(shape)
        return shape

    def _unique(self, name: str) -> str:
        taken = {shape.name for shape in self._known.values() if not shape.python}
        number = 2
        unique = name
        while unique in taken:
            unique, number = f"{name}{number}", number + 1
        return unique


def _elements(kind: Any) -> Iterator[tuple[str, Any, bool]]:
    """The elements of a complex type, and whether each is one of a choice."""
    for name, element in kind.elements_nested:
        if isinstance(element, zeep.xsd.Element):
            yield element.attr_name, element, False
        elif hasattr(element, "elements"):
            is_choice = isinstance(element, Choice) or bool(getattr(element, "is_optional", False))
            for inner, one in element.elements:
                yield inner, one, is_choice
        else:
            yield name, element, False


def _enumerations(contract: Contract) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The allowed values of the named simple types, which zeep does not keep."""
    for root in contract.documents.roots():
        for schema in root.iter(f"{{{SCHEMA}}}schema"):
            for kind in schema.iterfind(f"{{{SCHEMA}}}simpleType"):
                listed = kind.iterfind(f"{{{SCHEMA}}}restriction/{{{SCHEMA}}}enumeration")
                values = tuple(one.get("value", "") for one in listed)
                if values:
                    yield etree.QName(schema.get("targetNamespace") or None, kind.get("name", "")).text, values
