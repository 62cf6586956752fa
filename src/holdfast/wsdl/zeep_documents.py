"""The documents of a WSDL in a form that zeep reads completely; libxml2 validates by the original ones.

zeep has no ``xs:redefine``, forgets the namespaces of a wildcard and whether ``xs:all`` is optional, takes the only
alternative of a choice for an optional one, knows ``true`` but not ``1``, takes documents of two directories with the
same relative location for one, gives an included schema without a namespace a wrong one, and ends with an error at a
restriction of a list, and at a header block without ``use``.
"""

from __future__ import annotations

from copy import deepcopy

from lxml import etree

from holdfast.wire.wsdl import WSDL, defined_name, full_name
from holdfast.wsdl.documents import IMPORTS, SCHEMA, Documents, Schema

_LEAVES = f"{{{SCHEMA}}}element", f"{{{SCHEMA}}}any"
_REDEFINE = f"{{{SCHEMA}}}redefine"
_ANNOTATION = f"{{{SCHEMA}}}annotation"
_CONTENT = [f"{{{SCHEMA}}}{word}" for word in ("sequence", "choice", "group")]
_OWNERS = [f"{{{SCHEMA}}}{word}" for word in ("complexType", "extension", "restriction")]
_SIMPLE, _RESTRICTION, _LIST = (f"{{{SCHEMA}}}{word}" for word in ("simpleType", "restriction", "list"))
_ORIGINAL = ".original"
"""End of the name of a definition that another document redefines. No schema in use has such a name."""


