"""The columns of an element that an XML Schema declares.

Runs in the driver only, because it needs the schema's files and xmlschema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import xmlschema
from pyspark.sql import types as T
from xmlschema.validators import XsdAnyElement, XsdComplexType, XsdElement, XsdGroup

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.forms import FORM, PLACE
from holdfast.settings import suggestion

Documents = tuple[tuple[str, bytes], ...]
"""Place and content of each document of a schema, the main one first."""
_XS = "{http://www.w3.org/2001/XMLSchema}"

_TYPES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "byte": T.ByteType(),
    "short": T.ShortType(),
    "unsignedByte": T.ShortType(),
    "int": T.IntegerType(),
    "unsignedShort": T.IntegerType(),
    "long": T.LongType(),
    "unsignedInt": T.LongType(),
    "unsignedLong": T.DecimalType(20, 0),
    "integer": T.DecimalType(38, 0),
    "decimal": T.DecimalType(38, 18),
    "date": T.DateType(),
    "dateTime": T.TimestampType(),
}
"""XSD type -> Spark's type for it and all derived types; any other becomes a STRING."""


def element_of(documents: Documents, name: str) -> str:
    """See ``XSD.element``."""
    declared = sorted(one.name for one in _declared(documents).elements.values())
    found = [one for one in declared if name in ("", one, one.rpartition("}")[2])]
    if len(found) == 1:
        return str(found[0])
    told = ", ".join(declared[:20]) or "none"
    near = [] if found else [one.rpartition("}")[2] for one in declared]
    what = f"declares {len(found)} elements" if found else "declares no element"
    raise ConfigurationError(
        f"the schema {documents[0][0]} {what}{f' {name!r}' if name else ''}",
        remedy=suggestion(name, near, f"Name one of them: {told}"),
    )


def columns_of(documents: Documents, name: str) -> T.StructType:
    """See ``XSD.columns``."""
    element = _element(documents, name)
    declared = _derived_from(element)
    about: dict[str, Any] = {} if declared is None else {"type": declared}
    kind = _kind(element, (), about, is_root=True)
    if isinstance(kind, T.StructType):
        return kind
    fields = [T.StructField("value", kind, metadata={"xml": "text"})]
    if about or element.nillable:
        fields.append(T.StructField(FORM, T.StringType(), metadata={"xml": PLACE, **about}))
    return T.StructType(fields)


def required_of(documents: Documents, name: str) -> frozenset[str]:
    """See ``XSD.required``."""
    element = _element(documents, name)
    if isinstance(element.type, XsdComplexType):
        return frozenset(_fields(element, ()).required)
    return frozenset() if _may_be_empty(element, element.type) else frozenset({"value"})


def _element(documents: Documents, name: str) -> Any:
    wanted = element_of(documents, name)
    return next(one for one in _declared(documents).elements.values() if one.name == wanted)


@lru_cache(32)
def _declared(documents: Documents) -> Any:
    try:
        return xmlschema.XMLSchema(documents[0][0], allow="local", defuse="always", validation="lax")
    except (xmlschema.XMLSchemaException, OSError) as error:
        raise ConfigurationError(f"the schema {documents[0][0]} cannot be used: {error}", remedy="Check it") from error


class _Fields:
    """The fields of one struct: names that differ in more than case, each with its place in XML.

    Attributes:
        required: The names of mandatory fields.
    """

    def __init__(self) -> None:
        self.required: set[str] = set()
        self._fields: dict[tuple[str, str, str], T.StructField] = {}
        self._names: set[str] = set()

    def add(
        self,
        place: str,
        namespace: str,
        local: str,
        kind: T.DataType,
        *,
        required: bool,
        many: bool = False,
        nil: bool = False,
        declared: str | None = None,
    ) -> None:
        key = (place, namespace, local)
        if (known := self._fields.get(key)) is not None:
            if required:
                self.required.add(known.name)
                known.metadata.pop("optional", None)
            return
        name = next(one for one in self._called(place, local) if one.lower() not in self._names)
        self._names.add(name.lower())
        if required:
            self.required.add(name)
        metadata: dict[str, Any] = {"xml": place}
        if place != "text":
            metadata["namespace"] = namespace
        if name != local:
            metadata["name"] = local
        if nil:
            metadata |= {"nil": True} if required or many else {"nil": True, "optional": True}
        if declared is not None:
            metadata["type"] = declared
        self._fields[key] = T.StructField(name, T.ArrayType(kind) if many else kind, metadata=metadata)

    def add_form(self, about: Mapping[str, Any]) -> None:
        """Add the field with the element's form, see ``forms``."""
        name = next(one for one in self._called(PLACE, FORM) if one.lower() not in self._names)
        field = T.StructField(name, T.StringType(), metadata={"xml": PLACE, **about})
        self._fields[PLACE, "", name] = field

    def any(self, is_told: Callable[[Mapping[str, Any]], bool]) -> bool:
        """Whether the metadata of a field is such."""
        return any(is_told(field.metadata) for field in self._fields.values())

    @staticmethod
    def _called(place: str, local: str) -> Iterator[str]:
        yield local
        if place != "element":
            yield f"{local}_{place}"
        for number in range(2, 1_000):
            yield f"{local}_{number}"

    def struct(self) -> T.StructType:
        return T.StructType(list(self._fields.values()))


