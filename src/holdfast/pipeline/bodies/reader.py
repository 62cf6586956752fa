"""XML bodies into typed values by a Spark schema: strict, namespace-aware, and never silent about mismatches.

A field takes the child element with its local name, otherwise the attribute with that name. A nested StructType takes
an element with children, an ArrayType every child with that name. A field's metadata ``{"namespace": "urn:x"}``
restricts it to that namespace, ``{"xml": "element"}`` or ``"attribute"`` to one of the two. ``{"xml": "text"}`` selects
the text of the element itself, in addition to its attributes. ``{"name": "id"}`` gives its name in XML, if that
differs. ``{"xml": "form"}`` selects the form of the element, see ``forms``. Texts have the forms of XML Schema, see
``simple_types``; a dateTime without a zone counts as UTC.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from lxml import etree
from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.forms import NIL_MARK, PLACE, UNHELD, is_nil, of_schema, type_of
from holdfast.pipeline.bodies.leniencies import LENIENCIES, MAX_ELEMENTS
from holdfast.pipeline.bodies.simple_types import Convert, Misfit, converter
from holdfast.settings import suggestion

MAX_PROBLEMS = 20
"""Maximum number of reported problems of one body; of the others, only the number is reported."""

_PLACES = (None, "element", "attribute", "text", PLACE)
TEXT_FIELD = "value"
"""The name of the field with the text of an element that has attributes, as in the types of an XSD."""
_MAX_TAGS = 1_000  # names remembered by one struct: a peer may invent new ones with each body
_DOCTYPE = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)


def has_doctype(body: bytes) -> bool:
    """Whether a body has a DOCTYPE; the parser must not see such a body."""
    return _DOCTYPE.match(body) is not None


class AnotherElement(ValueError):
    """The body's element has another name than the expected one."""


class BodyReader:
    """Parses bodies by one schema. Cheap to create; one parser for all bodies.

    Args:
        schema: The fields of the body's element.
        lenient: Deviations to ignore instead of flagging them, from ``leniencies.LENIENCIES``.
        max_elements: A body with more is not parsed.
        expected: The name of the body's element, ``{namespace}local`` or the local name; "": any.

    Raises:
        ConfigurationError: The schema has a type without a text form, a struct without fields or with two of one name,
            or ``lenient`` contains an unknown name.
    """

    def __init__(
        self,
        schema: T.StructType,
        lenient: Collection[str] = (),
        max_elements: int = MAX_ELEMENTS,
        expected: str = "",
    ) -> None:
        if unknown := sorted(set(lenient) - set(LENIENCIES)):
            raise ConfigurationError(
                f"{unknown[0]!r} is not a leniency",
                remedy=suggestion(unknown[0], LENIENCIES, f"Use {', '.join(LENIENCIES)}"),
            )
        self.max_elements = max_elements
        self._expected = expected
        self._empty = dict.fromkeys(schema.fieldNames())
        self.lenient = frozenset(lenient)
        self.root = Struct(schema, "", self.lenient)
        # A body is UTF-8, whatever it declares, and the server has limited its size. huge_tree lifts libxml2's own
        # limits, including that of entity expansion, so a DOCTYPE is refused before the parser sees it.
        self._parser = etree.XMLParser(
            encoding="utf-8",
            resolve_entities=False,
            no_network=True,
            huge_tree=True,
            remove_comments=True,
            remove_pis=True,
        )

    def read(self, body: bytes) -> tuple[dict[str, Any], str | None]:
        """Return the values by field name, None for missing ones, and the problem of the body, None without one.

        Never raises: any body becomes one row, with the reason if it could not be parsed.
        """
        try:
            if refusal := self._refusal(body):
                return dict(self._empty), refusal
            problems = _Problems(may_be_nil=b"nil" in body)
            element = self.element(body)
            if problems.may_be_nil and self.root.form is not None and is_nil(element):
                values = self.root.nilled(element, problems)
            else:
                values = self.root.read(element, problems)
        except etree.XMLSyntaxError as error:
            return dict(self._empty), f"not well-formed: {error.msg}"
        except AnotherElement as error:
            return dict(self._empty), str(error)
        except Exception as error:  # a bug, or too little memory for this body: the others are unaffected
            return dict(self._empty), f"cannot be read: {type(error).__name__}: {error}"
        return values, problems.told() or None

    def element(self, body: bytes) -> Any:
        """Return the body's element.

        Raises:
            etree.XMLSyntaxError: It is not well-formed.
            AnotherElement: It is not the expected one.
        """
        root = etree.fromstring(body, self._parser)
        tag = str(root.tag)
        if self._expected not in ("", tag, tag.rpartition("}")[2]):
            raise AnotherElement(f"is <{tag}>, not <{self._expected}>")
        return root

    def _refusal(self, body: bytes) -> str:
        if not body.strip():
            return "the body is empty"
        if has_doctype(body):
            return "has a DOCTYPE, which SOAP does not allow"
        limit = self.max_elements
        if body.count(b"<") > limit and body.count(b"<") - body.count(b"</") > limit:
            return f"has more than {limit} elements"
        return ""


