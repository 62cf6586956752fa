"""The form of an element that the values of its fields do not determine: order, nil, and content without a field.

The columns of an XSD hold values: ``call=[1, 2]`` and ``mail=[m]`` do not show which child came first, and a null does
not show whether the child was absent or nil. If its content model allows such differences, a struct has one more
field, ``xml_form``. It is null if the default form is the right one: children in the order of the fields, and no child
for a null unless the child is mandatory and nillable. Otherwise it contains, separated by spaces, a word for each child
in document order:

- ``NAME``: a child of the field NAME, the next one of an array;
- ``NAME:nil``: the child is nil;
- ``*``: content that no field holds, of a wildcard or between the children of mixed content;
- ``:nil``, alone: the element itself is nil, and has attributes.
"""

from __future__ import annotations

from typing import Any

FORM = "xml_form"
"""The field's name, unless a child has that name."""
PLACE = "form"
"""The field's place in its metadata."""
NIL_MARK = ":nil"
UNHELD = "*"

_XSI = "{http://www.w3.org/2001/XMLSchema-instance}"
NIL = f"{_XSI}nil"
TYPE = f"{_XSI}type"


def is_nil(element: Any) -> bool:
    return element.get(NIL, "").strip() in ("true", "1")


def type_of(element: Any) -> str | None:
    """Return the ``{namespace}local`` name in an element's xsi:type; None without one."""
    said = element.get(TYPE)
    if said is None:
        return None
    prefix, _, local = said.strip().rpartition(":")
    namespace = element.nsmap.get(prefix or None)
    return f"{{{namespace}}}{local}" if namespace else local


def of_schema(name: str) -> bool:
    """Whether an attribute belongs to XML Schema itself."""
    return name.startswith(_XSI)
