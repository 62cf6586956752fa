"""Fields that a pipeline's SQL expects in a body, and that the body's XSD lacks.

This module works on the output of Spark's parser for the SQL (``sql_syntax``), without a Spark session, so most columns
are unknown. It knows the structs of steps with ``parse`` and ``xsd``, and follows them through the steps below. If a
name could mean something else, it reports nothing: ``check --dry-run`` looks everything up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as T

from holdfast.config.lines import KeyPath
from holdfast.config.tables import Wrong
from holdfast.config.unreadable import readable
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.checks import Said, of_written_columns
from holdfast.pipeline.mediation.definition.plan import RoutePlan, StepPlan, XmlPlan
from holdfast.pipeline.mediation.transformations.xsd import XSD
from holdfast.settings import nearest

Structs = Mapping[str, T.DataType]
"""Column in lower case -> its type, for the columns with a known type."""
_ONE_QUERY = (
    *("Project", "Aggregate", "Filter", "Join", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Distinct"),
    *("SubqueryAlias", "Generate", "UnresolvedHaving", "UnresolvedRelation"),
)
"""Parts of a plan that a SELECT without subqueries consists of."""
_PLANS = ".plans.logical."
_UNRESOLVED_PLANS = (
    *("UnresolvedRelation", "UnresolvedHaving", "UnresolvedTableValuedFunction", "UnresolvedTVFAliases"),
    *("UnresolvedInlineTable", "RelationTimeTravel"),
)
"""Plans that the parser leaves to the analyzer, and keeps elsewhere."""


@dataclass(slots=True)
class Node:
    """A part of a plan or of an expression, from Spark's parser.

    Args:
        kind: Spark's class, without its package.
        is_plan: Whether it is part of a plan.
        said: Its other properties.
    """

    kind: str
    is_plan: bool
    said: Mapping[str, Any]
    children: list[Node] = field(default_factory=list)

    def names(self, key: str) -> list[str]:
        """Return the parts of a name, which Spark writes as text."""
        return str(self.said.get(key, "[]"))[1:-1].split(", ")

    def held(self) -> Iterator[Node]:
        """Yield its content in addition to its children: conditions, lists of columns, subqueries."""
        for value in self.said.values():
            yield from trees_in(value)

    def all(self) -> Iterator[Node]:
        yield self
        for one in (*self.held(), *self.children):
            yield from one.all()


def tree_of(text: str) -> Node:
    """Parse the output of Spark's ``toJSON`` for a plan or an expression into a tree."""
    return _tree(iter(json.loads(text)))


def _tree(nodes: Iterator[Mapping[str, Any]]) -> Node:
    said = next(nodes)
    package, _, kind = said["class"].rpartition(".")
    is_plan = f"{package}.".endswith(_PLANS) or kind in _UNRESOLVED_PLANS
    return Node(kind, is_plan, said, [_tree(nodes) for _ in range(said["num-children"])])


def trees_in(value: Any) -> Iterator[Node]:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "class" in value[0]:
        yield _tree(iter(value))
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from trees_in(one)


def missing_fields(said: Said, parsed: Mapping[KeyPath, Sequence[Node]]) -> Iterator[Wrong]:
    """Yield fields in SQL that the XSD lacks, and mismatches between a step's only column and the XSD's element.

    Args:
        said: Field of PipelinePlan -> the value read.
        parsed: Path of SQL -> the output of Spark's parser.
    """
    known: dict[str, Structs] = {}
    for step in said.get("steps", ()):
        yield from readable(_of_a_step(step, parsed, known))
    for where, trees in parsed.items():
        yield from readable(_of_what_follows(where, trees, said, known))


def _of_a_step(step: StepPlan, parsed: Mapping[KeyPath, Sequence[Node]], known: dict[str, Structs]) -> Iterator[Wrong]:
    """Yield the mistakes in a step; add its columns to the known ones."""
    path: KeyPath = ("steps", step.name)
    held: Structs = {}
    if len(step.input) == 1:
        held = known.get(step.input[0].lower(), {})
    if step.sql:
        for tree in parsed.get((*path, "sql"), ()):
            query = Query(tree, known)
            yield from ((((*path, "sql"), *wrong)) for wrong in query.wrong)
            held = query.output()
    else:
        for place in ("validate", "xml"):
            for where, trees in parsed.items():
                if where[:3] == (*path, place):
                    yield from _of_expressions(where, trees, held)
        if step.xml is not None and step.xml.xsd and len(step.xml.columns) == 1:
            yield from _of_one_column(step.xml, parsed.get((*path, "xml", "columns"), ()), held, path)
    known[step.name.lower()] = _after(step, held)


