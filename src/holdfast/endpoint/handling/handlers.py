"""Checks of handlers at registration, so that a wrong handler fails before the first message."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from holdfast.core.policy import Assurance, Delivery
from holdfast.endpoint.envelopes.attachments import WithAttachments
from holdfast.endpoint.envelopes.message import BODY_TYPES, ApplicationFault
from holdfast.exceptions import ConfigurationError, EnvelopeError, clause
from holdfast.settings import brief_value
from holdfast.wire import check_action as check_sent_action
from holdfast.wire.generated_wsdl import GeneratedOperation

CONNECTION = "connection"
"""The name of the argument that requests the database transaction for a handler."""


_EXAMPLE = 'Example: @app.on("urn:orders/Price", reply_action="urn:orders/PriceReply").'


class PermanentFailure(Exception):
    """A base of failures of a handler that another attempt would repeat: the message becomes a dead letter at once."""


class InvalidBody(EnvelopeError, PermanentFailure):
    """A reply or a fault that the WSDL does not allow."""


class UndeclaredFault(ConfigurationError, PermanentFailure):
    """A fault that no operation of the WSDL declares."""


class InvalidRequest(ApplicationFault):
    """The fault for a body that the WSDL does not allow."""


def check_operation_name(name: object) -> None:
    """Check that the argument of ``@app.operation(…)`` is the name of an operation.

    Raises:
        ConfigurationError: it is a handler, as with ``@app.operation`` without parentheses, or any other value.
    """
    if callable(name):
        raise ConfigurationError(
            f"the handler {_name(name)} is registered without the name of its operation",
            remedy='Write @app.operation("Price"), with the name of an operation in the WSDL.',
        )
    if not isinstance(name, str):
        raise ConfigurationError(
            f"the name of an operation must be text, not {brief_value(name)}",
            remedy='Example: @app.operation("Price").',
        )


def check_action(action: object, owner: str = "app") -> None:
    """Check that the argument of ``@app.on(…)`` is an action.

    Args:
        owner: What an example calls the destination or source.

    Raises:
        ConfigurationError: it is a handler, as with ``@app.on`` without parentheses, or any other value.
    """
    if isinstance(action, str):
        return
    if callable(action):
        raise ConfigurationError(
            f"the handler {_name(action)} is registered without parentheses",
            remedy=f'Write @{owner}.on("urn:orders/Submit") for one action, or @{owner}.on() for every other one.',
        )
    raise ConfigurationError(
        f"an action must be text, not {brief_value(action)}", remedy=f'Example: @{owner}.on("urn:orders/Submit").'
    )


def check_reply_action(action: str) -> None:
    """Check the action of the replies of a handler.

    Raises:
        ConfigurationError: it is no text, or not one that requesters accept.
    """
    check_action(action)
    if action:
        try:
            check_sent_action(action)
        except EnvelopeError as error:
            raise ConfigurationError(
                f"reply_action cannot be used: {clause(error.message)}", remedy=error.remedy or _EXAMPLE
            ) from None


def check_handler(handler: Any) -> None:
    """Check that a handler can be called with a message and runs when called.

    Raises:
        ConfigurationError: the handler cannot be called so, is a generator, which runs no code when called, or has a
            return annotation that is not a body type.
    """
    check_runs(handler)
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return
    within = {CONNECTION: None} if CONNECTION in signature.parameters else {}
    try:
        signature.bind(None, **within)
    except TypeError:
        raise ConfigurationError(
            f"the handler {_name(handler)}{signature} cannot be called with a message alone",
            remedy=f"A handler takes one argument: def {_name(handler).rpartition('.')[2]}(message). With a store "
            f"in a database, it may also take the transaction: (message, {CONNECTION}).",
        ) from None
    returned = _returned(handler)
    if not _may_be_body(returned):
        shown = returned.__name__ if isinstance(returned, type) else str(returned)
        raise ConfigurationError(
            f"The handler {_name(handler)} is annotated to return {shown}, but the body of a reply is one XML element.",
            remedy="Return the element as text, bytes or an lxml element, or None for a one-way message.",
        )


def check_runs(handler: Any) -> None:
    """Check that a handler runs when it is called, and does not block the event loop.

    Raises:
        ConfigurationError: it is not a function or another callable; it is a generator; or it is asynchronous and
            requests the transaction of a database.
    """
    if not callable(handler):
        raise ConfigurationError(f"{brief_value(handler)} is not a handler", remedy="A handler is a function.")
    called = handler
    while isinstance(called, functools.partial):
        called = called.func
    kinds = (called, getattr(called, "__call__", None))  # noqa: B004 # the second is the method of an object
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in kinds):
        raise ConfigurationError(
            f"the handler {_name(handler)} is a generator: calling it would not run its code",
            remedy="Return the reply instead of yielding it.",
        )
    if wants_connection(handler) and any(map(inspect.iscoroutinefunction, kinds)):
        raise ConfigurationError(
            f"the handler {_name(handler)} is async and asks for the {CONNECTION} of a database, which would block "
            "the whole server",
            remedy="Write it as a plain function: it runs in its own thread.",
        )


def _returned(handler: Any) -> Any:
    """Return the handler's return annotation, or Any if it is missing or cannot be resolved."""
    function = handler if inspect.isroutine(handler) else type(handler).__call__
    try:
        return typing.get_type_hints(function).get("return", Any)
    except Exception:  # an annotation is any expression, and may use names that only a type checker imports
        return Any


