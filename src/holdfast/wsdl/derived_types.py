"""Which named types of a WSDL derive from which, and the type that a value names with ``@type`` (``xsi:type``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lxml import etree
from zeep.xsd.types.any import AnyType

from holdfast.exceptions import EnvelopeError
from holdfast.settings import suggestion
from holdfast.wire.wsdl import full_name
from holdfast.wsdl.documents import SCHEMA, Documents

TYPE = "@type"
"""Key of a structure with the name of its type, if that is derived from the declared one. XML has no such name."""
_COMPLEX = f"{{{SCHEMA}}}complexType"


class DerivedTypes:
    """The named complex types of a WSDL.

    Args:
        documents: The documents of the WSDL.
        types: zeep's schema.
    """

    def __init__(self, documents: Documents, types: Any) -> None:
        self._types = types
        self._bases: dict[str, str] = {}
        """Name of a type -> its base."""
        self._abstract: set[str] = set()
        for _, schema in documents.schemas():
            for kind in schema.iterfind(_COMPLEX):
                self._add(etree.QName(schema.get("targetNamespace") or None, kind.get("name", "")).text, kind)

    def _add(self, name: str, kind: etree._Element) -> None:
        if kind.get("abstract", "").strip() in ("true", "1"):
            self._abstract.add(name)
        content = f"{{{SCHEMA}}}complexContent", f"{{{SCHEMA}}}simpleContent"
        derivation = f"{{{SCHEMA}}}extension", f"{{{SCHEMA}}}restriction"
        self._bases[name] = f"{{{SCHEMA}}}anyType"
        for one in (inner for outer in kind.iterchildren(*content) for inner in outer.iterchildren(*derivation)):
            self._bases[name] = full_name(one, one.get("base", ""))

    def _usable(self, declared: Any) -> list[str]:
        """Return the names of the types that a value may have instead of a declared type."""
        is_any = type(declared) is AnyType
        wanted = str(declared.qname.text) if declared.is_global and not is_any else ""
        return [
            name for name in self._bases if name not in self._abstract and (is_any or wanted in set(self._chain(name)))
        ]

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
        if declared.is_global and declared.qname.text in self._abstract:
            usable = ", ".join(self._usable(declared))
            raise EnvelopeError(
                f"{where or 'the value'} has the abstract type {declared.qname.localname}, so its own type is needed.",
                remedy=f"Add the key {TYPE!r} with one of its derived types: {usable or 'the WSDL has none'}.",
            )

    def find(self, declared: Any, name: object, where: str) -> Any:
        """Return zeep's type with a name.

        Args:
            declared: The declared type.
            name: ``{namespace}local``, or the local name alone if only one of the possible types has it.
            where: The name of the value's field.

        Raises:
            EnvelopeError: No type with that name may be used there, or several.
        """
        usable = self._usable(declared)
        text = str(name.text) if isinstance(name, etree.QName) else str(name)
        found = [one for one in usable if text in (one, etree.QName(one).localname)]
        if text in found or len(found) == 1:
            return self._types.get_type(text if text in found else found[0])
        place = f"{where}.{TYPE}" if where else TYPE
        if found:
            several = f"{place}: {text!r} is the name of several types."
            raise EnvelopeError(several, remedy=f"Give one of: {', '.join(found)}.")
        near = [*(str(etree.QName(one).localname) for one in usable), *usable]
        hint = f"Its types are: {', '.join(usable) or 'none'}."
        raise EnvelopeError(f"{place}: {text!r} is no type of this value.", remedy=suggestion(text, near, hint))


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
