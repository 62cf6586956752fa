"""Values of an operation in JSON, for ``holdfast send --operation``: files to bodies, and replies to lines of JSON."""

from __future__ import annotations

import datetime
import json
import math
import shlex
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Never

from holdfast.exceptions import ConfigurationError, EnvelopeError, OperationFault, PeerFault

if TYPE_CHECKING:
    from holdfast.endpoint.source.http_settings import SourceHTTP
    from holdfast.wsdl.contract import Contract


def json_object(text: bytes, unfit: Callable[[str], ConfigurationError]) -> dict[str, Any]:
    """Return the object in a text of JSON.

    Args:
        text: The text.
        unfit: Makes the error from the reason.

    Raises:
        ConfigurationError: The text is not JSON, or not an object.
    """
    try:
        # A float would lose digits of an xs:decimal.
        found = json.loads(text, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError too
        raise unfit(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise unfit(f"it is not an object but {type(found).__name__}")
    return found


class OperationValues:
    """The values of one operation.

    Raises:
        ConfigurationError: The contract has no such operation.
    """

    def __init__(self, contract: Contract, operation: str, wsdl: str) -> None:
        self._contract, self._wsdl = contract, wsdl
        self._operation = contract.operation(operation)
        self.action = self._operation.actions.request
        self.is_one_way = self._operation.is_one_way

    def body(self, where: str, text: bytes) -> bytes:
        """Return the body for values in JSON.

        Raises:
            ConfigurationError: The text is not a JSON object, or its values do not fit the WSDL.
        """
        values = json_object(text, partial(self._no_values, where))
        try:
            return self._contract.request(self._operation, (), values, is_json=True)
        except EnvelopeError as error:
            raise self._no_values(where, error.message, error.remedy) from error

    def reply(self, body: bytes) -> str:
        """Return the value of a reply as a line of JSON."""
        return _json(self._contract.reply_value(self._operation, body, is_json=True))

    def fault(self, fault: PeerFault) -> str:
        """Return the name and values of a declared fault, for its message; "" for another fault."""
        found = self._contract.fault(self._operation, fault, is_json=True)
        if not isinstance(found, OperationFault):
            return ""
        return f" ({found.name}: {_json(found.value)})"

    def _no_values(self, where: str, why: str, remedy: str = "") -> ConfigurationError:
        from holdfast.wsdl.contract import fields

        known = ", ".join(fields(self._operation.input)) or "none"
        command = f"holdfast wsdl {shlex.quote(self._wsdl)}"
        hint = f"Write a JSON object. Its fields are: {known}. To see their types: {command}."
        return ConfigurationError(f"{where} has no values for the operation: {why}", remedy=remedy or hint)


def read_values(wsdl: str, port: str | None, operation: str, http: SourceHTTP) -> OperationValues:
    """Load the WSDL and return the values of an operation.

    Args:
        wsdl: The URL or the file.
        port: The name of the wsdl:port, None for the only one.
        operation: The name of the operation.
        http: Its headers, TLS context and proxy apply to loading the WSDL.

    Raises:
        ConfigurationError: zeep is not installed, the WSDL cannot be used, or it has no such operation.
        TransportError: A document cannot be fetched.
    """
    from holdfast.endpoint.source.operation_calls import load_contract
    from holdfast.endpoint.source.wsdl import documents_of

    return OperationValues(load_contract(documents_of(wsdl, http), port), operation, wsdl)


_NOT_FINITE = {"NaN": "NaN", "Infinity": "INF", "-Infinity": "-INF"}
"""Python's names of numbers that JSON lacks -> their names in XML."""


def _no_number(name: str) -> Never:
    """Refuse a number that Python's parser accepts.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f'{name} is no number of JSON. Write the text "{_NOT_FINITE[name]}"')


def _json(value: Any) -> str:
    return json.dumps(_finite(value), default=_text, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return values with the texts of XML for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "INF" if value > 0 else "-INF"
    return value


def _text(value: Any) -> str:
    """Convert a value that JSON lacks: a decimal number, date or duration as in XML."""
    if isinstance(value, Decimal):
        return f"{value:f}"  # XML has no exponent in it
    if isinstance(value, datetime.timedelta) or hasattr(value, "tdelta"):
        from holdfast.wsdl.simple_types import duration_text

        return duration_text(value)
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat is not None else str(value)
