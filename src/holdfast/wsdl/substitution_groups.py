"""Which elements of a WSDL may be there instead of others: substitution groups (XML Schema 1.0 part 1, 3.3.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lxml import etree
from zeep.exceptions import LookupError as UnknownName
from zeep.exceptions import NamespaceError

from holdfast.exceptions import EnvelopeError
from holdfast.settings import suggestion
from holdfast.wsdl.documents import SCHEMA, Documents
from holdfast.wsdl.fields import ELEMENT, Field, as_field


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
        for schema in documents.schemas():
            for one in schema.root.iterfind(f"{{{SCHEMA}}}element"):
                name = schema.defined(one.get("name", ""))
                if one.get("abstract", "").strip() in ("true", "1"):
                    self._abstract.add(name)
                for head in one.get("substitutionGroup", "").split():
                    self._members.setdefault(schema.named(one, head), []).append(name)
                    self._inherit_type(name, schema.named(one, head), one)

    def _inherit_type(self, name: str, head: str, element: etree._Element) -> None:
        """Give an element without a type that of its head."""
        if element.get("type") is None and not len(
            element.findall("{*}complexType") + element.findall("{*}simpleType")
        ):
            self._types.get_element(name).type = self._types.get_element(head).type

    def complete(self, field: Any) -> list[Any]:
        """Give an element of a type its substitution group, and return the new declarations in that."""
        if not field.is_global or "members" in field.__dict__:
            return []
        name = str(field.qname.text)
        field.members = tuple(self._field(one) for one in self._all(name) if one not in self._abstract)
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
        if name not in self._fields:
            self._fields[name] = as_field(self._types.get_element(name))
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
            try:
                return self._field(text)
            except (NamespaceError, UnknownName, ValueError):
                raise EnvelopeError(
                    f"{where}.{ELEMENT}: the WSDL has no element {text!r}.",
                    remedy='Write its name as "{namespace}name". An element that the WSDL lacks is given as XML.',
                ) from None
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
