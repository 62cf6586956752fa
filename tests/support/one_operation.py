"""A WSDL with the one operation Do, whose request and reply are the element In of a given schema."""

from __future__ import annotations

_HEAD = """<wsdl:definitions targetNamespace="urn:v" xmlns:v="urn:v" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <wsdl:types><xs:schema targetNamespace="urn:v" elementFormDefault="qualified">"""
_TAIL = """</xs:schema></wsdl:types>
  <wsdl:message name="m"><wsdl:part name="p" element="v:In"/></wsdl:message>
  <wsdl:portType name="T"><wsdl:operation name="Do"><wsdl:input message="v:m"/><wsdl:output message="v:m"/>
    </wsdl:operation></wsdl:portType>
  <wsdl:binding name="B" type="v:T"><soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>
    <wsdl:operation name="Do"><soap:operation soapAction="urn:v/Do"/><wsdl:input><soap:body use="literal"/></wsdl:input>
      <wsdl:output><soap:body use="literal"/></wsdl:output></wsdl:operation></wsdl:binding>
  <wsdl:service name="S"><wsdl:port name="P" binding="v:B"><soap:address location="http://a.example/"/></wsdl:port>
  </wsdl:service>
</wsdl:definitions>"""


def one_operation(schema: str) -> str:
    """Return the WSDL. Its namespace is ``urn:v``, with the prefix ``v``."""
    return _HEAD + schema + _TAIL
