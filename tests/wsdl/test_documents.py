"""What is loaded for a WSDL, and what is refused: other places, document types, too much, and what is no WSDL.

Covers wsdl/schemas.py and wsdl/zeep_documents.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hostile_urls import NO_HOSTS
from lxml import etree
from one_operation import one_operation
from order_service import WSDL

from holdfast import Destination
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.wsdl import documents_of
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.wsdl import documents
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents
from holdfast.wsdl.schemas import BodySchema

URL = "http://service.example/orders?wsdl"
XSD = "http://www.w3.org/2001/XMLSchema"
WSA, XMLMIME = "http://www.w3.org/2005/08/addressing", "http://www.w3.org/2005/05/xmlmime"
SWAREF = "http://ws-i.org/profiles/basic/1.1/xsd"


class Web:
    """Documents by URL, and the requested URLs."""

    def __init__(self, **found: str) -> None:
        self.found: dict[str, str] = dict(found)
        self.asked: list[str] = []

    def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        return self.found[url].encode()


def orders(schema: str = "orders.xsd") -> str:
    return WSDL.read_text().replace("orders.xsd", schema)


SCHEMA = (WSDL.parent / "orders.xsd").read_text()


def contract(web: Web, **options: Any) -> Contract:
    return Contract(Documents(URL, web.fetch, **options))


def test_each_document_is_fetched_once_from_the_wsdls_own_host() -> None:
    web = Web()
    web.found = {URL: orders("/types.xsd"), "http://service.example/types.xsd": SCHEMA}
    made = contract(web)
    made.compile_schema()
    assert web.asked == [URL, "http://service.example/types.xsd"]


@pytest.mark.parametrize(
    "place", ["http://other.example/t.xsd", "https://service.example/t.xsd", "file:///etc/passwd", "ftp://a/t.xsd"]
)
def test_a_document_in_another_place_is_not_loaded_unless_allowed(place: str) -> None:
    web = Web()
    web.found = {URL: orders(place), place: SCHEMA}
    with pytest.raises(ConfigurationError, match="another place"):
        contract(web)
    assert web.asked == [URL]


def test_a_place_that_is_allowed_is_loaded() -> None:
    web = Web()
    place = "https://schemas.example/v1/t.xsd"
    web.found = {URL: orders(place), place: SCHEMA}
    assert set(contract(web, allow=["https://schemas.example/v1/"]).operations) == {
        "SubmitOrder",
        "Price",
        "CancelOrder",
    }


def test_a_wsdl_in_a_file_loads_nothing_from_the_web(tmp_path: Path) -> None:
    (tmp_path / "a.wsdl").write_text(orders("http://other.example/t.xsd"))
    web = Web()
    with pytest.raises(ConfigurationError, match="another place"):
        Contract(Documents(tmp_path / "a.wsdl", web.fetch))
    assert web.asked == []


@pytest.mark.parametrize("where", ["wsdl", "schema"])
@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>',
        '<!DOCTYPE a SYSTEM "http://other.example/a.dtd">',
    ],
)
def test_a_document_type_is_refused_in_every_document(where: str, doctype: str) -> None:
    def with_doctype(text: str) -> str:
        return text.replace("?>", "?>" + doctype, 1)

    web = Web()
    main, schema = orders("/t.xsd"), SCHEMA
    main, schema = (with_doctype(main), schema) if where == "wsdl" else (main, with_doctype(schema))
    web.found = {URL: main, "http://service.example/t.xsd": schema}
    with pytest.raises(ConfigurationError, match="document type"):
        contract(web)


def test_too_many_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_BYTES", len(orders("/t.xsd")) + 10)
    web = Web()
    web.found = {URL: orders("/t.xsd"), "http://service.example/t.xsd": SCHEMA}
    with pytest.raises(ConfigurationError, match="bytes"):
        contract(web)


def test_a_file_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_BYTES", 100)
    with pytest.raises(ConfigurationError, match="exceeds 100 bytes"):
        Documents(WSDL, Web().fetch).load(str(WSDL))


def test_documents_without_end_are_refused() -> None:
    class Endless(Web):
        def fetch(self, url: str) -> bytes:
            self.asked.append(url)
            if url == URL:
                return orders("/0").encode()
            return f'<xs:schema xmlns:xs="{XSD}"><xs:include schemaLocation="/{len(self.asked)}"/></xs:schema>'.encode()

    web = Endless()
    with pytest.raises(ConfigurationError, match="more than 100 documents"):
        contract(web)
    assert len(web.asked) == documents.MOST_DOCUMENTS + 1


def test_documents_that_import_each_other_end() -> None:
    one = SCHEMA.replace("<xs:element", '<xs:include schemaLocation="/u.xsd"/><xs:element', 1)
    two = f'<xs:schema xmlns:xs="{XSD}" targetNamespace="urn:orders"><xs:include schemaLocation="/t.xsd"/></xs:schema>'
    web = Web()
    web.found = {URL: orders("/t.xsd"), "http://service.example/t.xsd": one, "http://service.example/u.xsd": two}
    contract(web).compile_schema()


@pytest.mark.parametrize("text", ["", "no XML", "<a/>", "<a>", '<definitions xmlns="http://www.w3.org/ns/wsdl"/>'])
def test_what_is_no_wsdl_is_said_to_be_none(text: str) -> None:
    web = Web()
    web.found = {URL: text}
    with pytest.raises(ConfigurationError, match=r"WSDL"):
        contract(web)


ENCODED = one_operation("""<xs:element name="In"><xs:complexType><xs:sequence><xs:element name="one" minOccurs="0">
  <xs:simpleType><xs:restriction base="xs:string"><xs:enumeration value="v\u00e9lo"/></xs:restriction></xs:simpleType>
