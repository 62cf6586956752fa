"""OperationHandler: a handler of values for an operation of the WSDL, as a handler of messages.

This module owns the checks of such a handler, and its conversions. ``holdfast.wsdl`` converts.
"""

from __future__ import annotations

import asyncio
import inspect
import keyword
import typing
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from holdfast.endpoint.destination.http_settings import DestinationHTTP
from holdfast.endpoint.envelopes.attachments import (
    STORED_FROM,
    WithAttachments,
    extract_values,
    inlined_body,
    inlined_headers,
    inlined_size,
)
from holdfast.endpoint.envelopes.message import ApplicationFault, Message
from holdfast.endpoint.handling.handlers import CONNECTION, InvalidBody, InvalidRequest, check_runs
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError, EnvelopeError, LimitExceeded, clause
from holdfast.wire.attachments.references import has_includes

if TYPE_CHECKING:
    from holdfast.wsdl.contract import Contract, Operation


_LARGE_MESSAGES = ThreadPoolExecutor(1, "holdfast-values")
"""Reads the values of large messages, of all handlers: several at a time would need a multiple of the memory."""
CURRENT: ContextVar[tuple[Contract, Operation] | None] = ContextVar("holdfast_operation", default=None)
"""The operation of the running handler, with its contract."""


class SoapHeaders(dict[str, Any]):
    """The values of the header blocks of a message, by their local names: those that the WSDL declares for the request.

    A handler of ``@app.operation`` receives them in an argument that is annotated with this class. An absent block is
    None.
    """


