"""A WSDL in words: its ports and what their policies require, its operations, and their types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.exceptions import ConfigurationError, clause
from holdfast.wire.policy.assertions import ENCRYPTION, PROTECTED_TOKENS, SIGNATURES, SIGNED_TOKENS, SYMMETRIC_KEY
from holdfast.wire.policy.choice import Need
from holdfast.wire.policy.settings import StatedSettings
from holdfast.wire.wsdl import Port
from holdfast.wsdl.contract import Contract, Operation
from holdfast.wsdl.shapes import Field, Shape, Shapes

_MET_BY_SYMMETRIC_KEY = (SIGNATURES, ENCRYPTION, PROTECTED_TOKENS, SIGNED_TOKENS)

_MOST_EXCLUDED = 8
"""Fields named after each alternative of a choice: all of hundreds would be a text of quadratic length."""


def facts(contract: Contract) -> dict[str, Any]:
    """Return what :func:`in_words` shows as data for JSON."""
    shapes = Shapes(contract)
    operations = [_operation_facts(one, shapes) for one in contract.operations.values()]
    return {
        "port": contract.port,
        "ports": [_port_facts(contract, name) for name in contract.description.port_names()],
        "operations": operations,
        "unusable": contract.unusable,
        "types": {one.name: _signature(one.fields) for one in shapes.named},
    }


def in_words(contract: Contract) -> str:
    """Return the ports, operations and types as text."""
    return "\n".join(_lines(facts(contract))) + "\n"


def _lines(told: dict[str, Any]) -> Iterator[str]:
    for port in told["ports"]:
        used = ", used here" if port["name"] == told["port"] and len(told["ports"]) > 1 else ""
        yield f"Port {port['name']}{used}: {port['address'] or 'not usable'}"
        for line in port["policy"]:
            yield f"  {line}"
    yield ""
    yield "Operations" if told["operations"] else "No operations"
    for one in told["operations"]:
        result = ", one-way" if one["one_way"] else f" -> {one['returns']}"
        yield f"  {one['name']}({one['takes']}){result}"
        if one["documentation"]:
            yield f"      {one['documentation']}"
        yield f"      action {one['action']}" + (f", reply {one['reply_action']}" if one["reply_action"] else "")
        for key, word in (("headers", "header"), ("reply_headers", "header of the reply")):
            for block in one[key]:
                yield f"      {word} {block}"
        for name, fields in one["faults"].items():
            yield f"      fault {name}({fields})"
    for name, reason in told["unusable"].items():
        yield f"  {name}: not usable, because {reason}"
    if told["types"]:
        yield ""
        yield "Types"
    for name, fields in told["types"].items():
        yield f"  {name}: {fields}"


def _operation_facts(operation: Operation, shapes: Shapes) -> dict[str, Any]:
    output, bare = shapes.output(operation), shapes.bare_input(operation)
    return {
        "name": operation.name,
        "documentation": operation.documentation,
        "takes": _signature(shapes.input(operation)) if bare is None else _typed(bare),
        "one_way": operation.is_one_way,
        "returns": "nothing" if output is None else _typed(output),
        "action": operation.actions.request,
        "reply_action": operation.actions.reply,
        "headers": [_signature([one]) for one in shapes.headers(operation.headers)],
        "reply_headers": [_signature([one]) for one in shapes.headers(operation.reply_headers)],
        "faults": {name: _signature(shapes.fields(one)) for name, one in operation.faults.items()},
    }


def _port_facts(contract: Contract, name: str) -> dict[str, Any]:
    try:
        port = contract.description.port(name)
    except ConfigurationError as error:
        return {"name": name, "address": "", "policy": [f"Not usable: {clause(error.message)}."]}
    return {"name": name, "address": port.address, "policy": list(_policy(port))}


def _policy(port: Port) -> Iterator[str]:
    soap = sorted({one.soap.value for one in port.versions})
    addressing = sorted({one.addressing.value for one in port.versions})
    rm = sorted({one.rm.value for one in port.versions})
    yield f"SOAP {' or '.join(soap)}, WS-Addressing {' or '.join(addressing)}"
    if port.is_reliable:
        demand = "possible, not required" if port.is_optional else "required"
        yield f"Reliable messaging is {demand}: WS-ReliableMessaging {' or '.join(rm)}"
    else:
        yield "The policy does not mention reliable messaging, so the service may reject it"
    yield from _settings(port.settings)
    if port.is_mtom:
        yield "Requires MTOM: large binary values travel as attachments"
    for need in _needs(port):
        yield f"Requires {need.words}: {need.assertion.local_name}, {need.assertion.place}"


def _needs(port: Port) -> list[Need]:
    """Return the demands of a port, each once, without those that a symmetric key meets as well."""
    abilities = {need.ability for need in port.needs}
    met = _MET_BY_SYMMETRIC_KEY if SYMMETRIC_KEY in abilities else ()
    first = {need.words: need for need in reversed(port.needs) if need.ability not in met}
    return [need for need in port.needs if first.get(need.words) is need]


def _settings(settings: StatedSettings) -> Iterator[str]:
    if settings.assurance is not None:
        yield f"Delivery assurance: {settings.assurance}"
    if settings.inactivity_timeout is not None:
        yield f"The service ends a Sequence after {settings.inactivity_timeout:g} seconds without traffic"
    if settings.retransmission_interval is not None:
        doubling = ", and doubles that time with each retransmission" if settings.has_backoff else ""
        yield f"A source retransmits after {settings.retransmission_interval:g} seconds{doubling}"
    elif settings.has_backoff:
        yield "A source doubles its waiting time with each retransmission"
    if settings.acknowledgement_interval is not None:
        yield f"The service acknowledges within {settings.acknowledgement_interval:g} seconds"
    if settings.request_interval is not None:
        yield f"Requests for acknowledgements are at least {settings.request_interval:g} seconds apart"
    if settings.buffer is not None:
        yield f"The service holds at most {settings.buffer} messages of a Sequence"


def _signature(fields: list[Field]) -> str:
    return ", ".join(f"{one.name}: {_typed(one)}{_may_be(one)}" for one in fields)


def _may_be(one: Field) -> str:
    more = len(one.excluded) - _MOST_EXCLUDED
    named = one.excluded if more <= 1 else (*one.excluded[:_MOST_EXCLUDED], f"{more} more")
    others = f", not with {' or '.join(named)}" if named else ""
    return f"{', optional' if one.is_optional else ''}{others}{', may be nil' if one.is_nillable else ''}"


def _typed(one: Field | Shape) -> str:
    if isinstance(one, Field):
        return f"list of {_typed(one.shape)}" if one.is_list else _typed(one.shape)
    text = " or ".join(map(_typed, one.choices)) or " or ".join(f'"{value}"' for value in one.values) or one.name
    return f"list of {text}" if one.is_list else text