</xs:element></xs:sequence></xs:complexType></xs:element>""")


@pytest.mark.parametrize("declared", ["", "utf-8", "iso-8859-1", "windows-1252", "utf-16"])
@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "iso-8859-1", "windows-1252", "utf-16", "utf-16-le", "utf-16-be"]
)
def test_a_wsdl_may_have_any_encoding(tmp_path: Path, encoding: str, declared: str) -> None:
    shows_encoding = encoding.startswith("utf-16") or encoding == "utf-8-sig"
    if not shows_encoding and declared != encoding and {encoding, declared} & {"iso-8859-1", "windows-1252"}:
        return  # not the encoding that it declares
    file = tmp_path / "a.wsdl"
    head = f'<?xml version="1.0" encoding="{declared}"?>\n' if declared else ""
    file.write_bytes((head + ENCODED).encode(encoding))
    destination = Destination(":memory:", wsdl=file)
    for loaded in (
        Documents(file, _fetch_nothing),
        Documents("http://a/?wsdl", lambda url: file.read_bytes()),
        Documents("http://a/?wsdl", lambda url: destination.settings.wsdl.document(url, "http://a/")),
    ):
        made = Contract(loaded)
        do = made.operation("Do")
        assert made.request_values(do, made.request(do, (), {"one": "v\u00e9lo"})) == {"one": "v\u00e9lo"}


@pytest.mark.parametrize("declared", ["iso-8859-1x", "ascii", "base64"])
def test_a_wsdl_in_another_encoding_than_it_declares_is_refused(tmp_path: Path, declared: str) -> None:
    file = tmp_path / "a.wsdl"
    file.write_bytes((f'<?xml version="1.0" encoding="{declared}"?>\n' + ENCODED).encode("latin-1"))
    for use in (lambda: Contract(Documents(file, _fetch_nothing)), lambda: Destination(":memory:", wsdl=file)):
        with pytest.raises(ConfigurationError, match=f"not in the encoding {declared}") as caught:
            use()
        assert "?wsdl" not in caught.value.remedy


def _fetch_nothing(url: str) -> bytes:
    raise AssertionError(url)


def test_the_schema_of_the_xml_namespace_is_loaded_from_nowhere() -> None:
    imported = (
        '<xs:import namespace="http://www.w3.org/XML/1998/namespace" '
        'schemaLocation="http://www.w3.org/2001/xml.xsd"/><xs:element'
    )
    schema = SCHEMA.replace("<xs:element", imported, 1)
    schema = schema.replace("</xs:sequence>", '</xs:sequence><xs:attribute ref="xml:lang"/>', 1)
    web = Web()
    web.found = {URL: orders("/t.xsd"), "http://service.example/t.xsd": schema}
    made = contract(web)
    made.compile_schema()
    assert not [url for url in web.asked if "w3.org" in url]


@pytest.mark.parametrize(
    ("location", "namespace", "kind", "value"),
    [
        (
            "http://www.w3.org/2005/08/addressing/ws-addr.xsd",
            WSA,
            "k:EndpointReferenceType",
            {"Address": {"_value_1": "urn:a", "_attr_1": None}},
        ),
        ("http://www.w3.org/2006/03/addressing/ws-addr.xsd", WSA, "k:AttributedURIType", {"_value_1": "urn:a"}),
        ("http://www.w3.org/2005/05/xmlmime", XMLMIME, "k:base64Binary", {"_value_1": b"a", "contentType": "a/b"}),
        ("http://ws-i.org/profiles/basic/1.1/swaref.xsd", SWAREF, "k:swaRef", "cid:a"),
    ],
)
def test_well_known_schemas_are_never_fetched(location: str, namespace: str, kind: str, value: Any) -> None:
    imported = f'<xs:import namespace="{namespace}" schemaLocation="{location}"/><xs:element'
    schema = SCHEMA.replace("<xs:element", imported, 1)
    schema = schema.replace('name="customer" type="xs:string"', f'name="customer" type="{kind}" xmlns:k="{namespace}"')
    web = Web()
    web.found = {URL: orders("/t.xsd"), "http://service.example/t.xsd": schema}
    made = contract(web)
    submit = made.operation("SubmitOrder")
    values = {"customer": value, "lines": [{"item": "x", "quantity": 1}]}
    found = made.request_values(submit, made.request(submit, (), values))["customer"]
    found = found if isinstance(value, str) else {name: found[name] for name in value}
    assert found == value
    assert set(web.asked) == set(web.found)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_definition_may_be_repeated_in_the_same_words(tmp_path: Path, is_same: bool) -> None:
    """Some servers repeat the schema in each WSDL that another one imports, with other prefixes and documentation."""
    schema = SCHEMA.partition("?>")[2]
    again = schema
    for old, new in (("xs:", "s:"), ("xmlns:xs=", "xmlns:s="), ("o:", "p:"), ("xmlns:o=", "xmlns:p=")):
        again = again.replace(old, new)
    note = "<s:annotation><s:documentation>a</s:documentation></s:annotation>\n"
    again = again.replace("<s:complexType>", f"<s:complexType>{note}", 1)
    if not is_same:
        again = again.replace('"s:positiveInteger"', '"s:int"')
    before, _, after = WSDL.read_text().partition("<xs:schema>")
    types = f'<definitions xmlns="http://schemas.xmlsoap.org/wsdl/"><types>{again}</types></definitions>'
    (tmp_path / "b.wsdl").write_text(types)
    imported = '<wsdl:import namespace="urn:orders" location="b.wsdl"/><wsdl:types>'
    text = f"{before}{schema}{after.partition('</xs:schema>')[2]}".replace("<wsdl:types>", imported)
    (tmp_path / "a.wsdl").write_text(text)
    made = Contract(Documents(tmp_path / "a.wsdl", Web().fetch))
    if not is_same:
        with pytest.raises(ConfigurationError, match="'Line' does already exist"):
            made.compile_schema()
        return
    submit = made.operation("SubmitOrder")
    values = {"customer": "a", "lines": [{"item": "x", "quantity": 1}]}
    assert made.request_values(submit, made.request(submit, (), values)) == {**values, "wanted": None}


def test_several_inline_schemas_of_one_namespace_are_one_schema(tmp_path: Path) -> None:
    inline = SCHEMA.partition("?>")[2]
    start, _, rest = inline.partition('<xs:complexType name="Line">')
    second = f'<xs:schema xmlns:xs="{XSD}" xmlns:o="urn:orders" targetNamespace="urn:orders" '
    second += f'elementFormDefault="qualified"><xs:complexType name="Line">{rest}'
    text = WSDL.read_text()
    before, _, after = text.partition("<xs:schema>")
    (tmp_path / "a.wsdl").write_text(f"{before}{start}</xs:schema>{second}{after.partition('</xs:schema>')[2]}")
    made = Contract(Documents(tmp_path / "a.wsdl", Web().fetch))
    submit = made.operation("SubmitOrder")
    body = made.request(submit, (), {"customer": "a", "lines": [{"item": "x", "quantity": 1}]})
    assert made.request_values(submit, body)["lines"] == [{"item": "x", "quantity": 1}]


def test_a_schema_without_its_types_cannot_be_compiled() -> None:
    web = Web()
    web.found = {URL: orders("/t.xsd"), "http://service.example/t.xsd": SCHEMA.replace("xs:positiveInteger", "o:Qty")}
    with pytest.raises(ConfigurationError):
        BodySchema(Documents(URL, web.fetch))


def test_the_error_for_a_value_names_the_permitted_values() -> None:
    permitted = '<xs:simpleType><xs:restriction base="xs:string"><xs:enumeration value="EUR"/>'
    permitted += '<xs:enumeration value="USD"/></xs:restriction></xs:simpleType>'
    schema = f'<xs:schema xmlns:xs="{XSD}" targetNamespace="urn:p" elementFormDefault="qualified">'
    schema += f'<xs:element name="Price"><xs:complexType><xs:sequence><xs:element name="currency">{permitted}'
    schema += "</xs:element></xs:sequence></xs:complexType></xs:element></xs:schema>"
    made = BodySchema(Documents(WSDL, Web().fetch), [etree.fromstring(schema)])
    for inner, told in (
        ("<currency>GBP</currency>", "Element 'currency': [facet 'enumeration'] The value 'GBP' is not an element of "),
        ("<amount/>", "Element 'amount': This element is not expected. Expected is ( currency )."),
    ):
        with pytest.raises(EnvelopeError) as caught:
            made.check(etree.fromstring(f'<Price xmlns="urn:p">{inner}</Price>'))
        assert caught.value.message.startswith(told), caught.value.message
        assert ("the set {'EUR', 'USD'}." in caught.value.message) == ("GBP" in inner)


async def test_only_the_wsdls_own_host_gets_the_headers_of_the_requests() -> None:
    asked: list[bytes] = []

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nConnection: close\r\n\r\n")
        writer.write(b'<schema xmlns="http://www.w3.org/2001/XMLSchema"/>')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(web, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    own, other = f"http://127.0.0.1:{port}/", f"http://localhost:{port}/"
    async with server:
        http = SourceHTTP(headers={"Authorization": "Basic c2VjcmV0"})
        loaded = documents_of(f"{own}?wsdl", http, [other])
        for url in (f"{own}?wsdl", f"{own}a.xsd", f"{other}b.xsd"):
            await asyncio.to_thread(loaded.load, url)
    assert [b"c2VjcmV0" in one for one in asked] == [True, True, False]


@pytest.mark.parametrize("url", NO_HOSTS)
def test_an_import_from_a_host_that_is_none_is_an_error_of_the_wsdl(tmp_path: Path, url: str) -> None:
    web = Web()
    web.found[URL] = orders(f"{url}/a.xsd")
    with pytest.raises(ConfigurationError):
        contract(web)
    file = tmp_path / "a.wsdl"
    file.write_text(orders(f"{url}/a.xsd"))
    for use in (lambda: Contract(Documents(file, web.fetch)), lambda: Destination(":memory:", wsdl=file)):
        with pytest.raises(ConfigurationError):
            use()
    with pytest.raises(ConfigurationError):
        Contract(Documents(url, web.fetch))


# --- what zeep does not read ------------------------------------------------------------------------------------------

PLAIN = f'<xs:schema xmlns:xs="{XSD}">'
INNER = '<xs:complexType name="T"><xs:sequence><xs:element name="a" type="N"/></xs:sequence></xs:complexType>'
INNER += '<xs:simpleType name="N"><xs:restriction base="xs:int"/></xs:simpleType></xs:schema>'
IN = '<xs:element name="In" type="v:T"/>'


def in_files(place: Path, schema: str, **files: str) -> Contract:
    for name, text in files.items():
        (place / f"{name}.xsd").parent.mkdir(exist_ok=True)
        (place / f"{name}.xsd").write_text(text)
    (place / "in.wsdl").write_text(one_operation(schema))
    made = Contract(Documents(place / "in.wsdl", _fetch_nothing))
    made.compile_schema()
    return made


def echoed(made: Contract, values: dict[str, Any]) -> Any:
    do = made.operation("Do")
    return made.request_values(do, made.request(do, (), values))


def test_an_included_schema_without_a_namespace_has_that_of_the_other(tmp_path: Path) -> None:
    for include in ('<xs:include schemaLocation="c.xsd"/>', f'<include xmlns="{XSD}" schemaLocation="c.xsd"/>'):
        assert echoed(in_files(tmp_path, include + IN, c=PLAIN + INNER), {"a": 5}) == {"a": 5}


REDEFINED = """<xs:redefine schemaLocation="c.xsd"><xs:complexType name="T"><xs:complexContent><xs:extension base="v:T">
<xs:sequence><xs:element name="b" type="xs:int"/></xs:sequence></xs:extension></xs:complexContent></xs:complexType>
</xs:redefine>"""
IN_V = f'<xs:schema xmlns:xs="{XSD}" xmlns:v="urn:v" targetNamespace="urn:v" elementFormDefault="qualified">'
INCLUDED, INCLUDED_R = ('<xs:include schemaLocation="c.xsd"/>', '<xs:include schemaLocation="r.xsd"/>')


@pytest.mark.parametrize("original", [PLAIN, IN_V])
@pytest.mark.parametrize("included", [REDEFINED, INCLUDED_R, INCLUDED + INCLUDED_R, INCLUDED_R + INCLUDED])
def test_a_redefined_type_has_its_new_definition(tmp_path: Path, included: str, original: str) -> None:
    inner = INNER if original == PLAIN else INNER.replace('type="N"', 'type="v:N"')
    made = in_files(tmp_path, included + IN, c=original + inner, r=f"{IN_V}{REDEFINED}</xs:schema>")
    assert echoed(made, {"a": 5, "b": 6}) == {"a": 5, "b": 6}
    with pytest.raises(EnvelopeError):
        echoed(made, {"a": 5})


def test_the_schemas_of_a_wsdl_are_listed_equally_often_for_any_number_of_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []
    schemas = Documents.schemas
    monkeypatch.setattr(Documents, "schemas", lambda self: listed.append(1) or schemas(self))
    counts = set()
    for number in (1, 20):
        files = {
            f"s{one}": f"{IN_V}<xs:simpleType name='S{one}'><xs:restriction base='xs:int'/></xs:simpleType></xs:schema>"
            for one in range(number)
        }
        listed.clear()
        in_files(
            tmp_path,
            "".join(f'<xs:include schemaLocation="{one}.xsd"/>' for one in files) + IN.replace("v:T", "v:S0"),
            **files,
        )
        counts.add(len(listed))
    assert len(counts) == 1, "else the time grows with the square of the documents"


def test_documents_of_two_directories_may_have_one_name(tmp_path: Path) -> None:
    for name, kind in (("one", "T"), ("two", "U")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "s.xsd").write_text(f'{PLAIN}<xs:include schemaLocation="c.xsd"/></xs:schema>')
        text = INNER.replace('"T"', f'"{kind}"').replace('"N"', f'"N{kind}"')
        (tmp_path / name / "c.xsd").write_text(PLAIN + text)
    schema = '<xs:include schemaLocation="one/s.xsd"/><xs:include schemaLocation="two/s.xsd"/>'
    schema += '<xs:element name="In"><xs:complexType><xs:sequence><xs:element name="t" type="v:T"/>'
    schema += '<xs:element name="u" type="v:U"/></xs:sequence></xs:complexType></xs:element>'
    values = {"t": {"a": 1}, "u": {"a": 2}}
    assert echoed(in_files(tmp_path, schema), values) == values
