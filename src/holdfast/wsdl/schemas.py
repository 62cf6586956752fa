"""The XML schema of a WSDL's bodies: all its schema documents as one, compiled by libxml2.

libxml2 loads one document for each namespace, but a WSDL may have several, often inline. Each namespace therefore gets
a document that includes the others, and every location is rewritten to a name that only this module resolves.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from lxml import etree

from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.wire.wsdl import WSDL, full_name
from holdfast.wsdl.documents import SCHEMA, USES, XML_NAMESPACE, Documents

LONGEST_REASON = 500
"""Maximum length of a reason, which may quote a value of the body."""

_NAMESPACES = re.compile(r"\{[^{}\s']*\}(?=[\w*])")
"""Namespaces before names in libxml2's messages; a set of values, such as {'EUR', 'USD'}, is not one."""


_RPC = "holdfast.rpc"
"""The element around a body in RPC style: no schema declares the body itself, and one may declare another element with
its name."""
_LINE = re.compile(r"(?<=\.), line \d+$")
"""A line of a schema that this module wrote."""


class BodySchema:
    """The compiled schema of a WSDL.

    Args:
        documents: The documents of the WSDL.
        further: Schema documents to add: for bodies that the WSDL's own schemas do not declare.

    Raises:
        ConfigurationError: libxml2 cannot compile the schema.
    """

    def __init__(self, documents: Documents, further: list[etree._Element] | None = None) -> None:
        collected = _Collected(documents)
        for root in further or ():
            collected.add_inline(documents.first, root)
        self._schema = collected.compile()
        self._lock = threading.Lock()  # the error log belongs to the schema

    def check(self, element: etree._Element, *, is_rpc: bool = False) -> None:
        """Validate a body, and add the default values that it leaves out.

        Args:
            element: The body's element.
            is_rpc: Whether it is a body in RPC style.

        Raises:
            EnvelopeError: the body is not valid; the message names the element and the reason.
        """
        if not is_rpc:
            self._check(element)
            return
        around = etree.Element(etree.QName(etree.QName(element).namespace, _RPC))
        around.append(element)
        try:
            self._check(around)
        finally:
            around.remove(element)

    def _check(self, element: etree._Element) -> None:
        with self._lock:
            if self._schema.validate(element):
                return
            if _strip_refused(element, self._schema.error_log) and self._schema.validate(element):
                return
            reasons = [_NAMESPACES.sub("", entry.message) for entry in self._schema.error_log]
        reason = reasons[0] if reasons else f"{etree.QName(element).localname} is not valid"
        raise EnvelopeError(reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}…")


def _strip_refused(element: etree._Element, errors: Any) -> bool:
    """Strip the texts that libxml2 refuses: it allows no white space around dates and times, unlike XML Schema."""
    starts = {entry.message.partition(" is not a valid value")[0] for entry in errors}
    leaves = [(one, one.text) for one in element.iter(etree.Element) if not len(one) and one.text]
    texts = [
        (one, text) for one, text in leaves if text.strip() != text and f"Element '{one.tag!s}': '{text}'" in starts
    ]
    for one, text in texts:
        one.text = text.strip()
    attributes = [
        (one, name, text)
        for one in element.iter(etree.Element)
        for name, text in one.items()
        if text.strip() != text and f"Element '{one.tag!s}', attribute '{name!s}': '{text}'" in starts
    ]
    for one, name, text in attributes:
        one.set(name, text.strip())
    return bool(texts or attributes)


