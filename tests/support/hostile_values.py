"""Hostile copies of a message: every text, attribute and element of it in turn, with each malformed value.

The names that the code reads are found in its source, so a test can demand that its messages have each of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lxml import etree

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
MARK = "HOSTILE-VALUE"

VALUES = [
    # numbers
    *("0", "-1", "1", "2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551616"),
    *("9" * 5000, "1e9", "NaN", "0x1", " 1 ", "\u0661"),
    # durations, times and booleans
    *("PT0S", "-PT1S", "P999999999Y", "PT" + "9" * 400 + "S", "P"),
    *("2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:60Z", "2020-01-01T00:00:00+99:99"),
    *("true", "TRUE", "yes"),
    # addresses, names and Base64
    *("urn:x", "http://[::1", "http://allowed.example:99999/", "relative/../path", "x:y:z", "{}", "anonymous", "none"),
    *("====", "AAAA" * 20_000, "#", "#_0", "#nothing"),
    # characters and mark-up
    *("", " ", "\x00", "\ufffe", "\U0010ffff", "\x7f", "&#0;", "&#9;", "&undefined;", "a" * 2049, "a" * 100_000),
    *("<x/>", "<x>1</x>", "a<!-- b -->c", "<![CDATA[x]]>", "<?x y?>", "<!DOCTYPE x>", "<x", "&#65;"),
]
"""What a peer may write where a text belongs, escaped or not."""

Change = tuple[str, bytes]
"""What is different, and the message."""


def _renamed(element: etree._Element) -> None:
    element.tag = f"{element.tag}X"


def _moved(element: etree._Element) -> None:
    name = etree.QName(element)
    element.tag = f"{{urn:another}}{name.localname}"


def _emptied(element: etree._Element) -> None:
    for child in list(element):
        element.remove(child)
    element.text = None


def _removed(element: etree._Element) -> None:
    parent = element.getparent()
    assert parent is not None
    parent.remove(element)


def _doubled(element: etree._Element) -> None:
    element.addnext(etree.fromstring(etree.tostring(element, with_tail=False)))


def _many(element: etree._Element) -> None:
    for _ in range(300):
        _doubled(element)


def _nested(element: etree._Element) -> None:
    element.append(etree.fromstring(etree.tostring(element, with_tail=False)))


def _extended(element: etree._Element) -> None:
    etree.SubElement(element, "{urn:another}Extension").text = "1"


def _deep(element: etree._Element) -> None:
    for _ in range(200):
        element = etree.SubElement(element, "{urn:another}Deep")


STRUCTURES: dict[str, Callable[[etree._Element], None]] = {
    "renamed": _renamed,
    "of another namespace": _moved,
    "empty": _emptied,
    "absent": _removed,
    "twice": _doubled,
    "300 times": _many,
    "in itself": _nested,
    "with an extension": _extended,
    "deep": _deep,
}
"""What a peer may do to an element."""


Place = tuple[int, str]
"""The number of an element in document order, and one of its attributes; "": the element itself."""


def places_in(data: bytes, within: str = "") -> list[Place]:
    """Return the places of a message: each element below the Envelope, and each of its attributes.

    Args:
        data: The message.
        within: Local name of the elements that contain them; "": all.
    """
    found: list[Place] = []
    for number, element in enumerate(etree.fromstring(data).iter(etree.Element)):
        names = [etree.QName(one).localname for one in (element, *element.iterancestors())]
        if number and (not within or within in names):
            found += [(number, ""), *[(number, str(name)) for name in element.attrib]]
    return found


def names_in(data: bytes) -> set[str]:
    """Return the local names of the elements and attributes of a message."""
    elements = list(etree.fromstring(data).iter(etree.Element))
    names = [one.tag for one in elements] + [name for one in elements for name in one.attrib]
    return {etree.QName(name).localname for name in names}


def changes(data: bytes, places: Iterable[Place], *, step: int = 1, start: int = 0) -> Iterator[Change]:
    """Return the hostile copies of a message.

    Args:
        data: The message.
        places: Where it is changed.
        step, start: Make every ``step``-th copy only, beginning with that number.
    """
    number = start
    for place in places:
        for what in [*(() if place[1] else STRUCTURES), *VALUES]:
            number += 1
            if number % step == 0 and (made := _changed(data, place, what)) is not None:
                yield made


def _changed(data: bytes, place: Place, what: str) -> Change | None:
    root = etree.fromstring(data)
    element, attribute = list(root.iter(etree.Element))[place[0]], place[1]
    told = f"{etree.QName(element).localname}{' ' if attribute else ''}{attribute}: {what[:40]!r}"
    if what in STRUCTURES and not attribute:
        STRUCTURES[what](element)
        return told, etree.tostring(root)
    value = what.replace('"', "&quot;")
    if attribute:
        element.set(attribute, MARK)
    elif len(element):
        return None  # it has no text of its own
    else:
        element.text = MARK
    return told, etree.tostring(root).replace(MARK.encode(), value.encode("utf-8", "surrogatepass"))


# --- what the code reads ---------------------------------------------------------------------------------------------

READERS = frozenset(
    {"name", "child", "only", "_only", "children", "_children", "_one_or_none", "_required", "_text", "_target"}
    | {"find", "findall", "findtext", "iterfind", "get", "text"}
)
"""Functions of the package whose arguments name what they read."""
_NAME = re.compile(r"(?:\.//)?(?:\{\*\})?@?([A-Za-z][A-Za-z0-9-]+)")
_END_OF_NAME = re.compile(r"\}([A-Za-z][A-Za-z0-9]+)")


def names_read(*places: str) -> set[str]:
    """Return the local names of elements and attributes that modules read.

    Args:
        places: The modules, as paths below ``src/holdfast``; or packages.
    """
    found: set[str] = set()
    for place in places:
        path = SOURCE / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                found |= _names_in(node)
    return found


def _names_in(node: ast.AST) -> set[str]:
    if isinstance(node, ast.JoinedStr) and node.values:
        return {one[1] for one in map(_END_OF_NAME.fullmatch, _texts(node.values[-1:])) if one is not None}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return {one[1] for one in map(_END_OF_NAME.fullmatch, _texts([node.right])) if one is not None}
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in READERS:
            return {one[1] for one in map(_NAME.fullmatch, _texts(node.args)) if one is not None}
    return set()


def _texts(nodes: Iterable[ast.AST]) -> list[str]:
    return [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]
