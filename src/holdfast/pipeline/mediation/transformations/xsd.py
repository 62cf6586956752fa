"""An XML Schema from files: the columns of an element it declares, and the violations in a body.

The driver reads the documents once and passes their content to tasks: a task reads no file. Nothing is ever fetched
from a network, and a document with a DTD is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lxml import etree
from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.http.urls import split_url
from holdfast.pipeline.bodies.reader import MAX_PROBLEMS
from holdfast.settings import brief_value, check_arguments, check_settings

_XS = "{http://www.w3.org/2001/XMLSchema}"
_XML = "http://www.w3.org/XML/1998/namespace"
_REFERENCES = tuple(f"{_XS}{name}" for name in ("include", "import", "redefine"))
MAX_DOCUMENTS = 500
"""Maximum number of documents of one schema."""


@dataclass(frozen=True)
class XSD:
    """A schema with everything that it includes and imports.

    Args:
        documents: Place and content of each, the main one first.
    """

    documents: tuple[tuple[str, bytes], ...]

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def read(cls, file: str | Path) -> XSD:
        """Read a schema's files.

        Raises:
            ConfigurationError: One of them is missing, is not a schema, has a DTD, or is not a file.
        """
        check_arguments(XSD.read, locals())
        documents: dict[str, bytes] = {}
        waiting = [os.path.abspath(file)]
        while waiting:
            place = waiting.pop(0)
            if place in documents:
                continue
            if len(documents) == MAX_DOCUMENTS:
                raise ConfigurationError(
                    f"the schema {file} consists of more than {MAX_DOCUMENTS} files", remedy="Use a part of it"
                )
            documents[place] = _content(place)
            waiting += _places(place, documents[place])
        schema = cls(tuple(documents.items()))
        schema.validator()
        return schema

    @property
    def place(self) -> str:
        """The place of the main document."""
        return self.documents[0][0]

    def element(self, name: str = "") -> str:
        """Return the ``{namespace}local`` name of an element that the schema declares.

        Args:
            name: A name of that form, or the local name alone; "": the only element.

        Raises:
            ConfigurationError: There is no such element, or more than one.
        """
        check_arguments(XSD.element, locals())
        from holdfast.pipeline.mediation.transformations.xsd_columns import element_of

        return element_of(self.documents, name)

    def columns(self, name: str = "") -> T.StructType:
        """Return the content of an element as Spark's type; each field's metadata gives its place in the element.

        Children and attributes have their local names, the text of an element with attributes the name ``value``; a
        child that may repeat is an ARRAY. Every field may be null. Wildcards and the text of mixed content are omitted.

        Raises:
            ConfigurationError: The element does not exist, or contains itself.
        """
        check_arguments(XSD.columns, locals())
        from holdfast.pipeline.mediation.transformations.xsd_columns import columns_of

        return columns_of(self.documents, name)

    def required(self, name: str = "") -> frozenset[str]:
        """Return the names of an element's mandatory columns.

        They are the children and attributes that must occur, and a text that must not be empty. Alternatives, of which
        only one must occur, are not included.

        Raises:
            ConfigurationError: The element does not exist, or contains itself.
        """
        check_arguments(XSD.required, locals())
        from holdfast.pipeline.mediation.transformations.xsd_columns import required_of

        return required_of(self.documents, name)

    def validator(self) -> etree.XMLSchema:
        """Return the validator, made once in each process.

        Raises:
            ConfigurationError: The schema is not valid.
        """
        return _validator(self)

    def problems(self, root: Any) -> list[str]:
        """Return an element's violations of the schema, each with its line; the first twenty.

        Raises:
            ConfigurationError: ``root`` is not an lxml element or tree.
        """
        if not isinstance(root, etree._Element | etree._ElementTree):
            raise ConfigurationError(f"root cannot be {brief_value(root)}", remedy="It may be an lxml element")
        validator = self.validator()
        if validator.validate(root):
            return []
        found = [f"line {entry.line}: {entry.message}" for entry in list(validator.error_log)[:MAX_PROBLEMS]]
        return found or ["is not valid"]


# --- documents --------------------------------------------------------------------------------------------------------


def _content(place: str) -> bytes:
    try:
        return Path(place).read_bytes()
    except (OSError, ValueError) as error:  # the latter for a null character in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"the schema {place} cannot be read: {why}", remedy="Name an existing file") from error


def _tree(place: str, content: bytes, resolver: etree.Resolver | None = None) -> Any:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    if resolver is not None:
        parser.resolvers.add(resolver)
    try:
        root = etree.fromstring(content, parser, base_url=place)
    except etree.XMLSyntaxError as error:
        raise ConfigurationError(f"the schema {place} is not XML: {error.msg}", remedy="Use an XSD") from error
    if root.getroottree().docinfo.doctype:
        raise ConfigurationError(f"the schema {place} has a DTD, which is not allowed", remedy="Remove it")
    if root.tag != f"{_XS}schema":
        raise ConfigurationError(f"{place} is not an XML Schema: its element is {root.tag!r}", remedy="Use an XSD")
    return root


def _places(place: str, content: bytes) -> Iterator[str]:
    for reference in _tree(place, content).iterchildren(*_REFERENCES):
        location = reference.get("schemaLocation")
        if location is None or reference.get("namespace") == _XML:
            continue
        parts = split_url(location)
        if parts.scheme not in ("", "file") or parts.netloc:
            raise ConfigurationError(
                f"the schema {place} includes {location}, which is on a network",
                remedy="Save it in the same directory, and name the file in schemaLocation",
            )
        yield os.path.normpath(os.path.join(os.path.dirname(place), unquote(parts.path)))


_XML_ATTRIBUTES = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"
 targetNamespace="http://www.w3.org/XML/1998/namespace"><xs:attribute name="lang" type="xs:string"/>
<xs:attribute name="space" type="xs:string"/><xs:attribute name="base" type="xs:anyURI"/>
<xs:attribute name="id" type="xs:ID"/></xs:schema>"""
"""The schema that most schemas import from W3C's site."""


class _Given(etree.Resolver):
    """Resolves only the documents of the schema."""

    def __init__(self, documents: dict[str, bytes]) -> None:
        self._documents = documents

    def resolve(self, system_url: str | None, public_id: str | None, context: Any) -> Any:
        place = os.path.normpath(unquote(split_url(system_url or "").path))
        content = self._documents.get(place, _XML_ATTRIBUTES if place.endswith("xml.xsd") else b"")
        return self.resolve_string(content, context, base_url=system_url)


@lru_cache(32)
def _validator(schema: XSD) -> etree.XMLSchema:
    try:
        return etree.XMLSchema(_tree(*schema.documents[0], _Given(dict(schema.documents))))
    except etree.XMLSchemaParseError as error:
        raise ConfigurationError(
            f"the schema {schema.place} is not valid: {error}", remedy="Check it with xmllint --schema"
        ) from error
