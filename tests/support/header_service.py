"""A service whose WSDL binds header blocks to its operations, and the values of these."""

from __future__ import annotations

from base64 import b64decode
from decimal import Decimal
from typing import Any

from holdfast import Attachment, WithHeaders

SOAP = {"1.1": "http://schemas.xmlsoap.org/wsdl/soap/", "1.2": "http://schemas.xmlsoap.org/wsdl/soap12/"}
_WSDL = """<wsdl:definitions targetNamespace="urn:h" xmlns:h="urn:h" xmlns:o="urn:other"
    xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/" xmlns:soap="{soap}" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <wsdl:types>
    <xs:schema targetNamespace="urn:h" elementFormDefault="qualified">
      <xs:element name="Ask"><xs:complexType><xs:sequence><xs:element name="number" type="xs:int"/></xs:sequence>
      </xs:complexType></xs:element>
      <xs:element name="Session"><xs:complexType>
        <xs:sequence>
          <xs:element name="key" type="xs:string"/>
          <xs:element name="hop" type="xs:decimal" minOccurs="0" maxOccurs="unbounded"/>
        </xs:sequence>
        <xs:attribute name="of" type="xs:int"/>
      </xs:complexType></xs:element>
      <xs:element name="Trace" type="xs:base64Binary" nillable="true"/>
      <xs:element name="Tenant" type="xs:string"/>
      <xs:element name="Usage"><xs:complexType><xs:sequence><xs:element name="left" type="xs:decimal"/></xs:sequence>
      </xs:complexType></xs:element>
      <xs:element name="Unknown" type="xs:string"/>
    </xs:schema>
    <xs:schema targetNamespace="urn:other"><xs:element name="Tenant" type="xs:int"/></xs:schema>
  </wsdl:types>
  <wsdl:message name="m"><wsdl:part name="p" element="h:Ask"/></wsdl:message>
  <wsdl:message name="s"><wsdl:part name="session" element="h:Session"/><wsdl:part name="trace" element="h:Trace"/>
    <wsdl:part name="own" element="h:Tenant"/><wsdl:part name="other" element="o:Tenant"/></wsdl:message>
  <wsdl:message name="u"><wsdl:part name="usage" element="h:Usage"/></wsdl:message>
  <wsdl:message name="f"><wsdl:part name="unknown" element="h:Unknown"/></wsdl:message>
  <wsdl:portType name="T"><wsdl:operation name="Do"><wsdl:input message="h:m"/><wsdl:output message="h:m"/>
    </wsdl:operation><wsdl:operation name="Note"><wsdl:input message="h:m"/></wsdl:operation></wsdl:portType>
  <wsdl:binding name="B" type="h:T"><soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>
    <wsdl:operation name="Do"><soap:operation soapAction="urn:h/Do"/>
      <wsdl:input>
        <soap:header message="h:s" part="session" use="literal" wsdl:required="true">
          <soap:headerfault message="h:f" part="unknown" use="literal"/>
        </soap:header>
        <soap:header message="h:s" part="trace" use="literal"/>
        <soap:header message="h:s" part="own" use="literal"/>
        <soap:header message="h:s" part="other" use="literal"/>
        <soap:body use="literal"/>
      </wsdl:input>
      <wsdl:output><soap:header message="h:u" part="usage" use="literal"/><soap:body use="literal"/></wsdl:output>
    </wsdl:operation>
    <wsdl:operation name="Note"><soap:operation soapAction="urn:h/Note"/>
      <wsdl:input><soap:header message="h:s" part="own" use="literal"/><soap:body use="literal"/></wsdl:input>
    </wsdl:operation>
  </wsdl:binding>
  <wsdl:service name="S"><wsdl:port name="P" binding="h:B"><soap:address location="http://a.example/"/></wsdl:port>
  </wsdl:service>
</wsdl:definitions>"""
SESSION: dict[str, Any] = {"key": "Åsa", "hop": [Decimal("1.50")], "of": 7}
USAGE: dict[str, Any] = {"left": Decimal("2.5")}
_INCLUDE = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:a@b"/>'


def in_attachments(number: int, left: int) -> WithHeaders:
    """Return the reply of Do, with both values as attachments: four digits are base64 of some bytes."""
    body, usage = (_INCLUDE.replace("a@b", str(value)) for value in (number, left))
    files = [Attachment(b64decode(str(value)), content_id=str(value)) for value in (number, left)]
    headers = f'<Usage xmlns="urn:h"><left>{usage}</left></Usage>'.encode()
    return WithHeaders(f'<Ask xmlns="urn:h"><number>{body}</number></Ask>', headers, files)


def header_wsdl(soap: str = "1.1") -> bytes:
    """Return the WSDL: Do demands the header Session and returns Usage, Note may have the header Tenant."""
    return _WSDL.format(soap=SOAP[soap]).encode()
