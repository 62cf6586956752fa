"""Bodies of an operation whose request is an element In of a given type, and their values."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lxml import etree
from one_operation import one_operation

from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents

_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"


def of(content: str, others: str = "", attributes: str = "") -> Contract:
    """Return the contract of an operation Do.

    Args:
        content: Of the type of In.
        others: Other definitions of the schema.
        attributes: Of that type.
    """
    schema = f'<xs:element name="In"><xs:complexType {attributes}>{content}</xs:complexType></xs:element>{others}'
    return made_of(one_operation(schema))


def made_of(text: str) -> Contract:
    """Return the contract of a WSDL."""
    with TemporaryDirectory() as place:
        wsdl = Path(place, "in.wsdl")
        wsdl.write_text(text, encoding="utf-8")
        made = Contract(Documents(wsdl, _no_web))
        made.compile_schema()
        return made


def _no_web(url: str) -> bytes:
    raise AssertionError(url)


def read(made: Contract, content: str, attributes: str = "") -> Any:
    """Return the values of a body."""
    body = f'<v:In xmlns:v="urn:v" xmlns:i="{_INSTANCE}" {attributes}>{content}</v:In>'
    return made.request_values(made.operations["Do"], body.encode())


def written(made: Contract, values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the names and texts of the elements in the body with some values."""
    return _listed(etree.fromstring(made.request(made.operations["Do"], (), values)))


def elements(content: str) -> list[tuple[str, str]]:
    """Return the names and texts of the elements of a body as :func:`read` takes it."""
    return _listed(etree.fromstring(f'<In xmlns:v="urn:v" xmlns:i="{_INSTANCE}">{content}</In>'))


def _listed(body: etree._Element) -> list[tuple[str, str]]:
    return [(etree.QName(one).localname, one.text or "") for one in body.iter()][1:]
