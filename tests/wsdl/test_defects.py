"""Operations that the WSDL does not describe completely are named with the reason, and the others work."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from lxml import etree
from order_service import in_one_document

from holdfast.exceptions import ConfigurationError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents

DEFECTS = [
    ('<wsdl:input message="o:CancelOrder"', '<wsdl:input message="o:No"', "CancelOrder", "message o:No of its input"),
    ('<wsdl:output message="o:PriceResponse"', '<wsdl:output message="o:No"', "Price", "message o:No of its output"),
    ('message="o:OrderRefused"', 'message="o:No"', "SubmitOrder", "message o:No of its fault"),
    ('element="o:CancelOrder"', 'element="o:No"', "CancelOrder", "element o:No of the message o:CancelOrder"),
    ('element="o:CancelOrder"', 'type="o:No"', "CancelOrder", "type o:No of the message"),
    ('<wsdl:operation name="Price"', '<wsdl:operation name="CancelOrder"', "CancelOrder", "several operations"),
    ('<wsdl:operation name="Price"', '<wsdl:operation name="Cost"', "Price", "no such operation"),
]


@pytest.mark.parametrize(("old", "new", "name", "says"), DEFECTS, ids=lambda one: f"{one:.40}")
def test_an_incomplete_operation_is_named_with_the_reason(
    tmp_path: Path, old: str, new: str, name: str, says: str
) -> None:
    text = in_one_document().decode()
    assert old in text
    file = tmp_path / "a.wsdl"
    file.write_text(text.replace(old, new, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contract = Contract(Documents(file, lambda url: b""))
    assert contract.operations.keys() | contract.unusable.keys() >= {"SubmitOrder", "Price", "CancelOrder"}
    assert not contract.operations.keys() & contract.unusable.keys()
    with pytest.raises(ConfigurationError, match=f"{name}' of the WSDL is not usable.*{says}") as caught:
        contract.operation(name)
    assert "source.request(body, action=…)" in caught.value.remedy
    assert "@app.on(action)" in caught.value.remedy
    # A client of zeep's own may know more of it than Holdfast.
    body = etree.Element("{urn:other}Body")
    with pytest.raises(
        ConfigurationError, match=f"no usable operation .*{name}, because .*{says}.* with the body"
    ) as caught:
        contract.operation_of(body)
    assert "source.request(body, action=…)" in caught.value.remedy
    if "Price" in contract.operations:
        assert contract.request(contract.operation("Price"), (), {"item": "a"})


NO_NAMESPACE = """<wsdl:definitions xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <wsdl:types><xs:schema targetNamespace="urn:a"><xs:element name="A" type="xs:string"/></xs:schema></wsdl:types>
  <wsdl:message name="In"><wsdl:part name="p" element="a:A" xmlns:a="urn:a"/></wsdl:message>
  <wsdl:portType name="T"><wsdl:operation name="Good"><wsdl:input message="In"/></wsdl:operation>
    <wsdl:operation name="Bad"><wsdl:input message="No"/></wsdl:operation></wsdl:portType>
  <wsdl:binding name="B" type="T"><soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>
    <wsdl:operation name="Good"><wsdl:input><soap:body use="literal"/></wsdl:input></wsdl:operation>
    <wsdl:operation name="Bad"><wsdl:input><soap:body use="literal"/></wsdl:input></wsdl:operation></wsdl:binding>
  <wsdl:service name="S"><wsdl:port name="P" binding="B"><soap:address location="http://h/"/></wsdl:port></wsdl:service>
</wsdl:definitions>"""


def test_a_wsdl_without_a_namespace_names_its_incomplete_operation_too(tmp_path: Path) -> None:
    file = tmp_path / "a.wsdl"
    file.write_text(NO_NAMESPACE)
    contract = Contract(Documents(file, lambda url: b""))
    assert set(contract.operations) == {"Good"}
    assert contract.unusable == {"Bad": "the message No of its input does not exist"}
    assert b"hello" in contract.request(contract.operation("Good"), ("hello",), {})