class _Collected(etree.Resolver):
    """Every schema document under a unique name, and one document for each namespace."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._units: dict[str, bytes] = {}
        self._of_namespace: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}
        """Location -> name of its unit."""
        self._places: dict[str, str] = {}
        """Name of a unit -> the location of its document."""
        self._defined: dict[tuple[str, str, str], list[object]] = {}
        """Namespace, kind and name of a definition -> its first form, as of :func:`_words`."""
        for location, root in documents.wsdl():
            for types in root.iterfind(f"{{{WSDL}}}types"):
                for schema in types.iterfind(f"{{{SCHEMA}}}schema"):
                    self.add_inline(location, schema)
            for one in root.iterfind(f"{{{WSDL}}}import"):
                self._add_imported_schema(location, one)

    def resolve(self, system_url: str | None, public_id: str | None, context: Any) -> Any:
        """Return the content for a name, for libxml2; nothing else is ever loaded."""
        return self.resolve_string(self._units.get(system_url or "", b""), context, base_url=system_url)

    def add_inline(self, location: str, schema: etree._Element) -> None:
        self._add(f"holdfast:/unit{len(self._units)}.xsd", location, schema, is_included=False)

    def compile(self) -> etree.XMLSchema:
        root = etree.Element(f"{{{SCHEMA}}}schema", {"targetNamespace": "urn:holdfast:root"}, nsmap={"xs": SCHEMA})
        for namespace, units in self._of_namespace.items():
            name = _namespace_name(list(self._of_namespace).index(namespace))
            all_of = etree.Element(f"{{{SCHEMA}}}schema", nsmap={"xs": SCHEMA})
            imported = etree.SubElement(root, f"{{{SCHEMA}}}import", {"schemaLocation": name})
            if namespace:
                all_of.set("targetNamespace", namespace)
                imported.set("namespace", namespace)
            for unit in units:
                etree.SubElement(all_of, f"{{{SCHEMA}}}include", {"schemaLocation": unit})
            self._units[name] = etree.tostring(all_of, encoding="utf-8")
        # Without a default here, lxml assumes that the schema has none to add to a body.
        etree.SubElement(root, f"{{{SCHEMA}}}attribute", {"name": "none", "default": ""})
        self._complete_imports()
        parser = etree.XMLParser(no_network=True, resolve_entities=False)
        parser.resolvers.add(self)
        document = etree.fromstring(etree.tostring(root, encoding="utf-8"), parser, base_url="holdfast:/root.xsd")
        try:
            return etree.XMLSchema(document, attribute_defaults=True)
        except etree.XMLSchemaParseError as error:
            reason = _LINE.sub("", _NAMESPACES.sub("", str(error)))
            for name, location in self._places.items():
                reason = reason.replace(name, location)
            unit = next((self._places[one.filename] for one in error.error_log if one.filename in self._places), "")
            place = "" if unit in ("", self._documents.first) else f" in {unit}"
            raise ConfigurationError(
                f"The schema of the WSDL {self._documents.first} cannot be compiled{place}: {reason}",
                remedy="Correct the schema, or ask its owner to do so.",
            ) from None

    def _add_imported_schema(self, location: str, element: etree._Element) -> None:
        if element.get("location"):
            found = self._documents.beside(location, element.get("location", ""))
            if self._documents.root(found).tag == f"{{{SCHEMA}}}schema":
                self._unit(found, is_included=False)

    def _unit(self, location: str, *, is_included: bool) -> str:
        """Return the name of the schema document at a location, and add it if it is new."""
        name = self._names.get(location)
        if name is None:
            name = self._names[location] = f"holdfast:/unit{len(self._units)}.xsd"
            self._add(name, location, self._documents.root(location), is_included=is_included)
        elif not is_included:
            self._list(self._documents.root(location), name)
        return name

    def _add(self, name: str, location: str, schema: etree._Element, *, is_included: bool) -> None:
        self._places[name] = location
        self._units[name] = b""  # the name is taken, also if the document includes itself
        if not is_included:
            self._list(schema, name)
        # With the prefixes that the WSDL around an inline schema declares: names in attributes may use them.
        root = etree.fromstring(etree.tostring(schema, with_tail=False, encoding="utf-8"))
        self._drop_repeated(root)
        for one in _locations(root):
            word, place = etree.QName(one).localname, one.get("schemaLocation")
            if word == "import":
                if one.get("namespace") == XML_NAMESPACE:
                    self._unit(XML_NAMESPACE, is_included=False)
                elif place:
                    self._unit(self._documents.beside(location, place), is_included=False)
                one.attrib.pop("schemaLocation", None)
            elif place:
                one.set("schemaLocation", self._unit(self._documents.beside(location, place), is_included=True))
        self._units[name] = etree.tostring(root, encoding="utf-8")

    def _drop_repeated(self, schema: etree._Element) -> None:
        """Remove the definitions that an earlier document has in the same words: some servers repeat them."""
        namespace = schema.get("targetNamespace")
        for one in schema.findall("*[@name]") if namespace else ():
            key, words = (namespace or "", str(one.tag), one.get("name", "")), list(_words(one))
            if self._defined.setdefault(key, words) is not words and self._defined[key] == words:
                schema.remove(one)

    def _list(self, schema: etree._Element, name: str) -> None:
        units = self._of_namespace.setdefault(schema.get("targetNamespace", ""), [])
        if name not in units:
            units.append(name)

    def _complete_imports(self) -> None:
        namespaces = list(self._of_namespace)
        for name, data in self._units.items():
            root = etree.fromstring(data)
            for namespace in sorted(_used(root) & set(namespaces)):
                root.insert(0, etree.Element(f"{{{SCHEMA}}}import", {"namespace": namespace}))
            for one in _locations(root):
                namespace = one.get("namespace", "")
                if etree.QName(one).localname == "import" and namespace in self._of_namespace:
                    one.set("schemaLocation", _namespace_name(namespaces.index(namespace)))
            self._units[name] = etree.tostring(root, encoding="utf-8")


def _words(definition: etree._Element) -> Iterator[object]:
    """Yield what a definition consists of, whatever its prefixes, documentation and white space."""
    walk = etree.iterwalk(definition, events=("start", "end"), tag=f"{{{SCHEMA}}}*")
    for event, one in walk:
        if one.tag == f"{{{SCHEMA}}}annotation":
            walk.skip_subtree()
        elif event == "end":
            yield None
        else:
            yield (
                one.tag,
                {
                    name: [full_name(one, each) for each in value.split()] if name in (*USES, "ref") else value
                    for name, value in one.items()
                },
            )


def _used(root: etree._Element) -> set[str]:
    """Return the namespaces that a schema uses and does not import: other implementations accept that in a WSDL."""
    known = {root.get("targetNamespace", ""), "", *(one.get("namespace", "") for one in _locations(root))}
    used: set[str] = set()
    for one in root.iter(f"{{{SCHEMA}}}*"):
        for word in (*USES, "ref"):
            used |= {etree.QName(full_name(one, name)).namespace or "" for name in one.get(word, "").split()}
    return used - known


def _namespace_name(index: int) -> str:
    return f"holdfast:/namespace{index}.xsd"


def _locations(root: etree._Element) -> Iterator[etree._Element]:
    for word in ("import", "include", "redefine"):
        yield from root.iterfind(f"{{{SCHEMA}}}{word}")


def rpc_schemas(bodies: Iterable[Any]) -> Iterator[etree._Element]:
    """Yield schema documents for bodies in RPC style, zeep's elements, which no schema of the WSDL declares."""
    by_namespace: dict[str, dict[str, Any]] = {}
    for element in bodies:
        by_namespace.setdefault(element.qname.namespace or "", {})[element.qname.localname] = element
    for namespace, elements in by_namespace.items():
        schema = etree.Element(f"{{{SCHEMA}}}schema", {"targetNamespace": namespace} if namespace else {})
        types = {_type_name(part.type) for one in elements.values() for _, part in one.type.elements}
        for needed in sorted({one.namespace for one in types} - {SCHEMA, namespace}):
            etree.SubElement(schema, f"{{{SCHEMA}}}import", {"namespace": needed})
        around = etree.SubElement(schema, f"{{{SCHEMA}}}element", {"name": _RPC})
        bodies = etree.SubElement(etree.SubElement(around, f"{{{SCHEMA}}}complexType"), f"{{{SCHEMA}}}choice")
        for name, one in elements.items():
            declared = etree.SubElement(bodies, f"{{{SCHEMA}}}element", {"name": name, "form": "qualified"})
            kind = etree.SubElement(declared, f"{{{SCHEMA}}}complexType")
            parts = etree.SubElement(kind, f"{{{SCHEMA}}}sequence")
            for part, element in one.type.elements:
                named = _type_name(element.type)
                etree.SubElement(
                    parts,
                    f"{{{SCHEMA}}}element",
                    {"name": part, "type": f"p:{named.localname}", "form": "unqualified", "nillable": "true"},
                    nsmap={"p": named.namespace},
                )
        yield schema


def _type_name(kind: Any) -> Any:
    """Return the name of a type. For zeep, the one that admits everything has none."""
    return etree.QName(SCHEMA, "anyType") if kind.qname is None else kind.qname
