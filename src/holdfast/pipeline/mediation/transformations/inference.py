"""Inference of the fields of bodies from a sample: names, namespaces, nesting, and the narrowest type that fits.

A sample shows only what has occurred, not what may occur. So the inferred fields are stored, and used from then on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from lxml import etree
from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.forms import NIL
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.bodies.simple_types import Misfit, converter
from holdfast.settings import check_arguments

_KINDS: list[T.DataType] = [
    T.BooleanType(),
    T.LongType(),
    T.DecimalType(38, 18),
    T.DoubleType(),
    T.DateType(),
    T.TimestampType(),
    T.StringType(),
]
"""The narrowest first."""
_WIDENED = {"boolean": (), "bigint": (2, 3), "decimal(38,18)": (3,)}
"""Kind -> other kinds that its texts may have, if other texts of the field need them."""


def infer_schema(bodies: Iterable[bytes | str]) -> T.StructType:
    """Return the fields of the bodies' element, for ``parse_xml``; each field's metadata gives its place.

    A text is a BOOLEAN only if it is true or false, a LONG only without leading zeros or a plus; an element that occurs
    more than once in one body is an ARRAY. Unreadable bodies are skipped.

    Args:
        bodies: A sample.

    Raises:
        ConfigurationError: No body is readable, or they have different elements.
    """
    check_arguments(infer_schema, locals())
    reader = BodyReader(T.StructType())
    parser = etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True, huge_tree=True
    )
    seen: dict[str, _Seen] = {}
    for body in bodies:
        content = body.encode() if isinstance(body, str) else body
        if reader.read(content)[1] is None:
            root = etree.fromstring(content, parser)
            seen.setdefault(str(root.tag), _Seen()).look(root)
    if len(seen) != 1:
        what = f"bodies of {', '.join(sorted(seen))}" if seen else "no readable body"
        raise ConfigurationError(
            f"the sample has {what}, but a schema describes one element",
            remedy="Use a sample with one element, or give a schema"
            if seen
            else "Send some messages first, or give a schema",
        )
    (one,) = seen.values()
    kind = one.kind()
    return kind if isinstance(kind, T.StructType) else T.StructType([T.StructField("value", kind, metadata=_TEXT)])


_TEXT = {"xml": "text"}
_CODE = re.compile(r"\+|-?0[0-9]")


class _Seen:
    """The observed content of one element, over all bodies."""

    def __init__(self) -> None:
        self._texts: set[int] = set()
        self._children: dict[str, _Seen] = {}
        self._attributes: dict[str, set[int]] = {}
        self._many: set[str] = set()

    def look(self, element: Any) -> None:
        tags = [child.tag for child in element]
        self._many |= {tag for tag in tags if tags.count(tag) > 1} if len(set(tags)) < len(tags) else set()
        for child in element:
            self._children.setdefault(child.tag, _Seen()).look(child)
        for name, text in element.attrib.items():
            if not name.startswith("{http://www.w3.org/2001/XMLSchema-instance}"):
                self._attributes.setdefault(name, set()).add(_kind_of(text))
        if not len(element) and (text := (element.text or "").strip()) and element.get(NIL) is None:
            self._texts.add(_kind_of(text))

    def kind(self) -> T.DataType:
        if not self._children and not self._attributes:
            return _one_kind(self._texts)
        fields: list[T.StructField] = []
        if not self._children and self._texts:
            fields.append(T.StructField("value", _one_kind(self._texts), metadata=_TEXT))
        for tag, child in self._children.items():
            kind = child.kind()
            kind = T.ArrayType(kind) if tag in self._many else kind
            fields.append(_field("element", tag, kind, fields))
        for name, kinds in self._attributes.items():
            fields.append(_field("attribute", name, _one_kind(kinds), fields))
        return T.StructType(fields)


def _field(place: str, tag: str, kind: T.DataType, others: list[T.StructField]) -> T.StructField:
    namespace, _, local = tag.rpartition("}")
    taken = {field.name.lower() for field in others}
    names = [local, f"{local}_{place}", *(f"{local}_{number}" for number in range(2, 1_000))]
    name = next(one for one in names if one.lower() not in taken)
    metadata = {"xml": place, "namespace": namespace.lstrip("{"), **({"name": local} if name != local else {})}
    return T.StructField(name, kind, metadata=metadata)


def _kind_of(text: str) -> int:
    text = text.strip()
    for index, kind in enumerate(_KINDS):
        if isinstance(kind, T.BooleanType) and text not in ("true", "false"):
            continue
        if index in (1, 2, 3) and _CODE.match(text):
            continue  # leading zeros may be significant, as in a code
        try:
            converter("", kind)(text)
        except Misfit:
            continue
        return index
    return len(_KINDS) - 1


def _one_kind(found: set[int]) -> T.DataType:
    string = len(_KINDS) - 1
    if not found:
        return _KINDS[string]
    fits = [{one, *_WIDENED.get(_KINDS[one].simpleString(), ()), string} for one in found]
    return _KINDS[min(set.intersection(*fits))]
