"""What a value may be instead of what its field declares: of a derived type (``@type``), or another element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lxml import etree
from zeep.exceptions import LookupError as UnknownName
from zeep.exceptions import NamespaceError
from zeep.xsd.types import builtins
from zeep.xsd.types.any import AnyType

from holdfast.exceptions import EnvelopeError
from holdfast.settings import suggestion
from holdfast.wsdl.documents import SCHEMA, Documents, Schema
from holdfast.wsdl.fields import ELEMENT, TYPE, Field, as_field

_KINDS = f"{{{SCHEMA}}}complexType", f"{{{SCHEMA}}}simpleType"
_ANY, _ANY_SIMPLE = f"{{{SCHEMA}}}anyType", f"{{{SCHEMA}}}anySimpleType"


class DerivedTypes:
    """The named types of a WSDL, and those of XML Schema.

    Args:
        documents: The documents of the WSDL.
        types: zeep's schema.
    """

    def __init__(self, documents: Documents, types: Any) -> None:
        self._types = types
        self._bases: dict[str, str] = {}
        """Name of a type -> its base."""
        self._abstract: set[str] = set()
        self._found: dict[str, list[str]] = {}
        """Name of a type -> the types that a value may have instead."""
        for schema in documents.schemas():
            for kind in schema.root.iterchildren(*_KINDS):
                self._add(schema, kind)
        for name, one in builtins.default_types.items():
            self._bases.setdefault(str(name.text), _base_of_builtin(one))

    def _add(self, schema: Schema, kind: etree._Element) -> None:
        name = schema.defined(kind.get("name", ""))
        if kind.get("abstract", "").strip() in ("true", "1"):
            self._abstract.add(name)
        content = f"{{{SCHEMA}}}complexContent", f"{{{SCHEMA}}}simpleContent"
        derivation = f"{{{SCHEMA}}}extension", f"{{{SCHEMA}}}restriction"
        is_simple = kind.tag != _KINDS[0]
        self._bases[name] = _ANY_SIMPLE if is_simple else _ANY
        outer = [kind] if is_simple else kind.iterchildren(*content)
        for one in (inner for each in outer for inner in each.iterchildren(*derivation)):
            if one.get("base"):
                self._bases[name] = schema.named(one, one.get("base", ""))

    def _usable(self, declared: Any) -> list[str]:
        """Return the names of the types that a value may have instead of a declared type."""
        is_any = type(declared) is AnyType
        return self._usable_of(_ANY if is_any else str(declared.qname.text) if declared.is_global else "")

    def _usable_of(self, wanted: str) -> list[str]:
        if wanted not in self._found:
            candidates = [name for name in self._bases if name not in (*self._abstract, _ANY, _ANY_SIMPLE)]
            self._found[wanted] = [name for name in candidates if wanted == _ANY or wanted in set(self._chain(name))]
        return self._found[wanted]

    def derived(self, declared: Any) -> list[Any]:
        """Return zeep's types that a structure may have instead of its declared type, without that."""
        own = str(declared.qname.text) if declared.qname is not None else ""
        return [self._types.get_type(name) for name in self._usable(declared) if name != own]

    def is_abstract(self, declared: Any) -> bool:
        return bool(declared.is_global and declared.qname.text in self._abstract)

    def _chain(self, name: str) -> Iterator[str]:
        seen: set[str] = set()
        while name in self._bases and name not in seen:
            seen.add(name)
            yield name
            name = self._bases[name]

    def check_concrete(self, declared: Any, where: str) -> None:
        """Check that a value without ``@type`` may have the declared type.

        Raises:
            EnvelopeError: The type is abstract.
        """
        if self.is_abstract(declared):
            usable = ", ".join(self._usable(declared))
            raise EnvelopeError(
                f"{where or 'the value'} has the abstract type {declared.qname.localname}, so its own type is needed.",
                remedy=f"Add the key {TYPE!r} with one of its derived types: {usable or 'the WSDL has none'}.",
            )

    def find(self, declared: Any, name: object, where: str) -> tuple[Any, str]:
        """Return zeep's type with a name, and the name in full.

        Args:
            declared: The declared type.
            name: ``{namespace}local``, or the local name alone if only one of the possible types has it. A type of the
                WSDL precedes one of XML Schema, which has the prefix ``xs:``.
            where: The name of the value's field.

        Raises:
            EnvelopeError: No type with that name may be used there, or several.
        """
        usable = self._usable(declared)
        text = str(name.text) if isinstance(name, etree.QName) else str(name)
        if text.startswith(("xs:", "xsd:")):
            text = f"{{{SCHEMA}}}{text.partition(':')[2]}"
        found = [one for one in usable if text in (one, etree.QName(one).localname)]
        found = [one for one in found if etree.QName(one).namespace != SCHEMA] or found
        if text in found or len(found) == 1:
            full = text if text in found else found[0]
            return self._types.get_type(full), full
        place = f"{where}.{TYPE}" if where else TYPE
        if found:
            several = f"{place}: {text!r} is the name of several types."
            raise EnvelopeError(several, remedy=f"Give one of: {', '.join(found)}.")
        near = [*(str(etree.QName(one).localname) for one in usable), *usable]
        hint = f"Its types are: {', '.join(one for one in usable if SCHEMA not in one) or 'none'}."
        raise EnvelopeError(f"{place}: {text!r} is no type of this value.", remedy=suggestion(text, near, hint))


