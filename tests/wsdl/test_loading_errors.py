"""An error of a WSDL's documents names the document at fault, and what to do. Covers wsdl/defects.py too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from one_operation import one_operation

from holdfast import Destination
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.operation_calls import load_contract
from holdfast.endpoint.source.wsdl import documents_of
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents

IN = '<xs:element name="In"><xs:complexType><xs:sequence><xs:element name="a" type="{}"/></xs:sequence>'
IN += "</xs:complexType></xs:element>"
GOOD = one_operation(IN.format("xs:int"))
SCHEMA = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:v" xmlns:v="urn:v">\n\n{}</xs:schema>'
)
PAGE = "<!-- a --><html><head><title>Sign\n in</title></head><body><br></body></html>"


def including(location: str) -> str:
    return one_operation(f'<xs:include schemaLocation="{location}"/>')


# --- answers of a server ----------------------------------------------------------------------------------------------

Answer = tuple[int, str, str]
"""Status, further header fields, content."""
ANSWERS: dict[str, Answer] = {
    "/moved": (302, "Location: ../new?wsdl\r\n", ""),
    "/gone": (307, "", ""),
    "/secret": (401, "WWW-Authenticate: Basic\r\n", ""),
    "/forbidden": (403, "", ""),
    "/proxy": (407, "", ""),
    "/page": (200, "", PAGE),
    "/doctype": (200, "", "\n<!DOCTYPE html><HTML/>"),
    "/moved-import": (200, "", including("moved")),
    "/secret-import": (200, "", including("secret")),
    "/missing-import": (200, "", including("missing.xsd")),
}

Load = Callable[..., Awaitable[HoldfastError]]


@pytest.fixture
async def load() -> AsyncIterator[Load]:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().partition("?")[0]
        status, fields, content = ANSWERS.get(target, (404, "", ""))
        head = f"HTTP/1.1 {status} X\r\n{fields}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write((head + content).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(web, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def loaded(target: str, http: SourceHTTP | None = None) -> HoldfastError:
        with pytest.raises(HoldfastError) as caught:
            await asyncio.to_thread(load_contract, documents_of(base + target, http or SourceHTTP()), None)
        error = caught.value
        error.message, error.remedy = (one.replace(base, "BASE") for one in (error.message, error.remedy))
        return error

    async with server:
        yield loaded


@pytest.mark.parametrize(
    ("target", "says", "remedy"),
    [
        ("/moved?wsdl", "it has moved to BASE/new?wsdl", "use BASE/new?wsdl instead"),
        ("/gone?wsdl", "BASE/gone?wsdl responded with 307: it has moved", "owner"),
        ("/secret?wsdl", "responded with 401", "--header 'Authorization"),
        ("/forbidden?wsdl", "responded with 403", "Authorization"),
        ("/proxy?wsdl", "responded with 407", "user:password"),
        ("/page?wsdl", "BASE/page?wsdl is an HTML page with the title 'Sign in', not a WSDL", "?wsdl"),
        ("/doctype", "BASE/doctype is an HTML page, not a WSDL", "?wsdl"),
        ("/moved-import?wsdl", "moved to BASE/new?wsdl. It is imported by BASE/moved-import?wsdl", "save all its doc"),
        ("/secret-import?wsdl", "BASE/secret responded with 401 and no document. It is imported by BASE/secr", "Auth"),
        ("/missing-import?wsdl", "BASE/missing.xsd responded with 404", ""),
    ],
)
async def test_an_answer_that_is_no_wsdl_says_which_and_what_to_do(
    load: Load, target: str, says: str, remedy: str
) -> None:
    error = await load(target)
    assert says in error.message
    assert remedy in error.remedy


async def test_credentials_that_the_server_refuses_are_to_be_checked(load: Load) -> None:
    error = await load("/secret", SourceHTTP(headers={"authorization": "Basic c2VjcmV0"}))
    assert "check the credentials" in error.remedy
    assert "c2VjcmV0" not in str(error)


# --- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (IN.format("v:No"), "bad.xsd, line 3: the type v:No does not exist"),
        (IN.format("q:No"), "bad.xsd, line 3: the type q:No has the prefix 'q', which is not declared"),
        (IN.format("xs:int").replace("<xs:seq", '<xs:seq xmlns:w="urn:w"', 1), "bad.xsd"),
        (IN.format("xs:int").replace("xs:sequence", "xs:sequense"), "bad.xsd: Element 'complexType': The content"),
        (IN.format("xs:int").replace('name="a" type="xs:int"', 'ref="v:b"'), "line 3: the element v:b does not exist"),
        ('<xs:include schemaLocation="in.wsdl"/>', "the document in.wsdl is not an XML schema"),
        ('<xs:include schemaLocation="fault.xsd"/>', "fault.xsd is not an XML schema or WSDL: its root is Envelope"),
        ('<xs:include schemaLocation="page.xsd"/>', "page.xsd is an HTML page with the title 'Sign in'"),
        ('<xs:include schemaLocation="none.xsd"/>', "none.xsd cannot be read: No such file or directory. It is impo"),
        ('<a xmlns="{urn}a"/>', "bad.xsd is not a WSDL or XML schema: it has a namespace with a brace"),
        ("<xs:include", "bad.xsd is not a WSDL or XML schema: it is not one well-formed XML element"),
    ],
    ids=lambda one: f"{one!r:.40}",
)
def test_an_error_names_the_schema_and_not_the_wsdl(tmp_path: Path, schema: str, says: str) -> None:
    (tmp_path / "in.wsdl").write_text(including("bad.xsd"))
    (tmp_path / "bad.xsd").write_text(SCHEMA.format(schema))
    (tmp_path / "fault.xsd").write_text('<e:Envelope xmlns:e="urn:e"/>')
    (tmp_path / "page.xsd").write_text(PAGE)
    with pytest.raises(ConfigurationError) as caught:
        Contract(Documents(tmp_path / "in.wsdl", _no_web)).compile_schema()
    assert says in caught.value.message


def test_a_name_without_a_schema_says_which_namespace_is_missing(tmp_path: Path) -> None:
    wsdl = tmp_path / "in.wsdl"
    wsdl.write_text(one_operation(IN.format("w:No").replace("<xs:element", '<xs:element xmlns:w="urn:w"', 1)))
    with pytest.raises(ConfigurationError, match="the WSDL has no schema with the namespace urn:w"):
        Contract(Documents(wsdl, _no_web))
    wsdl.write_text(GOOD.replace('element="v:In"', 'element="w:In" xmlns:w="urn:w"'))
    made = Contract(Documents(wsdl, _no_web))
    reason = "the element w:In of the message v:m does not exist: the WSDL has no schema with the namespace urn:w"
    assert made.unusable == {"Do": reason}


def test_an_error_of_the_whole_schema_names_the_document_and_not_a_name_of_ours(tmp_path: Path) -> None:
    (tmp_path / "in.wsdl").write_text(including("other.xsd"))
    (tmp_path / "other.xsd").write_text(SCHEMA.format(IN.format("xs:int")).replace('"urn:v"', '"urn:w"', 1))
    with pytest.raises(ConfigurationError) as caught:
        Contract(Documents(tmp_path / "in.wsdl", _no_web)).compile_schema()
    assert f"the included/redefined schema '{tmp_path / 'other.xsd'}' differs" in caught.value.message


@pytest.mark.parametrize("start", ["<!-- a -->\n", "<?xml version='1.0'?>\n", "<!-- ", "<!-- > --> ", " "])
@pytest.mark.parametrize("root", ["<html><title>", "<html>", "<schemas>"])
def test_a_hostile_start_of_a_document_costs_no_time(tmp_path: Path, start: str, root: str) -> None:
    file = tmp_path / "a.wsdl"
    file.write_text(start * 5000 + root * 50_000)  # a pattern that tries each way to divide these never ends
    with pytest.raises(ConfigurationError):
        Contract(Documents(file, _no_web))


@pytest.mark.parametrize("start", ["", "<?xml version='1.0'?>\n", "<!-- a -->\n" * 200, "<?xml?><!--a-->"])
def test_a_page_after_comments_is_still_known(tmp_path: Path, start: str) -> None:
    file = tmp_path / "a.wsdl"
    file.write_text(start + PAGE)
    with pytest.raises(ConfigurationError, match="is an HTML page with the title 'Sign in'"):
        Contract(Documents(file, _no_web))


# --- locations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("imported", ["a b.xsd", "a%20b.xsd", "URI", "sub\\..\\a%20b.xsd", " a b.xsd\n"])
@pytest.mark.parametrize("form", ["path", "uri", "upper", "localhost", "spaces"])
def test_a_file_may_be_named_by_its_path_or_its_url(tmp_path: Path, form: str, imported: str) -> None:
    place = tmp_path / "ä %41"
    place.mkdir()
    wsdl, schema = place / "in ü.wsdl", place / "a b.xsd"
    schema.write_text(SCHEMA.format(IN.format("xs:int")))
    wsdl.write_text(including(schema.as_uri() if imported == "URI" else imported))
    uri = wsdl.as_uri()
    given = {
        "path": str(wsdl),
        "uri": uri,
        "upper": uri.replace("file:", "FILE:"),
        "localhost": uri.replace("file://", "file://localhost"),
        "spaces": f" {wsdl}\n",
    }[form]
    made = Contract(Documents(given, _no_web))
    made.compile_schema()
    assert set(made.operations) == {"Do"}
    assert len(made.documents.schemas()) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("file://orders.wsdl", "names a file of the host orders.wsdl"),
        ("ftp://a/orders.wsdl", "neither an http or https URL nor a file"),
        ("localhost:80/orders?wsdl", "cannot be read"),
    ],
)
def test_a_location_that_cannot_be_loaded_is_refused_in_words(given: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Documents(given, _no_web).description()


def test_the_scheme_of_a_url_may_be_in_upper_case() -> None:
    assert set(Contract(Documents("HTTP://a.example/?wsdl", lambda url: GOOD.encode())).operations) == {"Do"}


def test_a_saved_wsdl_finds_the_saved_parts_of_a_dotnet_service(tmp_path: Path) -> None:
    (tmp_path / "in.wsdl").write_text(including("http://server.example/Orders.svc?xsd=xsd0"))
    with pytest.raises(ConfigurationError, match="another place"):
        Contract(Documents(tmp_path / "in.wsdl", _no_web))
    (tmp_path / "xsd0.xsd").write_text(SCHEMA.format(IN.format("xs:int")))
    Contract(Documents(tmp_path / "in.wsdl", _no_web)).compile_schema()


def _no_web(url: str) -> bytes:
    raise AssertionError(url)


@pytest.mark.parametrize("namespace", ["urn:My Service", "http://x.example/größe", "%zz"])
@pytest.mark.parametrize("place", ["all", "unused", "imported"])
def test_a_namespace_that_is_no_uri_is_named(tmp_path: Path, namespace: str, place: str) -> None:
    text, other = GOOD, SCHEMA.format("")
    if place == "all":
        text = text.replace('"urn:v"', f'"{namespace}"')
    elif place == "unused":
        text = text.replace("<xs:schema ", f'<xs:schema xmlns:u="{namespace}" ')
    else:
        text = including("b.xsd")
        other = other.replace(">", f' xmlns:u="{namespace}">', 1)
    (tmp_path / "a.wsdl").write_text(text, encoding="utf-8")
    (tmp_path / "b.xsd").write_text(other, encoding="utf-8")
    at_fault = tmp_path / ("b.xsd" if place == "imported" else "a.wsdl")
    with pytest.raises(ConfigurationError, match=re.escape(f"{at_fault} has the namespace {namespace!r}")):
        load_contract(documents_of(str(tmp_path / "a.wsdl"), SourceHTTP()), None)
    with pytest.raises(ConfigurationError, match="not a URI"):
        Destination(wsdl=tmp_path / "a.wsdl").operation("Do")
