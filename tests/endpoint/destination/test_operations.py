"""Handlers of operations: what they take and return, what is refused, and what a wrong registration says.

Covers endpoint/destination/registration.py.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from one_operation import one_operation
from order_service import WSDL, Orders

from holdfast import (
    ApplicationFault,
    ConfigurationError,
    Destination,
    Message,
    OperationFault,
    PeerFault,
    Source,
    Versions,
)
from holdfast.core.versions import ALL_VERSIONS, SOAP, Addressing
from holdfast.endpoint.logs import MOST_LINES
from holdfast.wire.names import WSA_NS

PRICE = "urn:orders:Orders:PriceRequest"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ('<Price xmlns="urn:orders"><itm>x</itm></Price>', "'itm'"),
        ('<Price xmlns="urn:orders"><item>x</item><currency>GBP</currency></Price>', "'currency'"),
        ('<Price xmlns="urn:orders"><item>x</item><item>y</item></Price>', "'item'"),
        ('<CancelOrder xmlns="urn:orders"><number>1</number></CancelOrder>', "takes the element Price"),
        (
            "<Price><item>x</item></Price>",
            "takes the element {urn:orders}Price, not the element Price in no namespace",
        ),
        ("", "takes the element Price"),
    ],
)
async def test_an_invalid_body_gets_a_client_fault_that_names_the_element(serve: Any, body: str, named: str) -> None:
    url = (await serve(Orders().app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(PeerFault) as caught:
            await source.request(body, action=PRICE)
    assert caught.value.code == "Client"
    assert named in caught.value.message


async def test_the_operator_sees_each_invalid_request_and_few_lines(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = Orders().app
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        for _ in range(MOST_LINES + 2):
            with pytest.raises(PeerFault):
                await source.request('<Price xmlns="urn:orders"><itm>x</itm></Price>', action=PRICE)
    lines = [one.getMessage() for one in caplog.records if "message.refused" in one.getMessage()]
    assert len(lines) == MOST_LINES
    assert all("level='warning'" in one and PRICE in one and "'itm'" in one for one in lines)
    dispatcher: Any = app.running.dispatcher
    assert app.incidents["message.refused"] == MOST_LINES + 2
    assert (dispatcher.handling.succeeded, dispatcher.handling.failed) == (0, 0)


@pytest.mark.parametrize("name", ["Refused", "OrderRefused", "Other"])
async def test_a_wrong_fault_is_a_dead_letter_at_once(serve: Any, name: str) -> None:
    """A retry would repeat the mistake, and the Sequence would wait for it."""
    app = Destination(":memory:", wsdl=WSDL)

    @app.operation("SubmitOrder")
    async def submit(customer: str, lines: Any, wanted: Any) -> None:
        raise app.fault(name, "no", limit="many")

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(PeerFault):
            await source.call("SubmitOrder", customer="c", lines=[{"item": "nail", "quantity": 1}], wanted=None)
    dispatcher: Any = app.running.dispatcher
    assert (dispatcher.handling.dead, dispatcher.handling.failed) == (1, 1)


async def test_a_declared_fault_may_have_header_blocks(serve: Any) -> None:
    app = Destination(":memory:", wsdl=WSDL)

    @app.operation("SubmitOrder")
    async def submit(customer: str, lines: Any, wanted: Any) -> None:
        raise app.fault("OrderRefused", "no", item="nail", limit=1, _headers=b'<a xmlns="urn:a"/>')

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(OperationFault) as caught:
            await source.call("SubmitOrder", customer="c", lines=[{"item": "nail", "quantity": 1}], wanted=None)
    assert (caught.value.value, caught.value.header_bytes) == ({"item": "nail", "limit": 1}, b'<a xmlns="urn:a"/>')


async def test_a_one_way_operation_with_a_reply_address_gets_an_empty_body(serve: Any) -> None:
    orders = Orders()
    url = (await serve(orders.app)).url
    async with Source(url, ":memory:") as source:
        body = '<CancelOrder xmlns="urn:orders"><number>{}</number></CancelOrder>'
        reply = await source.request(body.format(7), action="urn:orders/CancelOrder")
        assert reply.body_bytes == b""
        with pytest.raises(PeerFault) as caught:
            await source.request(body.format("x"), action="urn:orders/CancelOrder")
    assert caught.value.code == "Sender"
    assert orders.cancelled == [7]


async def test_an_invalid_one_way_body_becomes_a_dead_letter_at_once(serve: Any) -> None:
    orders = Orders()
    url = (await serve(orders.app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        body = '<CancelOrder xmlns="urn:orders"><number>x</number></CancelOrder>'
        await (await source.send(body, action="urn:orders/CancelOrder")).acknowledged(60)
        dispatcher: Any = orders.app.running.dispatcher
        await dispatcher.done()
    assert (dispatcher.handling.dead, dispatcher.handling.failed, orders.cancelled) == (1, 1, [])


async def test_a_handler_may_take_the_message_and_return_all_fields(serve: Any) -> None:
    app = Destination(":memory:", wsdl=WSDL)
    seen: list[Message] = []

    @app.operation("Price")
    def price(letter: Message, item: str, currency: str | None) -> dict[str, Decimal]:
        seen.append(letter)
        assert currency is None
        return {"price": Decimal(7)}

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert await source.call("Price", item="nail") == 7
    assert seen[0].action == PRICE


async def test_a_returned_value_that_breaks_the_wsdl_is_a_dead_letter_and_a_fault(serve: Any) -> None:
    app = Destination(":memory:", wsdl=WSDL)

    @app.operation("Price")
    async def price(item: str, currency: str = "EUR") -> Any:
        return "cheap"

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(PeerFault):
            await source.call("Price", item="nail")
    dispatcher: Any = app.running.dispatcher
    assert dispatcher.handling.dead == 1


async def test_the_description_is_given_out_with_its_schema(serve: Any) -> None:
    url = (await serve(Orders().app)).url
    source = await Source.from_wsdl(f"{url}?wsdl", ":memory:")
    assert source.to == url
    async with source:
        await source.call("Price", item="nail")  # reads the schema at ?xsd=


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (lambda app: app.operation("Prices"), "Did you mean 'Price'"),
        (lambda app: app.operation("Price")(lambda item: 1), "does not take currency"),
        (lambda app: app.operation("Price")(lambda item, currency, colour: 1), "has no colour"),
        (lambda app: app.operation("Price")(7), "not a handler"),
        (lambda app: app.fault("Refused", "no"), "declares: OrderRefused"),
    ],
)
def test_a_wrong_registration_says_what_is_right(register: Callable[[Destination], Any], says: str) -> None:
    app = Destination(":memory:", wsdl=WSDL)
    with pytest.raises(ConfigurationError) as caught:
        register(app)
    assert says in str(caught.value)


def test_two_handlers_of_one_operation_are_refused() -> None:
    app = Destination(":memory:", wsdl=WSDL)
    app.operation("CancelOrder")(lambda number: None)
    with pytest.raises(ConfigurationError, match="two handlers"):
        app.operation("CancelOrder")(lambda number: None)


def test_a_destination_without_a_wsdl_offers_no_operations() -> None:
    with pytest.raises(ConfigurationError, match="has no WSDL"):
        Destination(":memory:").operation("Price")


def test_a_schema_that_cannot_be_compiled_is_refused_when_an_operation_is_offered(tmp_path: Path) -> None:
    schema = (WSDL.parent / "orders.xsd").read_text().replace('type="o:Line"', 'type="o:Linie"')
    (tmp_path / "orders.xsd").write_text(schema)
    (tmp_path / "orders.wsdl").write_text(WSDL.read_text())
    app = Destination(":memory:", wsdl=tmp_path / "orders.wsdl")
    with pytest.raises(ConfigurationError, match="Linie"):
        app.operation("Price")


async def test_a_handler_that_asks_for_the_transaction_needs_a_store_in_a_database() -> None:
    app = Destination(":memory:", wsdl=WSDL)

    @app.operation("CancelOrder")
    def cancel(number: int, connection: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="connection"):
        await app.start()


async def test_handlers_of_operations_and_of_actions_share_a_destination(serve: Any) -> None:
    orders = Orders()
    seen: list[str] = []
    orders.app.on("urn:other")(lambda message: seen.append(message.body.tag))
    url = (await serve(orders.app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        await (await source.send("<a/>", action="urn:other")).acknowledged(60)
        await (await source.call("CancelOrder", number=1)).acknowledged(60)
        dispatcher: Any = orders.app.running.dispatcher
        await dispatcher.done()
    assert (seen, orders.cancelled) == (["a"], [1])


async def test_a_handler_may_be_any_kind_of_function(serve: Any) -> None:
    app = Destination(":memory:", wsdl=WSDL)

    class Prices:
        async def __call__(self, **values: Any) -> Decimal:
            assert values == {"item": "nail", "currency": None}
            return Decimal(2)

    app.operation("Price")(Prices())
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert await source.call("Price", item="nail") == 2


EMPTY = """<wsdl:definitions targetNamespace="urn:e" xmlns:e="urn:e" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <wsdl:types><xs:schema targetNamespace="urn:e"><xs:element name="Text" type="xs:string"/>
    <xs:element name="Echo"><xs:complexType><xs:sequence><xs:element name="text" type="xs:string"/></xs:sequence>
      </xs:complexType></xs:element>
    <xs:element name="Echoed"><xs:complexType><xs:sequence><xs:element name="text" type="xs:string"/></xs:sequence>
      </xs:complexType></xs:element></xs:schema></wsdl:types>
  <wsdl:message name="none"/><wsdl:message name="text"><wsdl:part name="p" element="e:Text"/></wsdl:message>
  <wsdl:message name="echo"><wsdl:part name="p" element="e:Echo"/></wsdl:message>
  <wsdl:message name="echoed"><wsdl:part name="p" element="e:Echoed"/></wsdl:message>
  <wsdl:portType name="T">
    <wsdl:operation name="Ping"><wsdl:input message="e:none"/><wsdl:output message="e:none"/></wsdl:operation>
    <wsdl:operation name="Same"><wsdl:input message="e:text"/><wsdl:output message="e:text"/></wsdl:operation>
    <wsdl:operation name="Echo"><wsdl:input message="e:echo"/><wsdl:output message="e:echoed"/></wsdl:operation>
    <wsdl:operation name="Drop"><wsdl:input message="e:echoed"/><wsdl:output message="e:none"/></wsdl:operation>
  </wsdl:portType>
  <wsdl:binding name="B" type="e:T"><soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>
    {}
  </wsdl:binding>
  <wsdl:service name="S"><wsdl:port name="P" binding="e:B"><soap:address location="http://a.example/"/></wsdl:port>
  </wsdl:service>
