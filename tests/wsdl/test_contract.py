"""Values to bodies and back, in the styles of WSDL, and the actions of operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from order_service import WSDL

from holdfast.exceptions import ConfigurationError, EnvelopeError, OperationFault, PeerFault
from holdfast.wire.wsdl import Actions
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents
from holdfast.zeep import zeep_fault

RPC = """<wsdl:definitions targetNamespace="urn:rpc" xmlns:t="urn:rpc" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap12/" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <wsdl:types><xs:schema targetNamespace="urn:rpc"><xs:complexType name="Pair"><xs:sequence>
    <xs:element name="left" type="xs:int"/><xs:element name="right" type="xs:int"/></xs:sequence></xs:complexType>
  </xs:schema></wsdl:types>
  <wsdl:message name="i"><wsdl:part name="pair" type="t:Pair"/><wsdl:part name="scale" type="xs:int"/></wsdl:message>
  <wsdl:message name="o"><wsdl:part name="sum" type="xs:int"/></wsdl:message>
  <wsdl:portType name="T"><wsdl:operation name="Add"><wsdl:input message="t:i"/><wsdl:output message="t:o"/>
    </wsdl:operation></wsdl:portType>
  <wsdl:binding name="B" type="t:T"><soap:binding style="rpc" transport="http://schemas.xmlsoap.org/soap/http"/>
    <wsdl:operation name="Add"><soap:operation soapAction="urn:rpc/Add"/>
      <wsdl:input><soap:body use="literal" namespace="urn:rpc:calls"/></wsdl:input>
      <wsdl:output><soap:body use="literal" namespace="urn:rpc:calls"/></wsdl:output></wsdl:operation></wsdl:binding>
  <wsdl:service name="S"><wsdl:port name="P" binding="t:B"><soap:address location="http://a.example/"/></wsdl:port>
  </wsdl:service>
</wsdl:definitions>"""


def no_web(url: str) -> bytes:
    raise AssertionError(url)


@pytest.fixture
def orders() -> Contract:
    return Contract(Documents(WSDL, no_web))


def test_bodies_in_rpc_style_are_written_validated_and_read(tmp_path: Path) -> None:
    (tmp_path / "rpc.wsdl").write_text(RPC)
    made = Contract(Documents(tmp_path / "rpc.wsdl", no_web))
    add = made.operation("Add")
    assert add.actions == Actions("urn:rpc/Add", "urn:rpc:T:AddResponse", {}, {})
    values = {"pair": {"left": 1, "right": 2}, "scale": 3}
    body = made.request(add, (), values)
    assert b"urn:rpc:calls" in body
    assert made.request_values(add, body) == values
    assert made.reply_value(add, made.reply(add, 9)) == 9
    with pytest.raises(EnvelopeError, match="'left'"):
        made.request(add, (), {"pair": {"left": "x", "right": 2}, "scale": 3})


def test_actions_are_the_stated_ones_the_soap_actions_or_the_defaults(orders: Contract) -> None:
    """WS-Addressing 1.0 Metadata, 4.4."""
    assert orders.operation("SubmitOrder").actions == Actions(
        "urn:orders/SubmitOrder",
        "urn:orders/SubmitOrderReply",
        {"OrderRefused": "urn:orders/OrderRefused"},
        {"OrderRefused": "urn:orders:Orders:SubmitOrder:Fault:OrderRefused"},
    )
    assert orders.operation("Price").actions == Actions(
        "urn:orders:Orders:PriceRequest", "urn:orders:Orders:PriceResponse", {}, {}
    )
    assert orders.operation("CancelOrder").is_one_way


def test_the_documentation_of_an_operation_is_read(orders: Contract) -> None:
    assert orders.operation("SubmitOrder").documentation == "Submits an order and returns its receipt."


@pytest.mark.parametrize(
    "value", [{"number": 1, "total": "2"}, {"receipt": {"number": 1, "total": "2"}}], ids=["field", "all fields"]
)
def test_a_reply_is_written_from_its_only_field_or_from_all(orders: Contract, value: Any) -> None:
    submit = orders.operation("SubmitOrder")
    assert orders.reply_value(submit, orders.reply(submit, value))["number"] == 1


def test_a_fault_that_does_not_fit_its_declaration_stays_a_plain_fault(orders: Contract) -> None:
    submit = orders.operation("SubmitOrder")
    good = b'<OrderRefused xmlns="urn:orders"><item>a</item><limit>1</limit></OrderRefused>'
    assert isinstance(orders.fault(submit, PeerFault("no", detail=good)), OperationFault)
    for detail in (b"", b"text", b"<a/><b/>", good.replace(b"<limit>1", b"<limit>x"), b"<other/>"):
        fault = PeerFault("no", detail=detail)
        assert orders.fault(submit, fault) is fault


def test_a_fault_without_its_element_is_still_zeeps_fault(orders: Contract) -> None:
    assert zeep_fault(orders, PeerFault("no", code="Server")).message == "no"


def test_a_port_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match="OrdersPort"):
        Contract(Documents(WSDL, no_web), "Other")
