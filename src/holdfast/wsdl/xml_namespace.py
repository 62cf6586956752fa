"""The schema of the XML namespace (xml:lang and others), which many schemas import from w3.org. Loaded from nowhere."""

from __future__ import annotations

from holdfast.http.urls import split_url

XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"

XML_SCHEMA = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"
    targetNamespace="http://www.w3.org/XML/1998/namespace" xml:lang="en">
  <xs:attribute name="lang" type="xs:language"/>
  <xs:attribute name="space">
    <xs:simpleType><xs:restriction base="xs:NCName">
      <xs:enumeration value="default"/><xs:enumeration value="preserve"/>
    </xs:restriction></xs:simpleType>
  </xs:attribute>
  <xs:attribute name="base" type="xs:anyURI"/>
  <xs:attribute name="id" type="xs:ID"/>
  <xs:attributeGroup name="specialAttrs">
    <xs:attribute ref="xml:lang"/><xs:attribute ref="xml:space"/><xs:attribute ref="xml:base"/>
    <xs:attribute ref="xml:id"/>
  </xs:attributeGroup>
</xs:schema>
"""


def is_xml_schema(location: str) -> bool:
    """Whether a location is one of w3.org's for the schema of the XML namespace, or the namespace itself."""
    parts = split_url(location)
    return location == XML_NAMESPACE or (parts.hostname == "www.w3.org" and parts.path.endswith("/xml.xsd"))
