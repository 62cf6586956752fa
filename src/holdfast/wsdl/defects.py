"""Defects of single operations of a WSDL, for which zeep drops the operation with a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import zeep.exceptions
from lxml import etree

from holdfast.wire.wsdl import WSDL, defined_name, full_name
from holdfast.wsdl.documents import Documents


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
                if named is not None and not _exists(find, full_name(part, named)):
                    yield f"the {word} {named} of the message {name} does not exist"


def _exists(find: Any, name: str) -> bool:
    try:
        find(name)
    except zeep.exceptions.LookupError:
        return False
    return True


def _find(documents: Documents, word: str, name: str) -> etree._Element | None:
    """Return the definition with a name, in the form of ``full_name``."""
    for _, root in documents.wsdl():
        for one in root.iterfind(f"{{{WSDL}}}{word}"):
            if defined_name(one) == name:
                return one
    return None