def _kind(
    element: Any, above: tuple[Any, ...], about: Mapping[str, Any] | None = None, *, is_root: bool = False
) -> T.DataType:
    if not isinstance(element.type, XsdComplexType):
        return _simple(element.type)
    fields = _fields(element, above)
    found = {**(about or {}), **_unheld(element.type)}
    has_attributes = fields.any(lambda one: one["xml"] == "attribute")
    is_ambiguous = (
        bool(found)
        or bool(element.nillable and (is_root or has_attributes))
        or fields.any(lambda one: "optional" in one)
        or (not element.type.has_simple_content() and _may_mix(element.type.content))
    )
    if is_ambiguous and fields.struct().fields:
        fields.add_form(found)
    struct = fields.struct()
    # Only wildcards, or empty: a STRING still shows that the element exists.
    return struct if struct.fields else T.StringType()


def _fields(element: Any, above: tuple[Any, ...]) -> _Fields:
    kind = element.type
    if any(kind is one for one in above):
        raise ConfigurationError(
            f"the element {element.local_name!r} of the schema contains itself, which no column can represent",
            remedy='List the fields you need instead of an XSD: schema = "id INT, ..."',
        )
    fields = _Fields()
    if kind.has_simple_content():
        required = not _may_be_empty(element, kind.content)
        fields.add("text", "", "value", _simple(kind.content), required=required)
    else:
        content = kind.content
        _children(content, fields, (*above, kind), _most(content), required=content.min_occurs > 0)
    for name, attribute in kind.attributes.items():
        if name is not None and attribute.use != "prohibited":
            namespace, _, local = name.rpartition("}")
            required = attribute.use == "required"
            fields.add("attribute", namespace.lstrip("{"), local, _simple(attribute.type), required=required)
    return fields


def _unheld(kind: Any) -> dict[str, bool]:
    """Return which content of a complex type has no field."""
    found = {"mixed": bool(kind.mixed), "attributes": None in kind.attributes}
    if not kind.has_simple_content() and any(isinstance(one, XsdAnyElement) for one in kind.content.iter_elements()):
        found["children"] = True
    return {name: True for name, is_so in found.items() if is_so}


def _derived_from(element: Any) -> str | None:
    """Return the name of an element's type if xsi:type may name another one whose content the columns do not hold."""
    kind = element.type
    is_any = kind.target_namespace == _XS[1:-1] and kind.local_name in ("anyType", "anySimpleType")
    if kind.name is None or is_any:
        return None
    is_simple = not isinstance(kind, XsdComplexType)
    others = (one for one in element.schema.maps.types.values() if one is not kind)
    if any(isinstance(one, XsdComplexType) or not is_simple for one in others if one.is_derived(kind)):
        return str(kind.name)
    return None


def _may_mix(content: Any) -> bool:
    """Whether children may occur in another order than that of their fields."""
    names = list(_names(content))
    return len(names) != len(set(names)) or _repeats(content)


def _names(group: Any) -> Iterator[str]:
    for particle in group:
        if isinstance(particle, XsdGroup):
            yield from _names(particle)
        elif isinstance(particle, XsdElement):
            yield from (one.name for one in _possible(particle))


def _repeats(group: Any) -> bool:
    """Whether a part of several names may occur several times, or in any order."""
    if (_often(group) or group.model == "all") and len(set(_names(group))) > 1:
        return True
    return any(
        _repeats(particle) if isinstance(particle, XsdGroup) else _often(particle) and len(_possible(particle)) > 1
        for particle in group
        if isinstance(particle, XsdGroup | XsdElement)
    )


def _often(particle: Any) -> bool:
    return particle.max_occurs is None or particle.max_occurs > 1


def _possible(particle: Any) -> list[Any]:
    """Return the elements that a particle stands for."""
    return [one for one in (particle, *particle.iter_substitutes()) if not one.abstract]


def _may_be_empty(element: Any, kind: Any) -> bool:
    return element.default is not None or element.fixed is not None or bool(kind.is_valid(""))


def _children(group: Any, fields: _Fields, above: tuple[Any, ...], most: Mapping[str, int], *, required: bool) -> None:
    required = required and not (group.model == "choice" and len(group) > 1)
    for particle in group:
        must = required and particle.min_occurs > 0
        if isinstance(particle, XsdGroup):
            _children(particle, fields, above, most, required=must)
        elif isinstance(particle, XsdElement):
            possible = _possible(particle)
            for one in possible:
                fields.add(
                    "element",
                    one.name.rpartition("}")[0].lstrip("{"),
                    one.local_name,
                    _kind(one, above),
                    required=must and len(possible) == 1,
                    many=most[one.name] > 1,
                    nil=bool(one.nillable),
                    declared=_derived_from(one),
                )


def _most(particle: Any) -> Counter[str]:
    """Return how often each name may occur at most in a part of a content model; 2 means more than once."""
    often = 2 if _often(particle) else 1
    if isinstance(particle, XsdElement):
        return Counter({one.name: often for one in _possible(particle)})
    most: Counter[str] = Counter()
    for part in particle if isinstance(particle, XsdGroup) else ():
        most = most | _most(part) if particle.model == "choice" else most + _most(part)
    return Counter({name: min(2, number * often) for name, number in most.items()})


def _simple(kind: Any) -> T.DataType:
    one = kind
    while one is not None:
        if one.target_namespace == _XS[1:-1] and one.local_name in _TYPES:
            return _narrowed(one.local_name, kind)
        one = one.base_type
    return T.StringType()


def _narrowed(name: str, kind: Any) -> T.DataType:
    """Return the narrowest type that the facets allow without losing a digit."""
    digits, fraction = _facet(kind, "totalDigits"), _facet(kind, "fractionDigits")
    if name == "integer" and digits is not None and digits <= 18:
        return T.LongType()
    if name == "decimal" and fraction is not None and fraction <= 38:
        return T.DecimalType(min(38, max(digits or 38, fraction, 1)), fraction)
    return _TYPES[name]


def _facet(kind: Any, name: str) -> int | None:
    facet = kind.get_facet(f"{_XS}{name}")
    return int(facet.value) if facet is not None else None