class ZeepDocuments:
    """The rewritten documents of a WSDL.

    Args:
        documents: The documents. All are loaded, because a document may redefine those before it.

    Raises:
        ConfigurationError, TransportError: As for :meth:`Documents.load`.
    """

    def __init__(self, documents: Documents) -> None:
        documents.load_all()
        self._documents = documents
        self._namespaces: dict[etree._Element, set[str]] = {}
        """Schema -> its namespace, or those of the schemas that include it without one."""
        self._redefined: set[tuple[str, str, str]] = set()
        """Namespace, kind and name of each definition that a document redefines."""
        self._parts: set[tuple[str, str]] = set()
        """Message and name of each part."""
        self._simple: dict[str, tuple[Schema, etree._Element]] = {}
        """Name of each simple type -> its schema, and itself."""
        self._lists: dict[tuple[str, etree._Element], tuple[Schema, etree._Element] | None] = {}
        """Namespace and simple type -> the list that it is or restricts, with its schema."""
        for _, root in documents.wsdl():
            for message in root.iterfind(f"{{{WSDL}}}message"):
                name = defined_name(message) or ""
                self._parts |= {(name, part.get("name", "")) for part in message.iterfind(f"{{{WSDL}}}part")}
        for schema in documents.schemas():
            self._namespaces.setdefault(schema.root, set()).add(schema.namespace)
            for one in schema.root.iterfind(f"{_SIMPLE}[@name]"):
                self._simple[schema.defined(one.get("name", ""))] = schema, one
            for one in schema.root.iterfind(f"{_REDEFINE}/*[@name]"):
                self._redefined.add((schema.namespace, str(one.tag), one.get("name", "")))

    def load(self, location: str) -> bytes:
        """Return a document, rewritten; errors as for :meth:`Documents.load`."""
        given = self._documents.root(location)
        root = deepcopy(given)
        including = self._including(given)
        for schema in root.iter(f"{{{SCHEMA}}}schema"):
            self._rewrite(location, schema, schema.get("targetNamespace") or including)
        for one in root.iterfind(f"{{{WSDL}}}binding/{{{WSDL}}}operation/*/{{*}}body"):
            if len(one.get("parts", "").split()) == 1:
                one.set("part", one.get("parts", "").strip())  # zeep looks for this attribute, which WSDL does not have
        for one in list(root.iterfind(f"{{{WSDL}}}binding/{{{WSDL}}}operation/*/{{*}}header")):
            for block in one.iter("{*}header", "{*}headerfault"):
                block.set("use", block.get("use", "literal"))  # zeep needs it, and no value goes into a header
            if (full_name(one, one.get("message", "")), one.get("part", "")) not in self._parts:
                one.getparent().remove(one)  # type: ignore[union-attr] # zeep would refuse the whole WSDL
        if including and root.tag == f"{{{SCHEMA}}}schema" and not root.get("targetNamespace"):
            root = _in_namespace(root, including)
        return etree.tostring(root, encoding="utf-8")

    def _including(self, root: etree._Element) -> str:
        """Return the namespace of the schemas that include a schema without one, "" if they have several or none."""
        found = self._namespaces.get(root, set())
        return next(iter(found)) if len(found) == 1 else ""

    def _rewrite(self, location: str, schema: etree._Element, own: str) -> None:
        for one in schema.iterchildren(*IMPORTS):
            place = one.get("schemaLocation")
            if place:
                one.set("schemaLocation", self._documents.beside(location, place))
        for one in schema.iterfind("*[@name]"):
            if (own, str(one.tag), one.get("name")) in self._redefined:
                one.set("name", f"{one.get('name')}{_ORIGINAL}")
        for one in list(schema.iterfind(_REDEFINE)):
            _redefine(one)
        for one in schema.iterfind(f".//{{{SCHEMA}}}all[@minOccurs]"):
            if one.get("minOccurs", "").strip() == "0":  # the schema tells what is missing if a part of it is there
                for element in one.iterchildren(f"{{{SCHEMA}}}element"):
                    element.set("minOccurs", "0")
        for one in list(schema.iter(_CONTENT[1])):
            if len([part for part in one.iterchildren(f"{{{SCHEMA}}}*") if part.tag != _ANNOTATION]) == 1:
                one.tag = _CONTENT[0]  # nothing to choose, and zeep would take the alternative for an optional one
                continue
            # zeep forgets minOccurs of such an element. (a?|b) takes the same bodies as (a|b)?.
            if any(part.get("minOccurs", "").strip() == "0" for part in one.iterchildren(*_LEAVES)):
                one.set("minOccurs", "0")
        for one in list(schema.iter(_RESTRICTION)):
            self._unrestrict(Schema(location, own, schema), one)
        for one in schema.iter(f"{{{SCHEMA}}}any"):
            allowed = " ".join(one.get("namespace", "##any").split())
            one.set("processContents", f"{one.get('processContents', 'strict').strip()} {own} {allowed}")
        for one in list(schema.iter(*_CONTENT)):
            _wrap(one)
        for one in schema.iter(f"{{{SCHEMA}}}element"):
            if one.get("nillable", "").strip() in ("1", "true"):
                one.set("nillable", "true")

    def _unrestrict(self, schema: Schema, restriction: etree._Element) -> None:
        """Replace the restriction of a list by a list of the same items."""
        kind = restriction.getparent()
        if kind is None or kind.tag != _SIMPLE:
            return
        found = self._list_of(schema, kind)
        if found is None:
            return
        owner, listed = found
        items = listed.get("itemType")
        name = etree.QName(owner.named(listed, items)) if items else None
        if name is not None and name.namespace:
            made = etree.Element(_LIST, nsmap={"items": name.namespace})
        else:
            made = deepcopy(listed)
        kind.replace(restriction, made)
        if name is not None:  # the schema around it may have another prefix for the namespace, which then counts
            prefix = next((one for one, uri in made.nsmap.items() if one and uri == name.namespace), "")
            made.set("itemType", f"{prefix}:{name.localname}" if prefix else name.localname)

    def _list_of(self, schema: Schema, kind: etree._Element) -> tuple[Schema, etree._Element] | None:
        """Return the list that a simple type is, or restricts, with its schema; None if it does not."""
        passed: list[tuple[str, etree._Element]] = []
        found: tuple[Schema, etree._Element] | None = None
        used: etree._Element | None = kind
        while used is not None and found is None:
            key = schema.namespace, used
            if key in self._lists:
                found = self._lists[key]
                break
            self._lists[key] = None  # of a circle, too
            passed.append(key)
            listed, inner = used.find(_LIST), used.find(_RESTRICTION)
            if listed is not None:
                found = schema, listed
            elif inner is None:
                break
            elif (base := inner.get("base")) is None:
                used = inner.find(_SIMPLE)
            else:
                schema, used = self._simple.get(schema.named(inner, base), (schema, None))
        self._lists.update(dict.fromkeys(passed, found))
        return found


def _wrap(group: etree._Element) -> None:
    """Put a group that occurs another number of times than once into a sequence: zeep forgets it in an extension."""
    parent = group.getparent()
    is_once = group.get("minOccurs", "1").strip() == group.get("maxOccurs", "1").strip() == "1"
    if parent is None or parent.tag not in _OWNERS or (is_once and group.tag != _CONTENT[2]):
        return
    outer = etree.Element(_CONTENT[0])
    parent.replace(group, outer)
    outer.append(group)


def _in_namespace(root: etree._Element, namespace: str) -> etree._Element:
    made = etree.Element(root.tag, {**root.attrib, "targetNamespace": namespace}, nsmap={**root.nsmap, None: namespace})
    made.extend(list(root))
    return made


def _redefine(one: etree._Element) -> None:
    """Replace ``xs:redefine`` by ``xs:include`` and new definitions, which are based on the renamed ones."""
    parent = one.getparent()
    assert parent is not None
    for definition in list(one.iterfind("*[@name]")):
        name = definition.get("name", "")
        for user in definition.iter(f"{{{SCHEMA}}}*"):
            for attribute in ("base", "ref"):
                used = user.get(attribute, "")
                if used.rpartition(":")[2] == name:
                    user.set(attribute, f"{used}{_ORIGINAL}")
        parent.append(definition)
    one.tag = f"{{{SCHEMA}}}include"
