"""HandlerRegistration: the handlers of a destination, by action and by operation of its WSDL.

This module owns when a handler may be registered. The checks of a handler are in ``handlers``, and the conversion of
values in ``operations``; ``holdfast.wsdl`` is imported with the first operation: it needs the extra ``wsdl``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.endpoint.arguments import check_class
from holdfast.endpoint.destination.operations import CURRENT, OperationHandler
from holdfast.endpoint.destination.running_destination import DestinationSettings, RunningDestination
from holdfast.endpoint.envelopes.message import ApplicationFault
from holdfast.endpoint.handling.dispatcher import HandlerT
from holdfast.endpoint.handling.handlers import (
    InvalidBody,
    UndeclaredFault,
    check_action,
    check_operation_name,
    check_reply_action,
)
from holdfast.exceptions import ConfigurationError, EnvelopeError, clause

if TYPE_CHECKING:
    from holdfast.wsdl.contract import Contract
    from holdfast.wsdl.documents import Documents


OperationHandlerT = TypeVar("OperationHandlerT", bound=Callable[..., Any])

_BASE = "http://wsdl.invalid/"
"""Base URL of the WSDL's documents for the WSDL reader, which fetches nothing from it."""
_ELSEWHERE = "Save that document next to the WSDL, and change its location to the name of the file."