class OperationHandler:
    """A handler of values, as a handler of messages."""

    def __init__(
        self,
        contract: Contract,
        operation: Operation,
        handler: Callable[..., Any],
        http: Callable[[], DestinationHTTP],
    ) -> None:
        from holdfast.wsdl.contract import fields, is_bare

        check_runs(handler)
        self._contract, self._operation, self._handler, self._http = contract, operation, handler, http
        self._name = getattr(handler, "__name__", type(handler).__name__)
        self._has_returned = False
        """Whether the handler of a one-way operation has returned a value, which is reported once."""
        self._fields = fields(operation.input)
        self._is_bare = is_bare(operation.input)
        self._signature = inspect.signature(handler)
        self._parameters = dict(self._signature.parameters)
        self._takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in self._parameters.values())
        self._message, self._headers = self._take(Message), self._take(SoapHeaders)
        self.takes_connection = self._parameters.pop(CONNECTION, None) is not None and CONNECTION not in self._fields
        self._check_parameters()

    def as_handler(self) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(self._handler):

            async def handle(message: Message) -> Any:
                is_large = _is_large(message)
                read = await asyncio.wrap_future(self._reading(message)) if is_large else self._read(message)
                return await self._await(message, self._call(message, read))

        elif self.takes_connection:

            def handle(message: Message, connection: Any) -> Any:  # type: ignore[misc]
                with self._as_current():
                    return self._write(message, self._call(message, self._read_here(message), connection=connection))

        else:

            def handle(message: Message) -> Any:  # type: ignore[misc]
                with self._as_current():
                    result = self._call(message, self._read_here(message))
                return self._await(message, result) if inspect.isawaitable(result) else self._write(message, result)

        handle.__qualname__ = handle.__name__ = getattr(self._handler, "__qualname__", "handler")
        handle.__annotations__ = {"return": None if self._operation.is_one_way else bytes}
        return handle

    async def _await(self, message: Message, result: Awaitable[Any]) -> Any:
        with self._as_current():
            return self._write(message, await result)

    @contextmanager
    def _as_current(self) -> Iterator[None]:
        token = CURRENT.set((self._contract, self._operation))
        try:
            yield
        except ApplicationFault as fault:
            try:
                fault.headers = self._contract.header_bytes(self._operation.fault_headers, fault.headers)
            except EnvelopeError as error:
                raise InvalidBody(error.message, remedy=error.remedy) from None
            raise
        finally:
            CURRENT.reset(token)

    def _reading(self, message: Message) -> Future[tuple[Any, dict[str, Any]]]:
        return _LARGE_MESSAGES.submit(self._read, message)

    def _read_here(self, message: Message) -> tuple[Any, dict[str, Any]]:
        """Read it in a thread that may wait."""
        return self._reading(message).result() if _is_large(message) else self._read(message)

    def _read(self, message: Message) -> tuple[Any, dict[str, Any]]:
        """Return the values of a request, and those of its header blocks as an argument."""
        try:
            most = self._http().envelopes.max_bytes
            body = inlined_body(message.body_bytes, message.attachments, most)
            values = self._contract.request_values(self._operation, body)
            declared = self._operation.headers
            if not self._headers:
                declared.check_present(message.header_bytes)
                return values, {}
            blocks = inlined_headers(message.header_bytes, message.attachments, most)
            return values, {self._headers: SoapHeaders(self._contract.header_values(declared, blocks))}
        except LimitExceeded as error:
            raise InvalidRequest(f"{clause(error.message)}. {error.remedy}") from None
        except EnvelopeError as error:
            raise InvalidRequest(error.message) from None

    def _call(self, message: Message, read: tuple[Any, dict[str, Any]], **further: Any) -> Any:
        values, headers = read
        further |= headers
        if self._message:
            further[self._message] = message
        if not self._fields:
            is_empty = not self._is_bare and values in (None, {})
            return self._handler(*(() if is_empty else (values,)), **further)
        given = {name: value for name, value in values.items() if value is not None or not self._has_default(name)}
        if not self._takes_all:
            for key in self._contract.KEYS:  # of another type or element than the declared one: no argument's name
                given.pop(key, None)
        return self._handler(**given, **further)

    def _write(self, message: Message, result: Any) -> bytes | WithAttachments | None:
        if self._operation.is_one_way:
            if result is not None and not self._has_returned:
                self._has_returned = True
                log.warning("reply.not_requested", action=message.action, handler=self._name)
            return None
        if not isinstance(result, WithAttachments):
            result = WithAttachments(result, ())
        value, attachments = result.body, [*result.attachments]
        try:
            body = self._contract.reply(self._operation, value)
            headers = self._contract.header_bytes(self._operation.reply_headers, result.headers)
        except EnvelopeError as error:
            raise InvalidBody(error.message, remedy=error.remedy) from None
        if self._returns_attachments(message):
            body, binary = extract_values(body, value)
            attachments += binary
        return WithAttachments(body, attachments, headers) if attachments or headers else body

    def _returns_attachments(self, message: Message) -> bool:
        given = self._http().mtom
        if given is not None:
            return given
        return self._contract.demands_mtom or (bool(message.attachments) and has_includes(message.body_bytes))

    def _take(self, kind: type) -> str:
        """Return the name of the argument with an annotation, "" without one; it is then no field."""
        try:
            hints = typing.get_type_hints(self._handler)
        except Exception:  # an annotation is any expression, and may use names that only a type checker imports
            hints = {}
        for name, parameter in list(self._parameters.items()):
            if hints.get(name, parameter.annotation) is kind:
                if name in self._fields:
                    raise ConfigurationError(
                        f"The argument {name} of the handler {self._name} is annotated with {kind.__name__}, but it "
                        f"has the name of a field of the operation {self._operation.name}.",
                        remedy="Give the argument another name.",
                    )
                del self._parameters[name]
                return name
        return ""

    def _has_default(self, name: str) -> bool:
        parameter = self._parameters.get(name)
        return parameter is not None and parameter.default is not inspect.Parameter.empty

    def _check_parameters(self) -> None:
        if not self._fields:
            self._check_without_fields()
            return
        named = {
            name: one
            for name, one in self._parameters.items()
            if one.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        }
        missing = [] if self._takes_all else [name for name in self._fields if name not in named]
        unknown = [
            name for name, one in named.items() if name not in self._fields and one.default is inspect.Parameter.empty
        ]
        if missing or unknown:
            plain = [name for name in self._fields if name.isidentifier() and not keyword.iskeyword(name)]
            values = ["**values"] * (len(plain) < len(self._fields))
            raise ConfigurationError(
                f"The arguments of the handler {self._name} are not the fields of the operation "
                f"{self._operation.name}: "
                + "; ".join(
                    [f"it does not take {', '.join(missing)}"] * bool(missing)
                    + [f"the operation has no {', '.join(unknown)}"] * bool(unknown)
                ),
                remedy=f"Write def {self._name}({', '.join([*plain, *values])})."
                + " Fields without a Python name are in values." * len(values),
            )

    def _check_without_fields(self) -> None:
        """Check that the handler of an input without fields takes its value, or no value if it has none."""
        element, further = self._operation.input, [self._message, self._headers, CONNECTION * self.takes_connection]
        may_have_value = self._is_bare or (
            element is not None and (element.members or self._contract.substitutes.types.derived(element.type))
        )
        forms = [("value",)] * bool(may_have_value) + [()] * (not self._is_bare)
        errors = []
        for form in forms:
            try:
                self._signature.bind(*form, **{name: None for name in further if name})
            except TypeError as error:
                errors.append(str(error))
        if len(errors) == len(forms):
            raise ConfigurationError(
                f"The operation {self._operation.name} takes {'one value' if may_have_value else 'no values'}, and the "
                f"arguments of the handler {self._name} do not fit: {errors[0]}.",
                remedy=f"Write def {self._name}({', '.join([*forms[0], *filter(None, further)])}).",
            )


def _is_large(message: Message) -> bool:
    return inlined_size(message.body_bytes, message.attachments) > STORED_FROM
