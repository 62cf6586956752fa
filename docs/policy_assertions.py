"""The table of policy assertions on the page on policies, from the table that the code uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lxml import etree

from holdfast.wire.policy.assertions import TABLE, Row
from holdfast.wire.policy.expressions import Assertion

EXAMPLES = {
    "HttpsToken": {"RequireClientCertificate": "true"},
    "Header": {"Namespace": "urn:shop", "Name": "Customer"},
}
"""Parameters with which an assertion demands something of its own."""


def table() -> str:
    """Return the assertions that demand something of a source or that Holdfast does not support, as Markdown."""
    demands: dict[tuple[str, str], list[str]] = {}
    for path, row in _rows(TABLE, ""):
        name = path.rpartition("/")[2]
        element = etree.Element(name, EXAMPLES.get(name, {}))
        needs = row.abilities(Assertion(name, element, ""), ())
        for ability in needs:
            demands.setdefault((ability.words, ability.remedy), []).append(path)
        if row.lacks:
            demands.setdefault((row.lacks, "Holdfast does not support it."), []).append(path)
    lines = ["| assertion | demands | what to do |", "| --- | --- | --- |"]
    for (words, remedy), paths in demands.items():
        names = ", ".join(f"`{path}`" for path in dict.fromkeys(paths))
        lines.append(f"| {names} | {words} | {remedy} |")
    return "\n".join(lines)


def _rows(rows: Mapping[str, Row], above: str) -> Iterator[tuple[str, Row]]:
    for name, row in rows.items():
        local = name.rpartition("}")[2]
        yield f"{above}{local}", row
        yield from _rows(row.within, f"{local}/")