class HandlerRegistration:
    """The part of a Destination that registers handlers."""

    settings: DestinationSettings
    _opened: RunningDestination | None
    _contracts: dict[str | None, Contract]
    """The operations of the ports that handlers were registered for, by the port's name; None: the default one."""

    @property
    def running(self) -> RunningDestination:
        """Its store, engine, queues and the rest, for the rooms that run and inspect it.

        Raises:
            ConfigurationError: It was never started.
        """
        if self._opened is None:
            raise ConfigurationError("the destination is not running", remedy="Await its start() first.")
        return self._opened

    @property
    def _is_open(self) -> bool:
        return self._opened is not None and self._opened.is_open

    def on(self, action: str = "", *, reply_action: str = "") -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function as the handler of one action, or of all other actions.

        A handler takes the :class:`Message` and may be async or plain; a plain one runs in a thread. It returns the
        reply to a request as text, bytes or an lxml element. If the handler raises, the destination retries it with
        exponential backoff, then makes the message a dead letter. If it raises :class:`ApplicationFault`, the
        destination answers with a fault at once.

        With a store in a database, a plain handler may use the store's transaction: it takes a second argument
        ``connection``, a ``sqlalchemy.Connection``. Its statements commit together with the mark that the message is
        handled, and with its reply; if it raises, the database rolls all of them back.

        The ReplyTo of a message requests a reply. A message without a ReplyTo, as gSOAP sends, is a request if its
        handler is annotated with a return type, such as ``-> str``, or if the ``wsdl`` declares an output for it.
        Otherwise it is one-way. From a WCF client, and from a sender that has named a ReplyTo in the same Sequence, it
        is always one-way. If the handler of a request returns None, the reply is an empty element: the request's name
        followed by ``Response``. If it returns an empty text, the reply has an empty body.

        Args:
            action: wsa:Action; "" for every action without its own handler.
            reply_action: The wsa:Action of the replies, as the contract declares it. Default: the one in the ``wsdl``;
                without a WSDL, the action followed by ``Response``, which is WCF's default too.

        Raises:
            ConfigurationError: the action has a handler already; the handler cannot be called with a message, or its
                return annotation is not a body type, as ``-> int``; the destination runs without handlers; or the
                parentheses of ``@app.on()`` are missing.
        """
        check_action(action)
        check_reply_action(reply_action)
        if reply_action and not action:
            raise ConfigurationError(
                "reply_action needs an action", remedy='Write @app.on("urn:orders/Price", reply_action="…").'
            )

        def register(handler: HandlerT) -> HandlerT:
            table, running = self.settings.table, self.running if self._is_open else None
            table.check(action, handler)
            if running is not None and running.dispatcher is None:
                raise ConfigurationError(
                    "the destination is already running without handlers",
                    remedy="Register the first handler before you start it.",
                )
            if running is not None:
                running.check_transactions({action: handler})
            table.add(action, handler, reply_action)
            return handler

        return register

    def operation(self, name: str, *, port: str | None = None) -> Callable[[OperationHandlerT], OperationHandlerT]:
        """Register the decorated function as the handler of an operation of the ``wsdl``. Needs the extra ``wsdl``.

        The handler takes the fields of the operation's input as arguments with their names. In arguments annotated so,
        it may take the :class:`Message`, and the values of header blocks as :class:`SoapHeaders`. An absent optional
        field is None, or the argument's default. It returns what the operation returns: the value of the only field of
        the output, or a dict of its fields. To answer with a declared fault, it raises :meth:`fault`. Binary values are
        bytes, whether they travel as attachments (MTOM) or in base64. To return other attachments, it returns
        ``WithAttachments(value, …)``; to return header blocks, :class:`WithHeaders`. Otherwise it behaves as a handler
        of :meth:`on`.

        The body, and the header blocks that the handler takes as :class:`SoapHeaders`, are validated against the WSDL's
        schema before the handler is called. A request with an invalid one, or without a header block that the WSDL
        requires, is answered with a Sender fault (Client in SOAP 1.1) that names the element. A one-way message with
        one becomes a dead letter.

        Args:
            name: The name of the operation in the WSDL.
            port: The name of the wsdl:port with the operation. None: the only one with a policy for reliable messaging,
                or the first SOAP port. A destination may have handlers for several ports.

        Raises:
            ConfigurationError: the destination has no WSDL, the port has no such operation, the handler's arguments are
                not the fields of its input, zeep is not installed, or :meth:`on` raises it.
        """
        check_operation_name(name)
        check_class("port", port, str)
        contract = self._offered(port)
        found = contract.operation(name)
        try:
            check_reply_action(found.actions.reply)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"The operation {name} of the WSDL has replies that cannot be sent: {clause(error.message)}.",
                remedy="Correct the action (wsam:Action) of its output in the WSDL, or its target namespace.",
            ) from None

        def register(handler: OperationHandlerT) -> OperationHandlerT:
            wrapped = OperationHandler(contract, found, handler, lambda: self.settings.http).as_handler()
            self.on(found.actions.request, reply_action=found.actions.reply)(wrapped)
            return handler

        return register

    def fault(
        self,
        name: str,
        reason: str,
        /,
        *,
        sender: bool = True,
        _headers: bytes | Mapping[str, Any] = b"",
        **values: Any,
    ) -> ApplicationFault:
        """Return a fault that the ``wsdl`` declares, for a handler to raise.

        For example: ``raise app.fault("OrderRefused", "Too many lines.", limit=3)``. If a handler lets an error of this
        method pass, its message becomes a dead letter at once, because a retry would repeat the error.

        Args:
            name: The name of the fault in the WSDL.
            reason: English text for the requester.
            sender: Whether the requester is to blame (Sender) or not (Receiver).
            _headers: Header blocks, as for :class:`ApplicationFault`.
            values: The fields of the fault's element, by name.

        Raises:
            ConfigurationError: no operation of the WSDL declares that fault.
            EnvelopeError: the values do not fit the fault's element, and the message names the element; or the
                operation of the running handler does not declare the fault.
        """
        check_class("name", name, str, optional=False)
        contracts = [*self._contracts.values()] or [self._offered(None)]
        offered = [(contract, one) for contract in contracts for one in contract.operations.values()]
        declaring = [(contract, one) for contract, one in offered if name in one.faults]
        if not declaring:
            known = sorted({fault for _, one in offered for fault in one.faults})
            raise UndeclaredFault(
                f"No operation of the WSDL declares the fault {name!r}.",
                remedy=f"The WSDL declares: {', '.join(known) or 'none'}.",
            )
        contract, operation = declaring[0]
        of_contract, current = CURRENT.get() or (None, None)
        if of_contract in contracts and of_contract is not None and current is not None:
            contract, operation = of_contract, current
            if name not in operation.faults:
                raise InvalidBody(
                    f"The operation {operation.name} does not declare the fault {name!r}.",
                    remedy=f"It declares: {', '.join(operation.faults) or 'none'}. For a fault without a declaration, "
                    "raise holdfast.ApplicationFault.",
                )
        try:
            detail = contract.fault_detail(operation, name, values)
        except EnvelopeError as error:
            raise InvalidBody(error.message, remedy=error.remedy) from None
        actions = operation.actions
        action = actions.faults.get(name, "")
        fault = ApplicationFault(reason, sender=sender, detail=detail, action=action, headers=_headers)
        fault.default_action = actions.default_faults.get(name, "")
        return fault

    def _offered(self, port: str | None) -> Contract:
        if port not in self._contracts:
            if not self.settings.wsdl.is_given:
                raise ConfigurationError(
                    "The destination has no WSDL, so it knows no operations.",
                    remedy='Give it one: Destination(wsdl="service.wsdl"). Without one, use @app.on(action).',
                )
            from holdfast.wsdl import require_zeep

            require_zeep()
            from holdfast.wsdl.contract import Contract

            try:
                contract = Contract(self._documents(), port)
                contract.compile_schema()
            except ConfigurationError as error:
                message = self.settings.wsdl.in_files(error.message, _BASE)
                raise ConfigurationError(message, remedy=error.remedy) from error
            self._contracts[port] = self._contracts.setdefault(contract.port, contract)
        return self._contracts[port]

    def _documents(self) -> Documents:
        """Return the documents of the ``wsdl``, as clients would fetch them."""
        from holdfast.wsdl.documents import Documents

        return Documents(f"{_BASE}?wsdl", lambda url: self.settings.wsdl.document(url, _BASE), elsewhere=_ELSEWHERE)