</wsdl:definitions>"""
EMPTY = EMPTY.format(
    "".join(
        f'''<wsdl:operation name="{name}"><soap:operation soapAction="urn:e/{name}"/>
    <wsdl:input><soap:body use="literal"/></wsdl:input><wsdl:output><soap:body use="literal"/></wsdl:output>
    </wsdl:operation>'''
        for name in ("Ping", "Same", "Echo", "Drop")
    )
)


async def test_empty_texts_and_empty_bodies_are_values_and_not_none(serve: Any) -> None:
    app = Destination(":memory:", wsdl=EMPTY.encode())
    taken: list[Any] = []

    def same(text: str) -> str:
        taken.append(text)
        return text

    app.operation("Ping")(lambda: None)
    app.operation("Same")(same)
    app.operation("Echo")(same)
    app.operation("Drop")(lambda text: None)
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert [await source.call("Same", ""), await source.call("Echo", text=""), await source.call("Echo", "a")] == [
            "",
            "",
            "a",
        ]
        assert await source.call("Ping") == {}
        assert await source.call("Drop", text="a") == {}
    assert taken == ["", "", "a"]


ODD_NAMES = """<xs:element name="In"><xs:complexType><xs:sequence>
  <xs:element name="self" type="xs:int"/><xs:element name="claim-kind" type="xs:string"/>
  <xs:element name="class" type="xs:string"/></xs:sequence></xs:complexType></xs:element>"""


async def test_a_field_may_have_a_name_that_is_none_in_python(serve: Any) -> None:
    app = Destination(":memory:", wsdl=one_operation(ODD_NAMES).encode())

    @app.operation("Do")
    def do(**values: Any) -> dict[str, Any]:
        return values

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        values = {"self": 1, "claim-kind": "", "class": "b"}
        assert await source.call("Do", **values) == values


def test_the_remedy_for_such_a_name_is_python() -> None:
    app = Destination(":memory:", wsdl=one_operation(ODD_NAMES).encode())
    with pytest.raises(ConfigurationError, match=r"does not take self, claim-kind, class") as caught:
        app.operation("Do")(lambda x: None)
    assert caught.value.remedy.startswith("Write def <lambda>(self, **values).")
    code = caught.value.remedy.split(".")[0].removeprefix("Write ").replace("<lambda>", "do")
    compile(f"{code}: pass", "advice", "exec")


TWO_OPERATIONS = """<wsdl:definitions targetNamespace="urn:t" xmlns:t="urn:t" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <wsdl:types><xs:schema targetNamespace="urn:t">
    <xs:element name="A" type="xs:int"/><xs:element name="B" type="xs:int"/>
    <xs:element name="WrongA" type="t:Wrong"/><xs:element name="WrongB" type="t:Wrong"/>
    <xs:complexType name="Wrong"><xs:attribute name="of" type="xs:int"/></xs:complexType>
  </xs:schema></wsdl:types>
  <wsdl:message name="A"><wsdl:part name="p" element="t:A"/></wsdl:message>
  <wsdl:message name="B"><wsdl:part name="p" element="t:B"/></wsdl:message>
  <wsdl:message name="WrongA"><wsdl:part name="p" element="t:WrongA"/></wsdl:message>
  <wsdl:message name="WrongB"><wsdl:part name="p" element="t:WrongB"/></wsdl:message>
  <wsdl:portType name="T">
    <wsdl:operation name="A"><wsdl:input message="t:A"/><wsdl:output message="t:A"/>
      <wsdl:fault name="Wrong" message="t:WrongA"/><wsdl:fault name="OfA" message="t:WrongA"/></wsdl:operation>
    <wsdl:operation name="B"><wsdl:input message="t:B"/><wsdl:output message="t:B"/>
      <wsdl:fault name="Wrong" message="t:WrongB"/></wsdl:operation></wsdl:portType>
  <wsdl:binding name="Bound" type="t:T"><soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>
    <wsdl:operation name="A"><soap:operation soapAction="urn:A"/><wsdl:input><soap:body use="literal"/></wsdl:input>
      <wsdl:output><soap:body use="literal"/></wsdl:output>
      <wsdl:fault name="Wrong"><soap:fault name="Wrong" use="literal"/></wsdl:fault>
      <wsdl:fault name="OfA"><soap:fault name="OfA" use="literal"/></wsdl:fault></wsdl:operation>
    <wsdl:operation name="B"><soap:operation soapAction="urn:B"/><wsdl:input><soap:body use="literal"/></wsdl:input>
      <wsdl:output><soap:body use="literal"/></wsdl:output>
      <wsdl:fault name="Wrong"><soap:fault name="Wrong" use="literal"/></wsdl:fault></wsdl:operation></wsdl:binding>
  <wsdl:service name="S"><wsdl:port name="P" binding="t:Bound"><soap:address location="http://a/"/></wsdl:port>
  </wsdl:service></wsdl:definitions>"""


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_fault_is_the_one_that_its_own_operation_declares(serve: Any, is_async: bool) -> None:
    app = Destination(":memory:", wsdl=TWO_OPERATIONS.encode())

    def fail(value: int) -> int:
        raise app.fault("OfA" if value == 0 else "Wrong", "no", of=value)

    async def fail_later(value: int) -> int:
        return fail(value)

    for name in ("A", "B"):
        app.operation(name)(fail_later if is_async else fail)
    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        for name in ("A", "B"):
            with pytest.raises(OperationFault) as caught:
                await source.call(name, 1)
            assert (caught.value.name, caught.value.value) == ("Wrong", {"of": 1})
        with pytest.raises(OperationFault):
            await source.call("A", 0)
        with pytest.raises(PeerFault) as refused:
            await source.call("B", 0)
        assert not isinstance(refused.value, OperationFault)
    dispatcher: Any = app.running.dispatcher
    assert (dispatcher.handling.dead, dispatcher.handling.failed) == (1, 1)


STATED = 'm:Action="urn:stated" xmlns:m="http://www.w3.org/2007/05/addressing/metadata"'


@pytest.mark.parametrize("stated", ["", STATED], ids=["default", "stated"])
@pytest.mark.parametrize("name", ["Wrong", "OfA"])
@pytest.mark.parametrize("versions", [one for one in ALL_VERSIONS if one.soap is SOAP.V1_1], ids=str)
async def test_a_declared_fault_has_its_action_and_comes_back_as_the_declared_one(
    serve: Any, versions: Versions, name: str, stated: str
) -> None:
    """WS-Addressing 1.0 Metadata, 4.4.4; WS-Addressing 2004/08, 3.3.2. Only the action tells the two faults apart."""
    wsdl = TWO_OPERATIONS.replace(f'name="{name}" message="t:WrongA"', f'name="{name}" message="t:WrongA" {stated}')
    app = Destination(":memory:", wsdl=wsdl.encode())

    @app.operation("A")
    async def fail(value: int) -> int:
        raise app.fault(name, "no", of=value)

    url = (await serve(app)).url
    default = f"urn:t:T:A:Fault:{name}"
    if versions.addressing is not Addressing.V2005_08:
        default = f"{WSA_NS[versions.addressing]}/fault"
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:", versions=versions) as source:
        with pytest.raises(OperationFault) as caught:
            await source.call("A", 1)
    is_told_apart = bool(stated) or versions.addressing is Addressing.V2005_08
    assert caught.value.action == ("urn:stated" if stated else default)
    assert (caught.value.name, caught.value.value) == (name if is_told_apart else "Wrong", {"of": 1})


@pytest.mark.parametrize("action", ["", "urn:of/nobody"])
async def test_the_caller_knows_a_declared_fault_by_its_element_whatever_its_action(serve: Any, action: str) -> None:
    """WCF's services, and CXF's without WS-Addressing's metadata, send the action of all faults."""
    app = Destination(":memory:", wsdl=TWO_OPERATIONS.encode())

    @app.on("urn:A")
    async def fail(message: Message) -> str:
        raise ApplicationFault("no", detail='<WrongA xmlns="urn:t" of="1"/>', action=action)

    url = (await serve(app)).url
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        with pytest.raises(OperationFault) as caught:
            await source.call("A", 1)
    assert (caught.value.name, caught.value.value) == ("Wrong", {"of": 1})
    assert caught.value.action == (action or "http://www.w3.org/2005/08/addressing/soap/fault")


@pytest.mark.parametrize(
    ("handled", "told"), [((), False), (("A",), True), (("A", "B"), False), (("",), False), (("A", ""), False)]
)
async def test_operations_without_a_handler_are_logged_at_the_start(
    serve: Any, caplog: pytest.LogCaptureFixture, handled: tuple[str, ...], told: bool
) -> None:
    app = Destination(":memory:", wsdl=TWO_OPERATIONS.encode())
    for name in handled:
        if name:
            app.operation(name)(lambda value: value)
        else:
            app.on()(lambda message: None)
    await serve(app)
    lines = [line for line in caplog.messages if "wsdl.operations_without_handler" in line]
    assert len(lines) == told
    assert not told or "actions='urn:B'" in lines[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [('type="xs:int"', 'type="xs:nothing"'), ('name="of"', 'name="1"'), ('type="t:Wrong"', 'type="t:No"')],
)
def test_an_error_about_a_schema_names_its_file(tmp_path: Path, old: str, new: str) -> None:
    file = tmp_path / "two.wsdl"
    file.write_text(TWO_OPERATIONS.replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=str(file)) as caught:
        Destination(":memory:", wsdl=file).operation("A")
    assert ".invalid" not in str(caught.value)
