"""Elements of structures that lose nothing: which element it was, which type it had, and whether it was nil or absent.

zeep's own elements read only their declared name, drop the type of a simple value, and read nil as absent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import zeep.xsd
from lxml import etree
from zeep.exceptions import LookupError as UnknownName
from zeep.exceptions import NamespaceError
from zeep.utils import qname_attr
from zeep.xsd.const import Nil
from zeep.xsd.types.any import AnyType
from zeep.xsd.utils import max_occurs_iter
from zeep.xsd.valueobjects import AnyObject, ArrayValue, CompoundValue

from holdfast.exceptions import EnvelopeError

_INSTANCE = "{http://www.w3.org/2001/XMLSchema-instance}"
NIL, XSI_TYPE = f"{_INSTANCE}nil", f"{_INSTANCE}type"
_OF_INSTANCE = {NIL, XSI_TYPE, f"{_INSTANCE}schemaLocation", f"{_INSTANCE}noNamespaceSchemaLocation"}
AS_XML = "Receive the message as XML, with @app.on(action)."
ELEMENT = "@element"
"""Key of a value with the name of its element, if that is not the field's. XML has no such name."""
TYPE = "@type"
"""Key of a value with the name of its type, if that is derived from the declared one. XML has no such name."""
IS_NIL = "@nil"
"""Key of a value that is nil: {"@nil": true}. zeep's value of a nil structure with attributes has it too."""


@dataclass(frozen=True)
class Member:
    """A value of another element than the one that the type names: of a substitution group, or of a wildcard."""

    element: Any
    value: Any


@dataclass(frozen=True)
class Typed:
    """A simple value of another type than the declared one.

    Attributes:
        kind: zeep's type.
        name: Its name.
        value: The value.
    """

    kind: Any
    name: str
    value: Any


class Structure(dict[str, Any]):
    """The fields of a structure of a body in which some are nil. These are None, as absent ones are.

    Args:
        fields: The fields.
        nil: The names of the nil fields. A field that is still None is written as nil again.
    """

    def __init__(self, fields: Mapping[str, Any], nil: Iterable[str]) -> None:
        super().__init__(fields)
        self.nil = frozenset(nil)


def nil_fields(value: Any) -> frozenset[str]:
    """Return the names of the fields of a structure that are nil, not absent."""
    return value.nil if isinstance(value, Structure) else frozenset()


