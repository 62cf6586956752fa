"""Defects of a WSDL: those of single operations, which zeep drops with a warning, and the place of one in a schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import zeep.exceptions
from lxml import etree

from holdfast.exceptions import ConfigurationError
from holdfast.wire.wsdl import WSDL, defined_name, full_name, namespaces
from holdfast.wsdl.documents import IMPORTS, SCHEMA, USES, XML_NAMESPACE, Documents, Schema
from holdfast.wsdl.schemas import BodySchema

_KNOWN_WITHOUT_SCHEMA = (SCHEMA, XML_NAMESPACE, "http://schemas.xmlsoap.org/soap/encoding/")


def unusable_operations(documents: Documents, binding: str, usable: Collection[str], types: Any) -> dict[str, str]:
    """Return the operations of a binding that cannot be used, with the reason.

    Args:
        documents: The documents of the WSDL.
        binding: The name of the wsdl:binding, in the form of ``full_name``.
        usable: The names of the operations that zeep offers.
        types: zeep's schema.
    """
    bound = _find(documents, "binding", binding)
    port_type = None if bound is None else _find(documents, "portType", full_name(bound, bound.get("type", "")))
    if bound is None or port_type is None:
        return {}
    abstract = list(port_type.iterfind(f"{{{WSDL}}}operation"))
    count = Counter(one.get("name", "") for one in abstract)
    found = {name: "the WSDL has several operations with that name" for name, number in count.items() if number > 1}
    by_name = {one.get("name", ""): one for one in abstract}
    for one in bound.iterfind(f"{{{WSDL}}}operation"):
        if any(used.get("use") == "encoded" for used in one.iterfind("*/{*}body")):
            found[one.get("name", "")] = 'it has SOAP encoding (use="encoded"), and Holdfast needs use="literal"'
    for name in [one.get("name", "") for one in bound.iterfind(f"{{{WSDL}}}operation")]:
        if name not in usable and name not in found:
            operation = by_name.get(name)
            missing = "the portType has no such operation"
            if operation is not None:
                missing = next(_missing(documents, operation, types), "its description is incomplete")
            found[name] = missing
    return found


def _missing(documents: Documents, operation: etree._Element, types: Any) -> Iterator[str]:
    for use in operation.iterchildren(*(f"{{{WSDL}}}{word}" for word in ("input", "output", "fault"))):
        name = use.get("message", "")
        message = _find(documents, "message", full_name(use, name))
        if message is None:
            yield f"the message {name} of its {etree.QName(use).localname} does not exist"
            continue
        for part in message.iterfind(f"{{{WSDL}}}part"):
            for word, find in (("element", types.get_element), ("type", types.get_type)):
                named = part.get(word)
                if named is None or _exists(find, full_name(part, named)):
                    continue
                namespace = etree.QName(full_name(part, named)).namespace
                yield f"the {word} {named} of the message {name} does not exist" + _no_schema(namespace, types)


def _no_schema(namespace: str | None, types: Any) -> str:
    return "" if namespace in types.namespaces else _no_schema_text(namespace)


def _no_schema_text(namespace: str | None) -> str:
    return f": the WSDL has no schema with {f'the namespace {namespace}' if namespace else 'no namespace'}"


def _exists(find: Any, name: str) -> bool:
    try:
        find(name)
    except (zeep.exceptions.LookupError, zeep.exceptions.NamespaceError):
        return False
    return True


def _find(documents: Documents, word: str, name: str) -> etree._Element | None:
    """Return the definition with a name, in the form of ``full_name``."""
    for _, root in documents.wsdl():
        for one in root.iterfind(f"{{{WSDL}}}{word}"):
            if defined_name(one) == name:
                return one
    return None


def check_namespaces(documents: Documents) -> None:
    """Check the namespaces of a WSDL: lxml makes no element in one that is not a URI.

    Raises:
        ConfigurationError: One is not a URI. Or the errors of :meth:`Documents.load`.
    """
    for location in documents.load_all():
        for namespace in {*namespaces(documents.root(location))} - {""}:
            try:
                etree.Element("it", nsmap={"p": namespace})
            except ValueError:
                raise ConfigurationError(
                    f"{location} has the namespace {namespace!r}, which is not a URI: its operations have no values.",
                    remedy="Correct the WSDL, or send and receive XML: source.send(), request(), @app.on(action).",
                ) from None


def first_defect(documents: Documents) -> str:
    """Return the first defect of the schemas, with its document and line; "" if none is found."""
    found = next(_defects(documents), "")
    if found:
        return found
    try:
        BodySchema(documents)
    except ConfigurationError as error:
        return error.message
    return ""


def _defects(documents: Documents) -> Iterator[str]:
    schemas = documents.schemas()
    defined: dict[str, set[str]] = {}
    """Kind -> the names of its definitions."""
    for schema in schemas:
        for one in (*schema.root.iterchildren(etree.Element), *schema.root.iterfind(f"{{{SCHEMA}}}redefine/*")):
            defined.setdefault(etree.QName(one).localname, set()).add(schema.defined(one.get("name", "")))
    namespaces = {schema.namespace for schema in schemas}
    for schema in schemas:
        for one in schema.root.iter(f"{{{SCHEMA}}}*"):
            for word, reason in _wrong(documents, schema, one, defined, namespaces):
                yield f"{schema.location}, line {one.sourceline}: {word} {reason}"


def _wrong(
    documents: Documents, schema: Schema, one: etree._Element, defined: dict[str, set[str]], namespaces: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield what an element of a schema names and does not exist, with the reason."""
    word = etree.QName(one).localname
    place = one.get("schemaLocation") if str(one.tag) in IMPORTS else None
    if place:
        root = documents.root(documents.beside(schema.location, place))
        if root.tag != f"{{{SCHEMA}}}schema":
            yield f"the document {place}", f"is not an XML schema, because its root is {etree.QName(root).localname}"
    for attribute, kinds in (*USES.items(), ("ref", (word,))):
        kind = kinds[0] if len(kinds) == 1 else "type"
        for name in (one.get(attribute) or "").split():
            prefix = name.rpartition(":")[0]
            if prefix and prefix not in one.nsmap:
                yield f"the {kind} {name}", f"has the prefix {prefix!r}, which is not declared"
                continue
            full = schema.named(one, name)
            namespace = etree.QName(full).namespace or ""
            if namespace in _KNOWN_WITHOUT_SCHEMA:
                continue
            if namespace not in namespaces:
                yield f"the {kind} {name}", f"does not exist{_no_schema_text(namespace)}"
            elif not any(full in defined.get(one, ()) for one in kinds):
                yield f"the {kind} {name}", "does not exist"