def _may_be_body(annotation: Any) -> bool:
    """Whether a value of that type can be a body, or None."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return all(_may_be_body(one) for one in arguments)
    if origin is typing.Annotated:
        return _may_be_body(arguments[0])
    if origin in (collections.abc.Awaitable, collections.abc.Coroutine):
        return _may_be_body(arguments[-1])
    kind = annotation if origin is None else origin
    if not isinstance(kind, type) or kind in (Any, object, types.NoneType):
        return True
    return issubclass(kind, (*BODY_TYPES, WithAttachments))


def wants_connection(handler: Any) -> bool:
    """Whether a handler takes the database transaction as an argument."""
    try:
        return CONNECTION in inspect.signature(handler).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False


def check_transactions(handlers: Mapping[str, Any], assurance: Assurance, *, are_there: bool) -> None:
    """Check that the store can give handlers the database transaction that they request.

    Raises:
        ConfigurationError: a handler requests the transaction, but the store is not in a database, or the assurance
            is at-most-once.
    """
    asking = [handler for handler in handlers.values() if wants_connection(handler)]
    if asking and not are_there:
        raise ConfigurationError(
            f"the handler {_name(asking[0])} asks for the {CONNECTION} of a database, but the store is not in a "
            "database",
            remedy="Give the destination a store such as postgresql://user@host/database?space=orders",
        )
    if asking and assurance.delivery is Delivery.AT_MOST_ONCE:
        raise ConfigurationError(
            f"the handler {_name(asking[0])} asks for the {CONNECTION} of a database, but at-most-once marks a "
            "message as done before the handler receives it",
            remedy="Use exactly-once: the handler's changes and the mark commit together.",
        )


def _name(handler: Any) -> str:
    name: str = getattr(handler, "__qualname__", type(handler).__name__)
    return name.replace("<lambda>", "lambda").rpartition("<locals>.")[2]


_UNSAID = "unsaid"
_NOTHING = (None, "None", type(None))


class HandlerTable:
    """The handlers of a destination, by action.

    Args:
        operations: From the service's WSDL: action -> the action of its reply, "" for a one-way operation.
    """

    def __init__(self, operations: Mapping[str, str]) -> None:
        self.handlers: dict[str, Any] = {}
        """Action -> its handler; "" for the handler of every other action."""
        self.reply_actions = dict(operations)
        """Action -> the action of its replies; "" for an operation without replies."""
        self._operations = operations

    def check(self, action: str, handler: Any) -> None:
        """Check that a handler can be added for an action.

        Raises:
            ConfigurationError: It cannot be called with a message, or the action has a handler.
        """
        check_handler(handler)
        if action in self.handlers:
            raise ConfigurationError(
                f"the action {action!r} has two handlers" if action else "all other actions have two handlers",
                remedy="A message goes to one handler: let that handler call both functions.",
            )

    def add(self, action: str, handler: Any, reply_action: str) -> None:
        """Add a handler, and the action of its replies unless that is ""."""
        self.handlers[action] = handler
        if reply_action:
            self.reply_actions[action] = reply_action

    def accepts(self, action: str) -> bool:
        """Whether the destination accepts messages with an action; without handlers, it accepts all."""
        return not self.handlers or self.replies(action)

    def unhandled(self) -> list[str]:
        """Return the actions of the WSDL's operations whose messages the destination rejects."""
        return [action for action in self._operations if not self.accepts(action)]

    def replies(self, action: str) -> bool:
        return action in self.handlers or "" in self.handlers

    def described(self) -> list[GeneratedOperation]:
        """Return an operation for each action with a handler of its own. It is one-way if the handler returns None
        according to its annotation."""
        return [GeneratedOperation(action, self._described_reply(action)) for action in self.handlers if action]

    def _described_reply(self, action: str) -> str:
        """The action of the replies to an action; "" if its handler never replies."""
        if action not in self.reply_actions:
            annotated = getattr(self.handlers[action], "__annotations__", {}).get("return", _UNSAID)
            return "" if annotated in _NOTHING else f"{action}Response"
        return self.reply_actions[action]

    def always_replies(self, action: str) -> bool:
        """Whether a message with an action is a request even without a ReplyTo."""
        if action in self._operations:
            return self._operations[action] != ""
        handler = self.handlers.get(action) or self.handlers.get("")
        annotated = getattr(handler, "__annotations__", {}).get("return", _UNSAID)
        return handler is not None and annotated not in (*_NOTHING, _UNSAID)
