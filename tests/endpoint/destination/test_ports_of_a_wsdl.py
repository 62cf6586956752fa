"""A WSDL with several portTypes, and header blocks that it declares for an operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast import ConfigurationError, Destination, Message, PeerFault, Source
from holdfast.core.faults import WS_SECURITY
from holdfast.wire.wsdl import Description
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents
from holdfast.wsdl.words import in_words

SOAP = "http://schemas.xmlsoap.org/wsdl/soap/"
WSDL = f"""<wsdl:definitions targetNamespace="urn:b" xmlns:t="urn:b" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="{SOAP}" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <wsdl:types><xs:schema targetNamespace="urn:b" elementFormDefault="qualified">
    <xs:element name="Ask"><xs:complexType><xs:sequence><xs:element name="number" type="xs:int"/></xs:sequence>
    </xs:complexType></xs:element>
    <xs:element name="Tenant" type="xs:string"/>
  </xs:schema></wsdl:types>
  <wsdl:message name="m"><wsdl:part name="p" element="t:Ask"/></wsdl:message>
  <wsdl:message name="h"><wsdl:part name="tenant" element="t:Tenant"/></wsdl:message>
  {{}}
  <wsdl:service name="S">{{}}</wsdl:service>
</wsdl:definitions>"""
OPERATION = """<wsdl:operation name="{}"><wsdl:input message="t:m"/><wsdl:output message="t:m"/></wsdl:operation>"""
BOUND = """<wsdl:operation name="{name}"><soap:operation soapAction="urn:{kind}/{name}"/>
  <wsdl:input><soap:body use="literal"/>{header}</wsdl:input><wsdl:output><soap:body use="literal"/></wsdl:output>
