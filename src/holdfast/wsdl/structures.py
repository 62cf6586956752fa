"""Structures (complex types) that lose no value, where zeep's do: the fields of a type, and what ``complete`` adds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import count
from typing import Any

import zeep.xsd
from lxml import etree
from zeep.xsd.types.collection import ListType
from zeep.xsd.valueobjects import CompoundValue

from holdfast.exceptions import EnvelopeError
from holdfast.wsdl.fields import AS_XML, Field, Member, OpenElement, Typed, is_nil
from holdfast.wsdl.groups import numbered, parts, replace_groups
from holdfast.wsdl.simple_types import NameList, NameListAttribute, clark_names, has_names
from holdfast.wsdl.substitutes import SubstitutionGroups


def elements(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the elements of a type or of a group in it, by name."""
    for name, element in kind.elements:
        if hasattr(element, "elements"):
            yield from elements(element)
        else:
            yield name, element


def known_fields(kind: Any) -> dict[str, Any]:
    """Return the elements, repeated groups and attributes of a type, or of a repeated group, by name.

    The fields of a repeated group are not among them: their names are those of another structure.
    """
    attributes = kind.attributes if isinstance(kind, zeep.xsd.ComplexType) else ()
    return {name: one for name, one, _ in parts(kind)} | dict(attributes)


class _WithNames:
    """A type with QNames in attributes. zeep does not pass them their element, which declares the prefixes."""

    attributes: Any

    def parse_xmlelement(self, xmlelement: etree._Element, *given: Any, **more: Any) -> Any:
        names = [one.qname.text for _, one in self.attributes if one.name and has_names(one.type)]
        texts = {name: text for name in names if (text := xmlelement.get(name)) is not None}
        for name, text in texts.items():
            xmlelement.set(name, clark_names(xmlelement, text))
        try:
            return super().parse_xmlelement(xmlelement, *given, **more)  # type: ignore[misc] # of zeep's class
        finally:
            for name, text in texts.items():
                xmlelement.set(name, text)


class _Value(CompoundValue):
    """A structure with a field ``self``, which zeep's class cannot take as an argument."""

    def __init__(self, /, *arguments: Any, **values: Any) -> None:
        own = {name: values.pop(name) for name in ("self",) if name in values}
        super().__init__(*arguments, **values)
        self.__values__.update(own)


class _WithSelf:
    """The type of such a structure."""

    def __call__(self, /, *arguments: Any, **values: Any) -> Any:
        return self._value_class(*arguments, **values)

    @cached_property
    def _value_class(self) -> type:
        return type(type(self).__name__, (_Value,), {"_xsd_type": self, "__module__": "zeep.objects"})


class _Structure:
    """A type that tells an empty element from a nil one, and loses no text."""

    attributes: Any
    _element: Any

    def parse_xmlelement(
        self, xmlelement: etree._Element, schema: Any = None, allow_none: bool = True, *given: Any, **more: Any
    ) -> Any:
        if is_nil(xmlelement):
            return None
        if not isinstance(self._element, zeep.xsd.Element):  # else its content is a text
            texts = [xmlelement.text, *(child.tail for child in xmlelement)]
            found = next((text for text in texts if text and text.strip()), None)
            if found is not None:
                name = etree.QName(xmlelement).localname
                raise EnvelopeError(
                    f"{name} has the text {found.strip()!r:.80} between its elements, and a value cannot hold it.",
                    remedy=f"Its type is mixed. {AS_XML}",
                )
        # With allow_none, zeep reads an element without content and attributes as None.
        if not self.attributes and self._element is None:
            return self()  # type: ignore[operator] # of zeep's class
        return super().parse_xmlelement(xmlelement, schema, False, *given, **more)  # type: ignore[misc]

    def _create_object(self, value: Any, name: str) -> Any:
        # In a list, zeep would take nil as the first field.
        if value is zeep.xsd.Nil or isinstance(value, Member | Typed):
            return value
        return super()._create_object(value, name)  # type: ignore[misc] # of zeep's class


def _name_attributes(kind: Any) -> None:
    """Give each attribute its own field: xml:lang and lang have the same local name."""
    taken = {name for name, _, _ in parts(kind)}
    for at, (name, attribute) in enumerate(kind.attributes):
        own = next(one for number in count() if (one := numbered(name, number)) not in taken)
        taken.add(own)
        kind.attributes[at] = own, attribute


def complete(kinds: Iterable[Any], groups: SubstitutionGroups) -> None:
    """Let zeep's types, and those of their fields, lose nothing: see the classes above, and :mod:`groups`.

    Args:
        kinds: zeep's types, before the first value.
        groups: The elements that may be there instead of others.
    """
    seen: set[int] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if type(kind) is ListType and has_names(kind):
            kind.__class__ = NameList
        if id(kind) in seen or not isinstance(kind, zeep.xsd.ComplexType):
            continue
        seen.add(id(kind))
        replace_groups(kind)
        _name_attributes(kind)
        if not kind._array_type and not isinstance(kind, _Structure):
            kind.__class__ = type(type(kind).__name__, (_Structure, type(kind)), {})
        fields = [*elements(kind), *kind.attributes]  # alternatives of a choice may share a name
        for _, one in fields:
            if type(one) is zeep.xsd.Any and one.restrict is None:
                one.__class__ = OpenElement
            # The text of simple content is no element.
            if type(one) is zeep.xsd.Element and one is not kind._element:
                one.__class__ = Field
            if isinstance(one, Field):
                waiting.extend(member.type for member in groups.complete(one))
            waiting.append(getattr(one, "type", None))
        if "self" in dict(fields) and not isinstance(kind, _WithSelf):
            kind.__class__ = type(type(kind).__name__, (_WithSelf, type(kind)), {})
        named = [one for _, one in kind.attributes if one.name and has_names(one.type)]
        if named and not isinstance(kind, _WithNames):
            kind.__class__ = type(type(kind).__name__, (_WithNames, type(kind)), {})
        for one in named:
            if isinstance(one.type, ListType):
                one.__class__ = NameListAttribute
