"""``Destination.operation``: a handler for an operation of the WSDL, which takes and returns values.

Owns the checks of such a handler and the wrapper that ``Destination.on`` registers. The conversion is
``holdfast.wsdl``'s, which is imported with the first operation: it needs the extra ``wsdl``.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.endpoint.destination.handlers import CONNECTION, InvalidBody
from holdfast.endpoint.envelopes.message import ApplicationFault, Message
from holdfast.exceptions import ConfigurationError, EnvelopeError

if TYPE_CHECKING:
    from holdfast.endpoint.destination.wsdl import ServiceDescription
    from holdfast.wsdl.contract import Contract, Operation

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

_BASE = "http://wsdl.invalid/"
"""Base URL of the WSDL's documents for the WSDL reader, which fetches nothing from it."""


class Operations:
    """The part of a Destination that offers operations by name."""

    _wsdl: ServiceDescription
    _contract: Contract | None = None

    def operation(self, name: str) -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function as the handler of an operation of the ``wsdl``. Needs the extra ``wsdl``.

        The handler takes the fields of the operation's input as arguments with their names, and may take the
        :class:`Message` in an argument annotated so. An absent optional field is None, or the argument's default. It
        returns what the operation returns: the value of the only field of the output, or a dict of its fields. To
        answer with a declared fault, it raises :meth:`fault`. Otherwise it behaves as a handler of :meth:`on`.

        The body is validated against the WSDL's schema before the handler is called. A request with an invalid body is
        answered with a Sender fault (Client in SOAP 1.1) that names the element. A one-way message with one becomes a
        dead letter.

        Args:
            name: The name of the operation in the WSDL.

        Raises:
            ConfigurationError: the destination has no WSDL, the WSDL has no such operation, the handler's arguments are
                not the fields of its input, zeep is not installed, or :meth:`on` raises it.
        """
        contract = self._offered()
        found = contract.operation(name)

        def register(handler: HandlerT) -> HandlerT:
            wrapped = _Wrapped(contract, found, handler).as_handler()
            self.on(found.actions.request, reply_action=found.actions.reply)(wrapped)
            return handler

        return register

    def fault(self, name: str, reason: str, /, *, sender: bool = True, **values: Any) -> ApplicationFault:
        """Return a fault that the ``wsdl`` declares, for a handler to raise.

        For example: ``raise app.fault("OrderRefused", "Too many lines.", limit=3)``.

        Args:
            name: The name of the fault in the WSDL.
            reason: English text for the requester.
            sender: Whether the requester is to blame (Sender) or not (Receiver).
            values: The fields of the fault's element, by name.

        Raises:
            ConfigurationError: no operation of the WSDL declares that fault.
            EnvelopeError: the values do not fit the fault's element; the message names the element.
        """
        contract = self._offered()
        declaring = [one for one in contract.operations.values() if name in one.faults]
        if not declaring:
            known = sorted({fault for one in contract.operations.values() for fault in one.faults})
            raise ConfigurationError(
                f"No operation of the WSDL declares the fault {name!r}.",
                remedy=f"The WSDL declares: {', '.join(known) or 'none'}.",
            )
        detail = contract.fault_detail(declaring[0], name, values)
        action = declaring[0].actions.faults.get(name, "")
        return ApplicationFault(reason, sender=sender, detail=detail, action=action)

    def _offered(self) -> Contract:
        if self._contract is None:
            if not self._wsdl.is_given:
                raise ConfigurationError(
                    "The destination has no WSDL, so it knows no operations.",
                    remedy='Give it one: Destination(wsdl="service.wsdl"). Without one, use @app.on(action).',
                )
            from holdfast.wsdl.extra import require_zeep

            require_zeep()
            from holdfast.wsdl.contract import Contract
            from holdfast.wsdl.documents import Documents

            documents = Documents(f"{_BASE}?wsdl", lambda url: self._wsdl.document(url, _BASE))
            contract = Contract(documents, None)
            contract.compile_schema()
            self._contract = contract
        return self._contract

    if TYPE_CHECKING:

        def on(self, action: str = "", *, reply_action: str = "") -> Callable[[Any], Any]:
            """See :meth:`Destination.on`."""


class _Wrapped:
    """A handler of values, as a handler of messages."""

    def __init__(self, contract: Contract, operation: Operation, handler: Callable[..., Any]) -> None:
        from holdfast.wsdl.contract import fields

        if not callable(handler):
            raise ConfigurationError(f"{handler!r} is not a handler.", remedy="A handler is a function.")
        self._contract, self._operation, self._handler = contract, operation, handler
        self._name = getattr(handler, "__name__", type(handler).__name__)
        self._fields = fields(operation.input)
        self._parameters = dict(inspect.signature(handler).parameters)
        self._message = self._take_message()
        self.takes_connection = self._parameters.pop(CONNECTION, None) is not None and CONNECTION not in self._fields
        self._check_parameters()

    def as_handler(self) -> Callable[..., Any]:
        """Return the handler to register."""
        if inspect.iscoroutinefunction(self._handler):

            async def handle(message: Message) -> Any:
                return self._write(await self._call(message))

        elif self.takes_connection:

            def handle(message: Message, connection: Any) -> Any:  # type: ignore[misc]
                return self._write(self._call(message, connection=connection))

        else:

            def handle(message: Message) -> Any:  # type: ignore[misc]
                result = self._call(message)
                return self._await(result) if inspect.isawaitable(result) else self._write(result)

        handle.__qualname__ = handle.__name__ = getattr(self._handler, "__qualname__", "handler")
        handle.__annotations__ = {"return": None if self._operation.is_one_way else bytes}
        return handle

    async def _await(self, result: Awaitable[Any]) -> Any:
        return self._write(await result)

    def _call(self, message: Message, **further: Any) -> Any:
        try:
            values = self._contract.request_values(self._operation, message.body_bytes)
        except EnvelopeError as error:
            if self._operation.is_one_way:
                raise InvalidBody(error.message) from None
            raise ApplicationFault(error.message) from None
        if self._message:
            further[self._message] = message
        if not self._fields:
            is_empty = self._operation.input is None or values in (None, {})
            return self._handler(*(() if is_empty else (values,)), **further)
        given = {name: value for name, value in values.items() if value is not None or not self._has_default(name)}
        return self._handler(**given, **further)

    def _write(self, result: Any) -> bytes | None:
        if self._operation.is_one_way:
            return None
        try:
            return self._contract.reply(self._operation, result) or None
        except EnvelopeError as error:
            raise InvalidBody(error.message) from None

    def _take_message(self) -> str:
        """Return the name of the argument with the annotation Message, "" without one."""
        try:
            hints = typing.get_type_hints(self._handler)
        except Exception:  # an annotation is any expression, and may use names that only a type checker imports
            hints = {}
        for name, parameter in list(self._parameters.items()):
            if hints.get(name, parameter.annotation) is Message and name not in self._fields:
                del self._parameters[name]
                return name
        return ""

    def _has_default(self, name: str) -> bool:
        parameter = self._parameters.get(name)
        return parameter is not None and parameter.default is not inspect.Parameter.empty

    def _check_parameters(self) -> None:
        if not self._fields:
            return
        named = {
            name: one
            for name, one in self._parameters.items()
            if one.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        }
        takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in self._parameters.values())
        missing = [] if takes_all else [name for name in self._fields if name not in named]
        unknown = [
            name for name, one in named.items() if name not in self._fields and one.default is inspect.Parameter.empty
        ]
        if missing or unknown:
            raise ConfigurationError(
                f"The arguments of the handler {self._name} are not the fields of the operation "
                f"{self._operation.name}: "
                + "; ".join(
                    [f"it does not take {', '.join(missing)}"] * bool(missing)
                    + [f"the operation has no {', '.join(unknown)}"] * bool(unknown)
                ),
                remedy=f"Write def {self._name}({', '.join(self._fields)}).",
            )