</wsdl:operation>"""
HEADER = """<soap:header message="t:h" part="tenant" use="literal"/>"""
STYLE = '<soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>'
PORTS = {"Orders": ("Count", "Place"), "Invoices": ("Count", "Bill"), "Legacy": ("Old",)}


def wsdl(ports: dict[str, tuple[str, ...]] = PORTS, with_header: str = "Place") -> bytes:
    """Return a WSDL with a port of each kind, where Place has a header block."""
    kinds, places = "", ""
    for kind, names in ports.items():
        bound = [BOUND.format(name=one, kind=kind, header=HEADER if one == with_header else "") for one in names]
        kinds += f'<wsdl:portType name="{kind}">{"".join(map(OPERATION.format, names))}</wsdl:portType>'
        kinds += f'<wsdl:binding name="{kind}" type="t:{kind}">{STYLE}{"".join(bound)}'
        kinds += "</wsdl:binding>"
        places += f'<wsdl:port name="{kind}Port" binding="t:{kind}"><soap:address location="http://b.example/{kind}"/>'
        places += "</wsdl:port>"
    return WSDL.format(kinds, places).encode()


def destination() -> Destination:
    """Return one with handlers for operations of two ports."""
    app = Destination(":memory:", wsdl=wsdl())
    app.operation("Count")(lambda number: number)
    app.operation("Count", port="InvoicesPort")(lambda number: number + 100)
    app.operation("Bill", port="InvoicesPort")(lambda number: number + 200)
    return app


async def test_one_destination_offers_operations_of_several_ports(serve: Any) -> None:
    url = (await serve(destination())).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:", port="OrdersPort") as orders:
        assert await orders.call("Count", number=1) == 1
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:", port="InvoicesPort") as invoices:
        assert await invoices.call("Count", number=1) == 101
        assert await invoices.call("Bill", number=1) == 201


async def test_a_port_has_the_address_of_the_destination_only_if_that_offers_it(serve: Any) -> None:
    url = (await serve(destination())).url
    assert await addresses(url) == {"OrdersPort": url, "InvoicesPort": url, "LegacyPort": "http://b.example/Legacy"}


@pytest.mark.parametrize("action", ["", "urn:another"])
async def test_every_port_has_it_if_no_port_tells_what_the_destination_offers(serve: Any, action: str) -> None:
    app = Destination(":memory:", wsdl=wsdl())
    app.on(action)(lambda message: None)
    url = (await serve(app)).url
    assert set((await addresses(url)).values()) == {url}


async def addresses(url: str) -> dict[str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}?wsdl") as answer:
        description = Description()
        description.add(await answer.read(), url)
    return {name: description.port(name).address for name in description.port_names()}


def test_an_operation_of_another_port_is_named_with_that_port() -> None:
    app = Destination(":memory:", wsdl=wsdl())
    with pytest.raises(ConfigurationError, match="OrdersPort of the WSDL has no operation 'Bill'") as caught:
        app.operation("Bill")
    assert "port='InvoicesPort'" in caught.value.remedy
    with pytest.raises(ConfigurationError, match="no SOAP port 'InvoicePort'") as caught:
        app.operation("Bill", port="InvoicePort")
    assert "Did you mean 'InvoicesPort'?" in caught.value.remedy


def test_operations_of_two_port_types_with_one_name_have_their_own_actions() -> None:
    description = Description()
    description.add(wsdl(), "t")
    assert description.operations() == {
        f"urn:{kind}/{name}": f"urn:b:{kind}:{name}Response" for kind, names in PORTS.items() for name in names
    }


# --- header blocks ---------------------------------------------------------------------------------------------------

TENANT = (
    '<b:Tenant xmlns:b="urn:b" xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" s:mustUnderstand="1">A</b:Tenant>'
)


async def test_a_header_that_the_wsdl_declares_for_an_operation_is_understood(serve: Any) -> None:
    app = Destination(":memory:", wsdl=wsdl())
    seen: list[list[str | None]] = []

    @app.operation("Place")
    def place(number: int, message: Message) -> int:
        seen.append([one.text for one in message.headers])
        return number

    app.operation("Count")(lambda number: number)
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:", port="OrdersPort") as source:
        assert await source.call("Place", number=1, _headers=TENANT.encode()) == 1
        for operation, header in (("Count", TENANT), ("Place", TENANT.replace("Tenant", "Other"))):
            with pytest.raises(PeerFault, match="does not understand the mandatory header"):
                await source.call(operation, number=1, _headers=header.encode())
    assert seen == [["A"]]


async def test_a_security_header_is_not_understood_because_the_wsdl_declares_it(serve: Any) -> None:
    namespace = WS_SECURITY[1:].partition("}")[0]
    text = wsdl().replace(b'element="t:Tenant"', b'xmlns:w="%s" element="w:Security"' % namespace.encode())
    app = Destination(":memory:", wsdl=text)
    app.on("urn:Orders/Place")(lambda message: "<a/>")
    url = (await serve(app)).url
    block = TENANT.replace("urn:b", namespace).replace("Tenant", "Security")
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:", port="OrdersPort") as source:
        with pytest.raises(PeerFault, match="does not understand the mandatory header"):
            await source.request("<a/>", action="urn:Orders/Place", headers=block.encode())


def test_the_headers_of_an_operation_are_shown(tmp_path: Path) -> None:
    (tmp_path / "b.wsdl").write_bytes(wsdl())
    made = Contract(Documents(tmp_path / "b.wsdl", lambda url: b""))
    assert [one.name for one in made.operation("Place").headers.values()] == ["{urn:b}Tenant"]
    assert not made.operation("Count").headers
    assert "header Tenant: string, optional" in in_words(made)


# --- further documents -----------------------------------------------------------------------------------------------


def test_a_wsdl_in_bytes_cannot_import_files() -> None:
    text = wsdl().replace(b"<wsdl:message", b'<wsdl:import namespace="urn:c" location="more.wsdl"/><wsdl:message', 1)
    with pytest.raises(ConfigurationError, match=r"imports more\.wsdl, and it is given as bytes") as caught:
        Destination(":memory:", wsdl=text)
    assert "Give the path" in caught.value.remedy


def test_a_schema_at_another_place_is_refused_in_words_for_the_author(tmp_path: Path) -> None:
    place = b'<xs:import namespace="urn:c" schemaLocation="http://c.example/c.xsd"/><xs:element name="Ask">'
    (tmp_path / "b.wsdl").write_bytes(wsdl().replace(b'<xs:element name="Ask">', place))
    with pytest.raises(ConfigurationError, match=r"imports http://c\.example/c\.xsd") as caught:
        Destination(":memory:", wsdl=tmp_path / "b.wsdl").operation("Count")
    assert caught.value.remedy.startswith("Save that document next to the WSDL")


def test_an_argument_for_the_message_has_no_name_of_a_field() -> None:
    app = Destination(":memory:", wsdl=wsdl())

    def count(number: Message) -> None: ...

    with pytest.raises(ConfigurationError, match="argument number of the handler count is annotated with Message"):
        app.operation("Count")(count)


def test_an_action_of_replies_that_cannot_be_sent_is_named_with_its_operation() -> None:
    wrong = wsdl().replace(b'<wsdl:output message="t:m"/>', b'<wsdl:output message="t:m" wsam:Action="urn:a b"/>')
    wrong = wrong.replace(b"wsam:Action", b'xmlns:wsam="http://www.w3.org/2007/05/addressing/metadata" wsam:Action')
    with pytest.raises(ConfigurationError, match=r"operation Place of the WSDL has replies.*'urn:a b'") as caught:
        Destination(":memory:", wsdl=wrong).operation("Place")
    assert "wsam:Action" in caught.value.remedy