def _of_what_follows(
    where: KeyPath, trees: Sequence[Node], said: Said, known: Mapping[str, Structs]
) -> Iterator[Wrong]:
    """Yield the mistakes in the condition of a route, or in fields of a sink."""
    routes: Sequence[RoutePlan] = said.get("routes", ())
    inputs: list[str] = []
    if where[0] == "routes":
        inputs = [one.input for place, one in enumerate(routes) if place == where[1]]
    elif where[0] == "sinks":
        inputs = sorted({one.input for one in routes if where[1] in one.to})
    for name in inputs:
        yield from _of_expressions(where, trees, known.get(name.lower(), {}))


def _after(step: StepPlan, held: Structs) -> Structs:
    """Return the columns of a step's rows that have a known type."""
    if step.python is not None:
        return {}
    made = step.parse or step.xml
    if made is None:
        return held
    after = {name: kind for name, kind in held.items() if name != made.into.lower()}
    if step.parse is not None and step.parse.xsd:
        try:
            after[made.into.lower()] = XSD.read(step.parse.xsd).columns(step.parse.element)
        except ConfigurationError:  # reported elsewhere
            pass
    return after


def _of_expressions(where: KeyPath, trees: Sequence[Node], held: Structs) -> Iterator[Wrong]:
    for tree in trees:
        yield from ((where, *wrong) for wrong in _Expression(held).wrong_in(tree))


def _of_one_column(xml: XmlPlan, trees: Sequence[Node], held: Structs, path: KeyPath) -> Iterator[Wrong]:
    """Check the only column: it is a field of the element, or a struct with the element's fields, as its type shows."""
    assert xml.xsd is not None
    try:
        XSD.read(xml.xsd).columns(xml.element)
    except ConfigurationError:  # reported elsewhere
        return
    for tree in trees:
        is_named = tree.kind == "Alias"
        reading = _Expression(held)
        kind = reading.type_of(tree.children[0] if is_named else tree)
        if kind is None or reading.wrong:
            continue
        if not isinstance(kind, T.StructType):
            name = str(tree.said["name"]) if is_named else tree.names("nameParts")[-1]
            yield from of_written_columns(xml, [name], (*path, "xml"))
            continue
        yield from of_written_columns(xml, kind.fieldNames(), (*path, "xml"))


class _Expression:
    """Looks up the fields that an expression over one set of rows names.

    Args:
        held: The columns of the rows that have a known type.

    Attributes:
        wrong: The mistakes, each with its remedy.
    """

    def __init__(self, held: Structs) -> None:
        self.wrong: dict[tuple[str, str], None] = {}
        self._held = held

    def wrong_in(self, tree: Node) -> list[tuple[str, str]]:
        self._look(tree)
        return list(self.wrong)

    def _look(self, node: Node) -> None:
        if node.kind == "UnresolvedAttribute":
            self.type_of(node)
        elif node.kind == "UnresolvedExtractValue":
            self.type_of(node)
            self._look(node.children[1])
        else:
            for one in (*node.held(), *node.children):
                self._look(one)

    def type_of(self, node: Node) -> T.DataType | None:
        if node.kind == "UnresolvedAttribute":
            return self._walked(*self.resolved(node.names("nameParts")))
        if node.kind != "UnresolvedExtractValue":
            return None
        kind, extraction = self.type_of(node.children[0]), node.children[1]
        if kind is None or extraction.kind != "Literal":
            return None
        if extraction.said.get("dataType") == "string":
            return self._walked(kind, [_written(node.children[0])], [str(extraction.said["value"])])
        return kind.elementType if isinstance(kind, T.ArrayType) else None

    def resolved(self, parts: list[str]) -> tuple[T.DataType | None, list[str], list[str]]:
        """Return the type of the column that a name begins with, that part of the name, and the rest."""
        return self._held.get(parts[0].lower()), parts[:1], parts[1:]

    def _walked(self, kind: T.DataType | None, before: list[str], rest: list[str]) -> T.DataType | None:
        for name in rest:
            if kind is None:
                return None
            fields = kind.elementType if isinstance(kind, T.ArrayType) else kind
            told = f"'{'.'.join(before)}'"
            if not isinstance(fields, T.StructType):
                what = "an array of arrays" if isinstance(fields, T.ArrayType) else "a single value"
                self.wrong[f"{told} is {what} in the XSD, and has no field '{name}'", f"Leave out '.{name}'."] = None
                return None
            found = next((one.dataType for one in fields.fields if one.name.lower() == name.lower()), None)
            if found is None:
                near = nearest(name, fields.fieldNames())
                remedy = f"Did you mean '{near}'?" if near else f"It has {', '.join(fields.fieldNames())}."
                self.wrong[f"{told} has no field '{name}' in the XSD", remedy] = None
            kind = T.ArrayType(found) if found is not None and isinstance(kind, T.ArrayType) else found
            before = [*before, name]
        return kind


