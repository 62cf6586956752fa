"""The groups of a type: ``xs:sequence``, ``xs:choice``, ``xs:all`` and ``xs:group``.

zeep's own groups lose values: a choice with the value 0, False or "", the second of two repeated groups, an optional
group after a choice. Some read a valid body without end. ``replace_groups`` replaces them in a type. The ones here
rely on what the schema has checked: in a valid body, the name of the next element tells to which part it belongs
(XML Schema 1.0 part 1, section 3.8.6, Unique Particle Attribution).
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from lxml import etree
from zeep.xsd.const import NotSet, SkipValue
from zeep.xsd.elements.indicators import All, Choice, Group, Indicator, OrderIndicator, Sequence
from zeep.xsd.utils import max_occurs_iter

from holdfast.wsdl.fields import Field, OpenElement

Elements = deque[etree._Element]
_NAME = "_value_{}"
"""zeep's name of a repeated group, and of ``xs:any``."""


def numbered(name: str, number: int) -> str:
    """Return a name for a field; ``number`` 0 is the best one: a, a__1, a__2 and so on, as zeep numbers them."""
    return f"{name}__{number}" if number else name


@dataclass
class _Names:
    """The names of the fields of a structure, or of a repeated group in it.

    Each element of a sequence has its own field, also if the sequence has its name twice: a, a__1, a__2. The
    alternatives of a choice share a field, since a body has one of them, unless their values differ in form.

    An alternative sees the names around it through, and adds its own in front: to copy them for each would take
    quadratic time.

    Attributes:
        taken: Name -> the form of its value.
        tried: Name in the schema and form -> how many names for it are taken, or are of another form.
        alternatives: Name -> form, of the other alternatives of the choices around.
        numbers: Of repeated groups and wildcards.
    """

    taken: ChainMap[str, object] = field(default_factory=ChainMap)
    tried: ChainMap[tuple[str, object], int] = field(default_factory=ChainMap)
    alternatives: ChainMap[str, object] = field(default_factory=ChainMap)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def element(self, element: Any) -> str:
        form = element.qname.text, element.accepts_multiple, element.nillable
        number = self.tried.get((element.attr_name, form), 0)
        while not self._is_free(name := numbered(element.attr_name, number), form):
            number += 1
        self.tried[element.attr_name, form] = number + 1
        self.taken[name] = form
        return name

    def _is_free(self, name: str, form: object) -> bool:
        return name not in self.taken and self.alternatives.get(name, form) == form

    def other(self) -> str:
        """Return the name of a repeated group or a wildcard."""
        return _NAME.format(next(self.numbers))

    def alternative(self, others: _Names) -> _Names:
        """Return the names for an alternative of a choice, given those that the others before it have added."""
        alternatives = self.alternatives.new_child(others.taken)
        return _Names(self.taken.new_child(), self.tried.new_child(), alternatives, self.numbers)

    def add(self, other: _Names) -> None:
        """Add what another one has added to the names around it."""
        self.taken.update(other.taken.maps[0])
        for name, number in other.tried.maps[0].items():
            self.tried[name] = max(number, self.tried.get(name, 0))


def replace_groups(kind: Any) -> None:
    """Replace the groups of zeep's complex type, before its first value."""
    if kind._array_type is None and isinstance(kind._element, Indicator) and not isinstance(kind._element, _Part):
        kind._element = _replaced(kind._element, _Names())
        for cached in ("elements", "elements_nested", "attributes"):
            kind.__dict__.pop(cached, None)


def _replaced(group: Any, names: _Names) -> _Part:
    """Return the group that replaces one of zeep's.

    Args:
        group: zeep's.
        names: The names in the structure or the repeated group around it, to which it adds its own.
    """
    low, high = group.min_occurs, group.max_occurs
    while isinstance(group, Group):
        group = group.child
    made = next(ours for theirs, ours in _OURS.items() if isinstance(group, theirs))([], low, high)
    names = _Names() if made.accepts_multiple else names
    alternatives = _Names()
    nested: list[tuple[str | None, Any]] = []
    for part in group:
        own = names.alternative(alternatives) if isinstance(made, _Choice) else names
        name: str | None = None
        if not isinstance(part, Indicator):
            name = own.other() if part.name is None else own.element(part)
        else:
            # Its own name comes before those in it.
            name = own.other() if part.accepts_multiple else None
            part = _replaced(part, own)
        if own is not names:
            alternatives.add(own)
        nested.append((name, part))
    names.add(alternatives)
    made.extend(part for _, part in nested)
    made.__dict__["elements_nested"] = nested  # zeep's names are unique in one group only
    return made


