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


HEADERS = "@headers"
"""Key of the header blocks in the values of a message. XML has no such name."""


def json_value(text: bytes, unfit: Callable[[str], ConfigurationError]) -> Any:
    """Return the value in a text of JSON.

    Raises:
        ConfigurationError: The text is not JSON, or an object in it has a key twice.
    """
    try:
        # A float would lose digits of an xs:decimal.
        return json.loads(
            text, parse_float=Decimal, parse_int=_integer, parse_constant=_no_number, object_pairs_hook=_once
        )
    except RecursionError:
        raise unfit("it is nested too deeply") from None
    except EnvelopeError as error:
        raise unfit(error.message) from None
    except ValueError as error:  # UnicodeDecodeError too
        raise unfit(f"it is not JSON: {error}") from error


def json_object(text: bytes, unfit: Callable[[str], ConfigurationError]) -> dict[str, Any]:
    """Return the object in a text of JSON; errors as for :func:`json_value`, or it is not an object."""
    found = json_value(text, unfit)
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

    def message(self, where: str, text: bytes) -> tuple[bytes, bytes]:
        """Return the body and the header blocks for values in JSON.

        Raises:
            ConfigurationError: The text is not a JSON object, or its values do not fit the WSDL.
        """
        from holdfast.wsdl.contract import is_bare
        from holdfast.wsdl.values import CONTENT

        unfit = partial(self._no_values, where)
        is_value = is_bare(self._operation.input)
        values = json_value(text, unfit) if is_value else json_object(text, unfit)
        headers: Any = {}
        if isinstance(values, dict) and HEADERS in values:
            headers = values.pop(HEADERS)
            values = values[CONTENT] if is_value and set(values) == {CONTENT} else values
        given = ((values,), {}) if is_value else ((), values)
        try:
            body = self._contract.request(self._operation, *given, is_json=True)
            return body, self._contract.header_bytes(self._operation.headers, headers, is_json=True)
        except EnvelopeError as error:
            raise self._no_values(where, error.message, error.remedy) from error

    def reply(self, body: bytes, headers: bytes = b"") -> str:
        """Return the value of a reply as a line of JSON, with its header blocks if the WSDL declares any."""
        from holdfast.wsdl.values import CONTENT

        value, blocks = self._contract.reply_value(self._operation, body, is_json=True), self._operation.reply_headers
        if blocks:
            value = value if isinstance(value, dict) else {CONTENT: value}
            value = {**value, HEADERS: self._contract.header_values(blocks, headers, is_json=True)}
        return _json(value)

    def fault(self, fault: PeerFault) -> str:
        """Return the name and values of a declared fault, for its message; "" for another fault."""
        found = self._contract.fault(self._operation, fault, is_json=True)
        if not isinstance(found, OperationFault):
            return ""
        return f" ({found.name}: {_json(found.value)})"

    def _no_values(self, where: str, why: str, remedy: str = "") -> ConfigurationError:
        from holdfast.wsdl.contract import fields, is_bare

        known = ", ".join(fields(self._operation.input)) or "none"
        command = f"holdfast wsdl {shlex.quote(self._wsdl)}"
        hint = f"Write a JSON object. Its fields are: {known}. To see their types: {command}."
        if is_bare(self._operation.input):
            hint = f"Write one JSON value, without fields. To see its type: {command}."
        return ConfigurationError(f"{where} has no values for the operation: {why}", remedy=remedy or hint)


def read_values(wsdl: str, port: str | None, operation: str, http: SourceHTTP) -> OperationValues:
    """Load the WSDL and return the values of an operation.

    Raises:
        ConfigurationError: zeep is not installed, the WSDL cannot be used, or it has no such operation.
        TransportError: A document cannot be fetched.
    """
    from holdfast.endpoint.source.operation_calls import load_contract
    from holdfast.endpoint.source.wsdl import documents_of

    return OperationValues(load_contract(documents_of(wsdl, http), port), operation, wsdl)


_NOT_FINITE = {"NaN": "NaN", "Infinity": "INF", "-Infinity": "-INF"}
"""Python's names of numbers that JSON lacks -> their names in XML."""


def _integer(digits: str) -> int:
    """Return an integer.

    Raises:
        EnvelopeError: Python cannot hold it.
    """
    try:
        return int(digits)
    except ValueError:
        raise EnvelopeError(f"the number {digits[:20]}… has more digits than Python allows") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON.

    Raises:
        EnvelopeError: It has a key twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise EnvelopeError(f"it has the key {twice!r} twice in one object")
    return found


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
