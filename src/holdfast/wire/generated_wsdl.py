"""A WSDL 1.1 for a destination without one: an operation for each action, with its policy. Bodies may be any XML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.wire.policy.assertions import ADDRESSING_METADATA
from holdfast.wire.policy.writing import WSP, PolicyVersion
from holdfast.wire.text import escape_attribute

NAMESPACE = "urn:holdfast:destination"
_NOT_IN_NAMES = re.compile(r"\W+", re.ASCII)


@dataclass(frozen=True, slots=True)
class GeneratedOperation:
    """An operation.

    Args:
        reply_action: That of its replies; "" for a one-way operation.
    """

    action: str
    reply_action: str = ""


def generated_wsdl(
    address: str, operations: Iterable[GeneratedOperation], policy: str, version: PolicyVersion = "1.5"
) -> bytes:
    """Return the document.

    Args:
        policy: The content of its wsp:Policy, with the prefix ``wsp``.
        version: Of WS-Policy.
    """
    named = _named(operations)
    abstract = "".join(
        f'    <wsdl:operation name="{name}">\n      {_message("input", one.action)}\n'
        + (f"      {_message('output', one.reply_action)}\n" if one.reply_action else "")
        + "    </wsdl:operation>\n"
        for name, one in named.items()
    )
    bound = "".join(
        f'    <wsdl:operation name="{name}">\n      <soap:operation soapAction="{escape_attribute(one.action)}"/>\n'
        '      <wsdl:input><soap:body use="literal"/></wsdl:input>\n'
        + ('      <wsdl:output><soap:body use="literal"/></wsdl:output>\n' if one.reply_action else "")
        + "    </wsdl:operation>\n"
        for name, one in named.items()
    )
    return f"""<?xml version="1.0" encoding="utf-8"?>
<wsdl:definitions name="Destination" targetNamespace="{NAMESPACE}" xmlns:tns="{NAMESPACE}"
    xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/" xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap12/"
    xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:wsam="{ADDRESSING_METADATA}" xmlns:wsp="{WSP[version]}">
  <wsdl:message name="Any"><wsdl:part name="body" type="xs:anyType"/></wsdl:message>
  <wsdl:portType name="DestinationPortType">
{abstract}  </wsdl:portType>
  <wsdl:binding name="DestinationBinding" type="tns:DestinationPortType">
    <wsp:Policy>{policy}</wsp:Policy>
    <soap:binding style="document" transport="http://schemas.xmlsoap.org/soap/http"/>
{bound}  </wsdl:binding>
  <wsdl:service name="DestinationService">
    <wsdl:port name="DestinationPort" binding="tns:DestinationBinding">
      <soap:address location="{escape_attribute(address)}"/>
    </wsdl:port>
  </wsdl:service>
</wsdl:definitions>
""".encode()


def _message(kind: str, action: str) -> str:
    return f'<wsdl:{kind} message="tns:Any" wsam:Action="{escape_attribute(action)}"/>'


def _named(operations: Iterable[GeneratedOperation]) -> dict[str, GeneratedOperation]:
    named: dict[str, GeneratedOperation] = {}
    for one in operations:
        words = [word for word in _NOT_IN_NAMES.split(one.action) if word]
        name = words[-1] if words and not words[-1][0].isdigit() else f"Operation{len(named) + 1}"
        # Two actions may end alike, but names of operations must differ.
        named[name if name not in named else f"{name}{len(named) + 1}"] = one
    return named