class _Problems:
    """Reported problems of one body, and whether an element of it may be nil."""

    def __init__(self, may_be_nil: bool) -> None:
        self.may_be_nil = may_be_nil
        self.texts: list[str] = []
        self._more = 0

    def add(self, text: str) -> None:
        if len(self.texts) < MAX_PROBLEMS:
            self.texts.append(text)
        else:
            self._more += 1

    def prefix(self, since: int, prefix: str) -> None:
        self.texts[since:] = [prefix + text for text in self.texts[since:]]

    def told(self) -> str:
        texts = "; ".join(self.texts)
        return f"{texts}; and {self._more} more" if self._more else texts


class Field:
    """One field of a struct: its place, and the conversion of its text."""

    def __init__(self, field: T.StructField, path: str, lenient: frozenset[str]) -> None:
        self.name = field.name
        metadata = field.metadata or {}
        self.namespace = metadata.get("namespace")
        self.local = metadata.get("name", field.name)
        self.place = metadata.get("xml")
        self.required = not field.nullable
        self.is_optional_nil = bool(metadata.get("nil") and metadata.get("optional"))
        self.declared: str | None = metadata.get("type") if self.place == "element" else None
        """The declared type of the element, if others derive from it."""
        kind = field.dataType
        self.many = isinstance(kind, T.ArrayType)
        if isinstance(kind, T.ArrayType):
            kind = kind.elementType
        self.struct = Struct(kind, f"{path}{field.name}.", lenient) if isinstance(kind, T.StructType) else None
        self.convert: Convert | None = None
        if self.struct is None:
            self.convert = converter(path + field.name, kind, lenient)
        self.one_text = None if self.many else self.convert
        self.may_be_text = self.place is None and self.local == TEXT_FIELD and self.one_text is not None
        """Whether it takes the text of an element without such a child or attribute."""
        if self.place not in _PLACES or (self.place in ("attribute", "text", PLACE) and self.one_text is None):
            raise ConfigurationError(
                f"the field {path}{field.name} cannot be read from {self.place!r}",
                remedy="Its metadata must have xml = element, attribute, text or form; "
                "the last three only for a single value",
            )

    def value(self, element: Any, problems: _Problems, name: str) -> Any:
        """Return the value of one element; for an array, call it for each."""
        if problems.may_be_nil and is_nil(element):
            if self.required and not self.many:
                problems.add(f"{name} is nil")
            return self._nilled(element, problems)
        if self.declared is not None and (told := derived(element, self.declared)):
            problems.add(f"{name}: {told}")
        text = element.text
        if self.struct is not None:
            since = len(problems.texts)
            if text and not len(element) and text.strip() and not self.struct.takes_something(element):
                problems.add(f"{name}: {_shown(text)} is text, not an element with children")
                return None
            value = self.struct.read(element, problems)
            if len(problems.texts) > since:
                problems.prefix(since, f"{name}.")
            return value
        if len(element):
            problems.add(f"{name} has child elements")
            return None
        return self.text(text or "", problems, name)

    def _nilled(self, element: Any, problems: _Problems) -> Any:
        if self.struct is None or self.struct.form is None:
            return None
        values = self.struct.nilled(element, problems)
        return values if any(values[name] is not None for name in values if name != self.struct.form) else None

    def text(self, text: str, problems: _Problems, name: str) -> Any:
        """Return the value of an element's or attribute's text."""
        assert self.convert is not None
        try:
            return self.convert(text)
        except Misfit as misfit:
            problems.add(f"{name}: {_shown(text)} is {misfit}")
            return None