def with_nil(fields: dict[str, Any], nil: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a structure, of which some are nil. Without such ones it is a plain dict."""
    return Structure(fields, nil) if nil else fields


def is_nil(element: etree._Element) -> bool:
    """Whether an element is nil and has no attributes that a value must keep."""
    return _says_nil(element) and not set(element.attrib) - _OF_INSTANCE


def drop_defaults(element: etree._Element) -> None:
    """Remove the attributes that the schema has added to a nil element that had none."""
    for name in set(element.attrib) - _OF_INSTANCE:
        del element.attrib[name]


def _says_nil(element: etree._Element) -> bool:
    return element.get(NIL, "").strip() in ("true", "1")


class Field(zeep.xsd.Element):
    """An element in a type.

    Attributes:
        members: The elements that may be there instead of it (its substitution group).
        is_abstract: Whether only its members may be there.
        is_rpc: Whether it is the element of a body in RPC style.
    """

    members: tuple[Any, ...] = ()
    is_abstract = False
    is_rpc = False

    def is_named(self, value: object) -> bool:
        """Whether a value names an element of the group, as the element of a body: its only field may do so, too."""
        if not self.members or not isinstance(value, Mapping):
            return False
        return any(value.get(ELEMENT) in (one.qname.text, one.name) for one in (self, *self.members))

    def named(self, found: etree._Element) -> Any:
        """Return the declaration of an element that belongs to this field, None if it does not."""
        name = etree.QName(found)
        for one in self.members:
            if one.qname.text == name.text:
                return one
        # As zeep compares: some services write local elements with a namespace, or without one.
        is_known = bool(name.namespace and self.qname.namespace)
        is_own = name.localname == self.qname.localname and (not is_known or name.namespace == self.qname.namespace)
        return self if is_own else None

    def parse_xmlelements(
        self, xmlelements: deque[etree._Element], schema: Any, name: str | None = None, context: Any = None
    ) -> Any:
        """Take the elements that belong to this field; return their values."""
        found = []
        for _ in max_occurs_iter(self.max_occurs):
            declared = self.named(xmlelements[0]) if xmlelements else None
            if declared is None:
                break
            value = declared.parse(xmlelements.popleft(), schema, allow_none=True, context=context)
            found.append(value if declared is self else Member(declared, value))
        if self.accepts_multiple:
            return found
        return found[0] if found else None

    def parse(self, xmlelement: etree._Element, schema: Any, allow_none: bool = False, context: Any = None) -> Any:
        """Return the value of an element."""
        if is_nil(xmlelement):
            return Nil
        has_nil = _says_nil(xmlelement)
        xmlelement.attrib.pop(NIL, None)  # zeep takes it for an attribute of an xs:anyAttribute
        named = qname_attr(xmlelement, XSI_TYPE)
        if named is None and type(self.type) is AnyType:
            return _open_content(xmlelement)
        value = super().parse(xmlelement, schema, allow_none, context)
        if has_nil and isinstance(value, CompoundValue):
            value[IS_NIL] = True
        if named is None or isinstance(value, CompoundValue | ArrayValue | AnyObject) or value is None:
            return value
        kind = schema.get_type(named)
        return value if kind is self.type else Typed(kind, str(named.text), value)

    def _render_value_item(self, parent: etree._Element, value: Any, render_path: Any) -> None:
        if isinstance(value, Member):
            value.element._render_value_item(parent, value.value, render_path)
        elif isinstance(value, Typed):
            node = etree.SubElement(parent, self.qname)
            value.kind.render(node, value.value, None, render_path)
            node.set(XSI_TYPE, etree.QName(value.name))
        elif isinstance(value, CompoundValue) and IS_NIL in value:
            node = etree.SubElement(parent, self.qname, {NIL: "true"})
            for name, attribute in value._xsd_type.attributes:
                attribute.render(node, value[name], [*render_path, name])
            if value._xsd_type is not self.type:
                node.set(XSI_TYPE, value._xsd_type.qname)
        elif isinstance(value, list) and type(self.type) is AnyType:
            etree.SubElement(parent, self.qname).extend(deepcopy(value))
        else:
            super()._render_value_item(parent, value, render_path)

    def _validate_item(self, value: Any, render_path: Any) -> None:
        if not isinstance(value, Member | Typed):
            super()._validate_item(value, render_path)


def _open_content(element: etree._Element) -> Any:
    """Return the content of an element of the type xs:anyType: its text, or its elements."""
    texts = [element.text, *(child.tail for child in element)]
    is_mixed = len(element) and any(text and text.strip() for text in texts)
    if is_mixed or set(element.attrib) - _OF_INSTANCE:
        what = "text between its elements" if is_mixed else "attributes"
        raise EnvelopeError(
            f"{etree.QName(element).localname} has {what}, and a value of the type xs:anyType cannot hold them.",
            remedy=AS_XML,
        )
    return list(element) or element.text or ""


class OpenElement(zeep.xsd.Any):
    """A wildcard (``xs:any``). A declared element is a :class:`Member`, another one stays as it is."""

    def admits(self, found: etree._Element) -> bool:
        """Whether the element may be there, by its namespace."""
        _, _, words = self.process_contents.partition(" ")
        own, _, allowed = words.partition(" ")
        namespace = etree.QName(found).namespace or ""
        if allowed in ("", "##any"):
            return True
        if allowed == "##other":
            return namespace not in ("", own)
        names = {"##targetNamespace": own, "##local": ""}
        return namespace in [names.get(one, one) for one in allowed.split()]

    def parse_xmlelements(
        self, xmlelements: deque[etree._Element], schema: Any, name: str | None = None, context: Any = None
    ) -> Any:
        """Take the elements that may be there; return them."""
        found = []
        for _ in max_occurs_iter(self.max_occurs):
            if not xmlelements or not self.admits(xmlelements[0]):
                break
            found.append(self.parse(xmlelements.popleft(), schema, context))
        if self.accepts_multiple:
            return found
        return found[0] if found else None

    def parse(self, xmlelement: etree._Element, schema: Any, context: Any = None) -> Any:
        """Return the value of one element."""
        if self.process_contents.split()[0] != "skip":
            try:
                declared = as_field(schema.get_element(xmlelement.tag))
                return Member(declared, declared.parse(xmlelement, schema, allow_none=True, context=context))
            except (NamespaceError, UnknownName):
                pass
        return xmlelement

    def _render_value_item(self, parent: etree._Element, value: Any, render_path: Any) -> None:
        if isinstance(value, Member):
            value.element._render_value_item(parent, value.value, render_path)
        elif isinstance(value, etree._Element):
            own = deepcopy(value)
            own.tail = None
            parent.append(own)
        else:
            super()._render_value_item(parent, value, render_path)

    def validate(self, value: Any, render_path: Any) -> None:
        """Check the number of elements: zeep names a wrong one."""
        if isinstance(value, list) and isinstance(self.max_occurs, int) and len(value) > self.max_occurs:
            raise EnvelopeError(f"{render_path[-1]} takes at most {self.max_occurs} elements, not {len(value)}.")
        super().validate(value, render_path)

    def _validate_item(self, value: Any, render_path: Any) -> None:
        if not isinstance(value, Member):
            super()._validate_item(value, render_path)


def as_field(element: Any) -> Any:
    """Return a copy of a global element of zeep's, as a field."""
    made = element.clone(element.qname)
    made.__class__ = Field
    return made