def _base_of_builtin(kind: Any) -> str:
    """Return the name of the type that a type of XML Schema is derived from (XML Schema 1.0 part 2, section 3)."""
    for one in type(kind).__mro__[1:]:
        name = one.__dict__.get("_default_qname")
        if name is not None and name.text != kind.qname.text:
            return str(name.text)
    return _ANY


def type_name(value: Any, declared: Any) -> str | None:
    """Return the name of the type of zeep's value if it is not the declared one, None if it is.

    Args:
        value: The value.
        declared: The declared type; None if the schema leaves it open.
    """
    own = getattr(value, "_xsd_type", None)
    if own is None or declared is None or not own.is_global or own is declared:
        return None
    return str(own.qname.text)


# --- substitution groups (XML Schema 1.0 part 1, 3.3.6) ---------------------------------------------------------------


class SubstitutionGroups:
    """The global elements of a WSDL.

    Args:
        documents: The documents of the WSDL.
        types: zeep's schema.
    """

    def __init__(self, documents: Documents, types: Any) -> None:
        self._types = types
        self._abstract: set[str] = set()
        self._members: dict[str, list[str]] = {}
        """Name of a head -> those of the elements that name it."""
        self._fields: dict[str, Any] = {}
        untyped: dict[str, str] = {}
        """Name of an element without a type -> its head, which has that type."""
        for schema in documents.schemas():
            for one in schema.root.iterfind(f"{{{SCHEMA}}}element"):
                name = schema.defined(one.get("name", ""))
                if one.get("abstract", "").strip() in ("true", "1"):
                    self._abstract.add(name)
                for head in one.get("substitutionGroup", "").split():
                    self._members.setdefault(schema.named(one, head), []).append(name)
                    if one.get("type") is None and next(one.iterchildren(*_KINDS), None) is None:
                        untyped[name] = schema.named(one, head)
        for name in untyped:
            head, seen = untyped[name], {name}
            while head in untyped and head not in seen:
                seen.add(head)
                head = untyped[head]
            found, typed = self._find(name), self._find(head)
            if found is not None and typed is not None:  # else the compiler of the schema says what is wrong
                found.type = typed.type

    def _find(self, name: str) -> Any:
        """Return zeep's element with a name, None if there is none."""
        try:
            return self._types.get_element(name)
        except (NamespaceError, UnknownName, ValueError):
            return None

    def complete(self, field: Any) -> list[Any]:
        """Give an element of a type its substitution group, and return the new declarations in that."""
        if not field.is_global or "members" in field.__dict__:
            return []
        name = str(field.qname.text)
        found = [self._field(one) for one in self._all(name) if one not in self._abstract]
        field.members = tuple(one for one in found if one is not None)
        field.is_abstract = name in self._abstract
        return list(field.members)

    def _all(self, head: str) -> list[str]:
        found: dict[str, None] = {}
        waiting = [head]
        while waiting:
            for one in self._members.get(waiting.pop(), ()):
                if one not in found and one != head:
                    found[one] = None
                    waiting.append(one)
        return list(found)

    def _field(self, name: str) -> Any:
        """Return an element as a field, None if there is none."""
        if name not in self._fields:
            found = self._find(name)
            self._fields[name] = None if found is None else as_field(found)
        return self._fields[name]

    def member(self, field: Any, value: Mapping[str, Any], where: str) -> Any:
        """Return the element of a value.

        Args:
            field: The field, or the wildcard.
            value: The value, with the key ``@element``.
            where: The name of the field.

        Raises:
            EnvelopeError: No such element may be there.
        """
        text = str(value[ELEMENT])
        if not isinstance(field, Field):
            declared = self._field(text)
            if declared is not None:
                return declared
            raise EnvelopeError(
                f"{where}.{ELEMENT}: the WSDL has no element {text!r}.",
                remedy='Write its name as "{namespace}name". An element that the WSDL lacks is given as XML.',
            )
        usable = {str(one.qname.text): one for one in (*([] if field.is_abstract else [field]), *field.members)}
        found = [name for name in usable if text in (name, etree.QName(name).localname)]
        if text in usable or len(found) == 1:
            return usable[text if text in usable else found[0]]
        if found:
            several = f"{where}.{ELEMENT}: {text!r} is the name of several elements."
            raise EnvelopeError(several, remedy=f"Give one of: {', '.join(found)}.")
        near = [*(str(etree.QName(one).localname) for one in usable), *usable]
        hint = f"Its elements are: {', '.join(usable) or 'none'}."
        raise EnvelopeError(
            f"{where}.{ELEMENT}: {text!r} is no element of this field.", remedy=suggestion(text, near, hint)
        )


def check_concrete(field: Any, where: str) -> None:
    """Check that a value without ``@element`` may be there.

    Raises:
        EnvelopeError: The element is abstract.
    """
    if isinstance(field, Field) and field.is_abstract:
        usable = ", ".join(str(one.qname.text) for one in field.members)
        raise EnvelopeError(
            f"{where} is an abstract element, so the name of the element is needed.",
            remedy=f"Add the key {ELEMENT!r} with one of: {usable or 'the WSDL has none'}.",
        )


@dataclass(frozen=True)
class Substitutes:
    """What a value may be instead of what is declared: of another type, or another element."""

    types: DerivedTypes
    elements: SubstitutionGroups