def _written(node: Node) -> str:
    """Return an expression of names, fields and array indices approximately as written."""
    if node.kind == "UnresolvedAttribute":
        return ".".join(node.names("nameParts"))
    inner, value = _written(node.children[0]), node.children[1].said.get("value")
    return f"{inner}.{value}" if node.children[1].said.get("dataType") == "string" else f"{inner}[{value}]"


class Query(_Expression):
    """Looks up the fields that a query names.

    Args:
        tree: The plan.
        known: Rows in lower case -> their columns with a known type.

    Attributes:
        rows: Alias in lower case -> the name of its rows; None: not a source, a table or a step, or more than one.
        generates: Whether the query adds columns of a generator, as with LATERAL VIEW.
    """

    def __init__(self, tree: Node, known: Mapping[str, Structs]) -> None:
        super().__init__({})
        self._tree, self._known = tree, known
        nodes = list(tree.all())
        self._is_one = all(one.kind in _ONE_QUERY for one in nodes if one.is_plan)
        self._is_one &= sum(one.kind in ("Project", "Aggregate") for one in nodes) == 1
        self.rows = _rows_of(nodes)
        self.generates = any(one.kind == "Generate" for one in nodes)
        self._defined = {str(one.said["name"]).lower() for one in nodes if one.kind == "Alias"}
        generated = [trees_in(one.said.get("generatorOutput")) for one in nodes if one.kind == "Generate"]
        self._defined |= {one.names("nameParts")[0].lower() for some in generated for one in some}
        self._look(tree)

    def resolved(self, parts: list[str]) -> tuple[T.DataType | None, list[str], list[str]]:
        """Resolve a name as in an expression; it may also begin with the name of the rows."""
        first = parts[0].lower()
        if first in self.rows:
            rows = self.rows[first]
            if rows is None or len(parts) == 1:
                return None, parts, []
            return self._known.get(rows, {}).get(parts[1].lower()), parts[:2], parts[2:]
        if not self._is_one or first in self._defined:
            return None, parts, []
        owners = [rows for rows in self.rows.values() if rows is not None and first in self._known.get(rows, {})]
        kind = self._known[owners[0]][first] if len(owners) == 1 else None
        return kind, parts[:1], parts[1:]

    def selection(self) -> Node | None:
        """Return the part with the list after SELECT; None if the query is more than one SELECT."""
        if not self._is_one:
            return None
        (node,) = [one for one in self._tree.all() if one.kind in ("Project", "Aggregate")]
        return node

    def output(self) -> Structs:
        """Return the columns of the result that have a known type."""
        if (node := self.selection()) is None:
            return {}
        made: dict[str, T.DataType] = {}
        names: Counter[str] = Counter()
        for one in trees_in(node.said.get("projectList") or node.said.get("aggregateExpressions")):
            if one.kind == "UnresolvedStar":
                targets = one.names("target") if one.said.get("target") else list(self.rows)
                columns = [self._known.get(self.rows.get(target.lower()) or "", {}) for target in targets]
            elif one.kind in ("Alias", "UnresolvedAttribute"):
                name = str(one.said["name"]) if one.kind == "Alias" else one.names("nameParts")[-1]
                kind = self.type_of(one.children[0] if one.kind == "Alias" else one)
                names[name.lower()] += kind is None
                columns = [{name.lower(): kind}] if kind is not None else []
            elif "Star" in one.kind:
                return {}
            else:
                continue
            for some in columns:
                names.update(some.keys())
                made.update(some)
        return {name: kind for name, kind in made.items() if names[name] == 1}


def _rows_of(nodes: Sequence[Node]) -> dict[str, str | None]:
    """Return alias in a query -> the name of its rows; None: not a source, a table or a step, or more than one."""
    aliased = [(str(one.said["identifier"]["name"]), one.children[0]) for one in nodes if one.kind == "SubqueryAlias"]
    others = {name.lower() for name, child in aliased if child.kind != "UnresolvedRelation"}
    seen = {id(child) for _, child in aliased}
    found: dict[str, str | None] = {}
    plain = [(one.names("multipartIdentifier")[-1], one) for one in nodes if one.kind == "UnresolvedRelation"]
    called = aliased + [one for one in plain if id(one[1]) not in seen]
    for name, node in called:
        parts = node.names("multipartIdentifier") if node.kind == "UnresolvedRelation" else []
        is_rows = len(parts) == 1 and parts[0].lower() not in others and name.lower() not in found
        found[name.lower()] = parts[0].lower() if is_rows else None
    for one in nodes:
        if one.kind == "Generate" and one.said.get("qualifier"):
            found[str(one.said["qualifier"]).lower()] = None
    return found