def parts(part: Any, *, is_optional: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Yield the elements of a type or a group, with their names, and whether each may be absent.

    A repeated group is one of them.
    """
    for inner, one in part.elements_nested:
        if isinstance(one, OrderIndicator) and not one.accepts_multiple:
            yield from parts(one, is_optional=is_optional or bool(one.is_optional))  # of a choice, it is true
        else:
            is_group = isinstance(one, OrderIndicator)
            yield inner, one, is_optional or (_may_be_empty(one) if is_group else bool(one.is_optional))


def excluding(part: Any) -> dict[str, tuple[str, ...]]:
    """Return the fields of the choices in a group, each with those that never have a value together with it."""
    if not isinstance(part, _Part):
        return {}
    nested = [(dict(_named(*one)), {} if one[0] else excluding(one[1])) for one in part.elements_nested]
    if not isinstance(part, _Choice):
        return {own: others for _, deeper in nested for own, others in deeper.items()}
    names, found = dict.fromkeys(name for fields, _ in nested for name in fields), dict[str, tuple[str, ...]]()
    for own in names:
        having = [(fields, deeper.get(own, ())) for fields, deeper in nested if own in fields]
        apart = [one for one in names if all(one not in fields or one in others for fields, others in having)]
        found[own] = tuple(apart)
    return found


class _Part(OrderIndicator):
    """A group.

    ``elements_nested`` has its parts with their names, None for a group that is not repeated: the values of that are
    among those of the group around it.
    """

    # --- from XML -------------------------------------------------------------------------------------------------

    def parse_xmlelements(
        self, xmlelements: Elements, schema: Any, name: str | None = None, context: Any = None
    ) -> Any:
        """Take the elements that belong to this group; return their values by name."""
        found: list[dict[str, Any]] = []
        for _ in max_occurs_iter(self.max_occurs):
            if found and not (xmlelements and _begins(self, xmlelements[0])):
                break
            before = len(xmlelements)
            values = self._taken(xmlelements, schema, context)
            if len(xmlelements) == before:
                break
            found.append(values)
        if self.accepts_multiple:
            return {name: self._balanced(found)}
        return found[0] if found else {}

    def _taken(self, xmlelements: Elements, schema: Any, context: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _balanced(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the values of each time that the group occurs, where an element occurs as often as its type demands.

        Of (a{2,3}){2,3}, four elements were taken as three and one: they are two and two.
        """
        repeated = [(name, part) for name, part in self.elements if part.accepts_multiple and part.min_occurs > 1]
        for name, part in repeated:
            if len(self.elements) == 1:
                return _split(name, part.min_occurs, [one for item in found for one in item[name]], self, found)
            for at in range(len(found) - 1, 0, -1):
                before, item = found[at - 1], found[at]
                missing = part.min_occurs - len(item.get(name) or ())
                if item.get(name) and missing > 0 and list(before)[-1:] == [name]:
                    item[name] = before[name][-missing:] + item[name]
                    before[name] = before[name][:-missing]
        return found

    # --- from Python ----------------------------------------------------------------------------------------------

    @property
    def default_value(self) -> Any:
        """The values of an absent group."""
        if self.accepts_multiple:
            return []
        return {name: _absent(part) for name, part in self.elements}

    def parse_kwargs(self, kwargs: Any, name: str | None, available_kwargs: set[str]) -> dict[str, Any]:
        """Return zeep's values by name, and remove the names that this group has from the available ones.

        Raises:
            TypeError: The values do not fit.
        """
        if not self.accepts_multiple:
            return self._values(kwargs, available_kwargs)
        if name not in available_kwargs:
            return {}
        available_kwargs.remove(name)
        given = kwargs[name]
        items = given if isinstance(given, list) else [] if given is None else [given]
        return {name: [self._item(one) for one in items]}

    def conflict(self, values: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return a name of values, of one time that the group occurs, that it cannot have, and one of another value.

        They are of two alternatives of a choice.
        """
        for inner, part in self.elements_nested:
            if inner is None and (found := part.conflict(values)) is not None:
                return found  # type: ignore[no-any-return] # of zeep's list
        return None

    def is_empty(self, values: Mapping[str, Any]) -> bool:
        """Whether nothing is written for the values of one time that the group occurs."""
        return not _weight(self, values) and not any(_lacks(name, part, values) for name, part in self.elements_nested)

    def _item(self, given: Any) -> dict[str, Any]:
        try:
            names = set(given)
            values = self._values(given, names)
        except TypeError as error:
            if isinstance(given, Mapping):
                raise
            raise TypeError("each value of a repeated group is a dictionary of its fields") from error
        for other in names:
            raise TypeError(f"{self.signature()} got an unexpected keyword argument {other!r}.")
        return values

    def _values(self, given: Any, names: set[str]) -> dict[str, Any]:
        return {
            key: value
            for name, part in self.elements_nested
            for key, value in part.parse_kwargs(given, name, names).items()
        }

    # --- to XML ---------------------------------------------------------------------------------------------------

    def render(self, parent: etree._Element, value: Any, render_path: list[str] | None = None) -> None:
        """Write the values of this group; nothing if it is optional and has none."""
        if self.accepts_multiple:
            items = value if isinstance(value, list) else [value] if is_given(value) else []
        else:
            items = [value] if _weight(self, value) or not self.is_optional else []
        for one in max_occurs_iter(self.max_occurs, items):
            self._write(parent, one, render_path or [])

    def _write(self, parent: etree._Element, values: Any, path: list[str]) -> None:
        for name, part in self.elements_nested:
            _render(parent, name, part, values, path)


class _Sequence(_Part, Sequence):
    def _taken(self, xmlelements: Elements, schema: Any, context: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, part in self.elements_nested:
            if xmlelements and _begins(part, xmlelements[0]):
                found |= _parsed(name, part, xmlelements, schema, context)
        return found


class _All(_Part, All):
    def _taken(self, xmlelements: Elements, schema: Any, context: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while xmlelements:
            fitting = [(name, part) for name, part in self.elements_nested if _begins(part, xmlelements[0])]
            if not fitting:
                break
            found |= _parsed(*fitting[0], xmlelements, schema, context)
        return found


class _Choice(_Part, Choice):
    is_optional = True

    def _taken(self, xmlelements: Elements, schema: Any, context: Any) -> dict[str, Any]:
        for name, part in self.elements_nested:
            if xmlelements and _begins(part, xmlelements[0]):
                return _parsed(name, part, xmlelements, schema, context)
        return {}

    def _values(self, given: Any, names: set[str]) -> dict[str, Any]:
        chosen = self._chosen(given, names)
        values: dict[str, Any] = {} if chosen is None else chosen[1].parse_kwargs(given, chosen[0], names)
        if not self.accepts_multiple:
            for name, part in self.elements:
                if name in names and not _is_given(part, given[name]):
                    names.discard(name)
                values.setdefault(name, _absent(part))
        else:
            names -= {name for name, part in self.elements if name in names and not _is_given(part, given[name])}
        return values

    def conflict(self, values: Mapping[str, Any]) -> tuple[str, str] | None:
        chosen = self._chosen(values, None)
        if chosen is None:
            return None
        own = dict(_named(*chosen))
        for name, part in _named(None, self):
            if name not in own and _weight_of(name, part, values, None):
                return name, next(one for one in own if _weight_of(one, own[one], values, None))
        # Another alternative may have all of them in a choice.
        return chosen[1].conflict(values) if chosen[0] is None else None

    def is_empty(self, values: Mapping[str, Any]) -> bool:
        return not _weight(self, values)

    def _write(self, parent: etree._Element, values: Any, path: list[str]) -> None:
        chosen = self._chosen(values, None)
        if chosen is not None:
            _render(parent, chosen[0], chosen[1], values, path)

    def _chosen(self, values: Any, names: set[str] | None) -> tuple[str | None, Any] | None:
        """Return the alternative with the most values that are given, None without any. Names: as of _weight_of.

        Of several, it is the first one that lacks none: they may have elements with the same names.
        """
        weights = [_weight_of(name, part, values, names) for name, part in self.elements_nested]
        most = max(weights, default=0)
        fitting = [one for one, weight in zip(self.elements_nested, weights, strict=True) if weight == most > 0]
        return next((one for one in fitting if not _lacks(one[0], one[1], values)), next(iter(fitting), None))


_OURS: dict[type, type[_Part]] = {Sequence: _Sequence, Choice: _Choice, All: _All}


def is_given(value: Any) -> bool:
    """Whether a group has values."""
    return value is not None and value is not NotSet and not (isinstance(value, list) and not value)


def _is_given(part: Any, value: Any) -> bool:
    """Whether a part has a value, which may be 0, False, "" or a list of simple type without words."""
    return is_given(value) or (isinstance(value, list) and not part.accepts_multiple)


def _split(name: str, least: int, values: list[Any], group: Any, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the values of a group of one element, as evenly as possible if it has too few somewhere."""
    if len(found) >= group.min_occurs and all(len(item[name]) >= least for item in found):
        return found
    times = max(group.min_occurs, len(found))
    size, more = divmod(len(values), times)
    if size < least:
        return found
    ends = [at * size + min(at, more) for at in range(times + 1)]
    return [{name: values[ends[at] : ends[at + 1]]} for at in range(times)]


def _absent(part: Any) -> Any:
    """Return the value of a part that is not there."""
    return [] if part.accepts_multiple else None


def _begins(part: Any, element: etree._Element) -> bool:
    """Whether an element belongs to a part, as its first one."""
    if isinstance(part, _Sequence):
        for _, inner in part.elements_nested:
            if _begins(inner, element):
                return True
            if not _may_be_empty(inner):
                return False
        return False
    if isinstance(part, _Part):
        return any(_begins(inner, element) for _, inner in part.elements_nested)
    if isinstance(part, Field):
        return part.named(element) is not None
    return not isinstance(part, OpenElement) or part.admits(element)


def _may_be_empty(part: Any) -> bool:
    if part.min_occurs == 0:
        return True
    if not isinstance(part, _Part):
        return False
    if isinstance(part, _Choice):  # zeep has 0 for all elements in it; a choice with an optional one is optional
        return any(isinstance(inner, _Part) and _may_be_empty(inner) for _, inner in part.elements_nested)
    return all(_may_be_empty(inner) for _, inner in part.elements_nested)


def _parsed(name: str | None, part: Any, xmlelements: Elements, schema: Any, context: Any) -> dict[str, Any]:
    values = part.parse_xmlelements(xmlelements, schema, name, context=context)
    return values if isinstance(part, _Part) else {name: values}  # type: ignore[dict-item] # only groups have no name


def _named(name: str | None, part: Any) -> Iterator[tuple[str, Any]]:
    """Yield a part, or those in it, with their names."""
    if name is not None:
        yield name, part
    else:
        for inner in part.elements_nested:
            yield from _named(*inner)


def _weight(part: Any, values: Any) -> int:
    """Return how many values of a group that is not repeated are given."""
    return sum(_weight_of(name, inner, values, None) for name, inner in part.elements_nested)


def _weight_of(name: str | None, part: Any, values: Any, names: set[str] | None) -> int:
    """Return how many values of a part are given, of a choice those of one alternative.

    Args:
        names: The names that count; None: all.
    """
    if name is None:
        weights = [_weight_of(inner, one, values, names) for inner, one in part.elements_nested]
        return max(weights, default=0) if isinstance(part, _Choice) else sum(weights)
    return int((names is None or name in names) and name in values and _is_given(part, values[name]))


def _lacks(name: str | None, part: Any, values: Any) -> bool:
    """Whether a part, or one in it, must be there and has no value."""
    if name is not None:
        return part.min_occurs > 0 and not _weight_of(name, part, values, None)
    if isinstance(part, _Choice) or (part.min_occurs == 0 and not _weight(part, values)):
        return False
    return any(_lacks(inner, one, values) for inner, one in part.elements_nested)


def _render(parent: etree._Element, name: str | None, part: Any, values: Any, path: list[str]) -> None:
    # A value of zeep's has no method get().
    value = values if name is None else values[name] if name in values else NotSet  # noqa: SIM401
    if value is SkipValue or (value is None and part.is_optional):
        return
    part.render(parent, value, path if name is None else [*path, name])