class Struct:
    """Parses an element's children and attributes by a struct's fields.

    Raises:
        ConfigurationError: See BodyReader.
    """

    def __init__(self, schema: T.StructType, path: str, lenient: frozenset[str]) -> None:
        names = [name.lower() for name in schema.fieldNames()]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice or (path and not names):
            what = f"two fields called {twice!r}" if twice else "no fields"
            raise ConfigurationError(
                f"{path.rstrip('.') or 'the schema'} has {what}, which Spark cannot store",
                remedy="Remove one of them: names are not case-sensitive" if twice else "Name some",
            )
        self.fields = [Field(field, path, lenient) for field in schema.fields]
        self._by_name: dict[str, list[int]] = {}
        for slot, field in enumerate(self.fields):
            if field.place in (None, "element"):
                self._by_name.setdefault(field.local, []).append(slot)
        form = next((field for field in schema.fields if (field.metadata or {}).get("xml") == PLACE), None)
        self.form = form.name if form is not None else None
        """The field with the element's form; None if the other fields determine it."""
        about = form.metadata if form is not None else {}
        self.declared: str | None = about.get("type")
        """The declared type of the body's own element, if others derive from it."""
        self._mixed, self._further = bool(about.get("mixed")), bool(about.get("attributes"))
        self._known = {
            f"{{{field.namespace}}}{field.local}" if field.namespace else field.local
            for field in self.fields
            if field.place == "attribute"
        }
        self.has_text = self._mixed or any(field.place == "text" or field.may_be_text for field in self.fields)
        self._by_tag: dict[str, int | None] = {}

    def read(self, element: Any, problems: _Problems) -> dict[str, Any]:
        """Return the values by field name."""
        found = self.found(element)
        values: dict[str, Any] = {}
        if self.declared is not None and (told := derived(element, self.declared)):
            problems.add(told)
        for slot, field in enumerate(self.fields):
            children = found.get(slot)
            one = children[0] if children and len(children) == 1 else None
            is_plain = not problems.may_be_nil and field.declared is None
            if one is not None and is_plain and field.one_text and not len(one):
                try:  # the fast path for most fields; the code below finds and reports every problem again
                    values[field.name] = field.one_text(one.text or "")
                    continue
                except Misfit:
                    pass
            values[field.name] = self._value(field, element, children, problems)
        if self.form is not None:
            values[self.form] = self.form_of(element, may_be_nil=problems.may_be_nil)
        return values

    def nilled(self, element: Any, problems: _Problems) -> dict[str, Any]:
        """Return the values of an element that is nil: only its attributes."""
        values: dict[str, Any] = dict.fromkeys(field.name for field in self.fields)
        for field in self.fields:
            if field.place == "attribute":
                values[field.name] = self._value(field, element, None, problems)
        assert self.form is not None
        return {**values, self.form: NIL_MARK}

    def form_of(self, element: Any, *, may_be_nil: bool) -> str | None:
        """Return the form of an element, see ``forms``; None if it is the default one."""
        words: list[str] = []
        last, is_default = -1, True
        for child in element:
            slot = self._slot_of(child.tag)
            if slot is None:
                words.append(UNHELD)
                continue
            field = self.fields[slot]
            mark = NIL_MARK if may_be_nil and field.is_optional_nil and not field.many and is_nil(child) else ""
            words.append(field.name + mark)
            is_default = is_default and slot >= last and not mark
            last = slot
        if self._mixed and any(one and one.strip() for one in (element.text, *(child.tail for child in element))):
            words.append(UNHELD)
        if self._further and any(not of_schema(name) and name not in self._known for name in element.attrib):
            words.append(UNHELD)
        return None if is_default and UNHELD not in words else " ".join(words)

    def takes_something(self, element: Any) -> bool:
        return self.has_text or any(
            attributes(element, field)
            for field in self.fields
            if field.one_text and field.place not in ("element", PLACE)
        )

    def found(self, element: Any) -> dict[int, list[Any]]:
        """Return the children that fields take, by the field's number."""
        found: dict[int, list[Any]] = {}
        for child in element:
            slot = self._slot_of(child.tag)
            if slot is not None:
                found.setdefault(slot, []).append(child)
        return found

    def _slot_of(self, tag: str) -> int | None:
        return self._by_tag[tag] if tag in self._by_tag else self._slot(tag)

    def _slot(self, tag: str) -> int | None:
        """Return the number of the field that takes elements of this name."""
        slots = self._by_name.get(_local(tag), ())
        slot = next((slot for slot in slots if self.fields[slot].namespace in (None, _namespace(tag))), None)
        if len(self._by_tag) < _MAX_TAGS:
            self._by_tag[tag] = slot
        return slot

    def _value(self, field: Field, element: Any, found: list[Any] | None, problems: _Problems) -> Any:
        if found:
            if field.many:
                return [field.value(child, problems, f"{field.name}[{i}]") for i, child in enumerate(found)]
            if len(found) == 1:
                return field.value(found[0], problems, field.name)
            problems.add(f"{field.name} occurs {len(found)} times")
            return None
        if field.place == PLACE:
            return None
        if field.place == "text":
            return self._own_text(field, element, problems)
        if field.convert is not None and not field.many and field.place != "element" and element.attrib:
            texts = attributes(element, field)
            if len(texts) > 1:
                problems.add(f"{field.name} occurs {len(texts)} times, as attributes")
                return None
            if texts:
                return field.text(texts[0], problems, field.name)
        if field.may_be_text and element.text and not len(element) and element.text.strip():
            return field.text(element.text, problems, field.name)
        if field.required:
            problems.add(f"{field.name} is missing")
        return None

    def _own_text(self, field: Field, element: Any, problems: _Problems) -> Any:
        if len(element):
            problems.add(f"{field.name} has child elements")
            return None
        return field.text(element.text or "", problems, field.name)


def derived(element: Any, declared: str) -> str:
    """Return the problem of an element with another type than the declared one; "" without one."""
    said = type_of(element)
    if said in (None, declared):
        return ""
    return f"xsi:type is {said}, but the columns are those of {declared}"


def attributes(element: Any, field: Field) -> list[str]:
    """Return the attributes that a field may take, the one without a namespace first."""
    if field.namespace in (None, "") and (text := element.get(field.local)) is not None:
        return [text]
    return [
        text
        for key, text in element.attrib.items()
        if _local(key) == field.local and field.namespace in (None, _namespace(key))
    ]


def _shown(text: str) -> str:
    return repr(text.strip()[:100])


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _namespace(tag: str) -> str:
    return tag[1:].partition("}")[0] if tag.startswith("{") else ""
