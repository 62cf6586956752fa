"""``Source.call``: an operation of the service's WSDL, called by name with values. It needs the extra ``wsdl``.

Owns the way from values to a stored message, and from a reply or fault to values. The conversion itself is
``holdfast.wsdl``'s, which is imported with the first call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Required, Self, TypedDict, Unpack

from holdfast.endpoint.arguments import check_class
from holdfast.endpoint.envelopes.attachments import (
    Attachment,
    extract_values,
    inlined_body,
    inlined_headers,
    to_attachments,
)
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.exceptions import ConfigurationError, EnvelopeError, PeerFault

if TYPE_CHECKING:
    from holdfast.wsdl.contract import Contract, Operation
    from holdfast.wsdl.documents import Documents


_OPTIONS: Final = ("sequence_key", "message_id", "headers", "reply_headers", "attachments", "timeout")
"""Options of :meth:`OperationCalls.call`, without the underscore that separates them from fields."""


class MessageFields(TypedDict, total=False):
    """The keyword arguments that ``send`` and ``request`` have in common."""

    action: Required[str]
    sequence_key: str
    message_id: str | None
    headers: bytes
    attachments: Sequence[Attachment]


class OperationCalls:
    """The part of a Source that calls operations by name."""

    _http: SourceHTTP
    _wsdl: tuple[Documents, str | None] | None = None
    """The documents of the WSDL, and the name of its port."""
    _contract: Contract | None = None
    _contract_lock: asyncio.Lock | None = None

    def _described_by(self, documents: Documents, port: str | None) -> Self:
        """Set the WSDL with the operations for :meth:`call`; ``from_wsdl`` uses this."""
        self._wsdl = (documents, port)
        return self

    async def call(
        self,
        operation: str,
        /,
        *arguments: Any,
        _sequence_key: str = "",
        _message_id: str | None = None,
        _headers: bytes | Mapping[str, Any] = b"",
        _reply_headers: dict[str, Any] | None = None,
        _attachments: Sequence[Attachment] = (),
        _timeout: float | None = 60.0,
        **values: Any,
    ) -> Any:
        """Call an operation of the WSDL by name. The source must come from :meth:`from_wsdl`; needs the extra ``wsdl``.

        Args:
            operation: The name of the operation in the WSDL.
            arguments: The values of the first fields, or the value of an input without fields.
            _sequence_key, _message_id: As for :meth:`send`. With a ``_message_id``, the source keeps the
                reply until :meth:`Reply.done` or the end of its block, and a repeated call returns it again. After
                that, a call with the same MessageID executes the operation again.
            _headers: The values of header blocks that the WSDL declares for the request, by their local names:
                ``{"Session": {"key": "…"}}``. Or all header blocks as XML, as for :meth:`send`.
            _reply_headers: A dict to which the call adds the values of the header blocks that the WSDL declares for the
                reply, None for each absent one; or those of a fault.
            _attachments: Files that travel with the message, as for :meth:`send`. Binary values need none: they are
                bytes, and :attr:`SourceHTTP.mtom` says how they travel.
            _timeout: As for :meth:`request`.
            values: The fields of the operation's input, by name. A structure is a dict, a repeated element a list.

        Returns:
            For a one-way operation, the stored message (:class:`Sent`). Otherwise the reply: the value of the only
            field of the output, or a dict of its fields.

        Raises:
            EnvelopeError: the values do not fit the WSDL, so nothing is stored; or the reply does not fit it.
            OperationFault: the service answered with a fault that the WSDL declares; it has the values.
            PeerFault: the service answered with another fault. For both, see :meth:`request`.
            ConfigurationError: the source has no WSDL, the WSDL has no such operation, or zeep is not installed.
            NotAcknowledged, DeliveryError, StoreError: as for :meth:`request` and :meth:`send`.
        """
        check_class("operation", operation, str, optional=False)
        check_class("_reply_headers", _reply_headers, dict)
        contract = await self._described()
        found = contract.operation(operation)
        _check_given_once(found, arguments, values)
        options: dict[str, object] = {"_sequence_key": _sequence_key, "_message_id": _message_id, "_headers": _headers}
        options |= {"_reply_headers": _reply_headers, "_attachments": _attachments, "_timeout": _timeout}
        _check_no_fields(found, options)
        try:
            body = contract.request(found, arguments, values)
            headers = contract.header_bytes(found.headers, _headers)
        except EnvelopeError as error:
            error.remedy = error.remedy or _misspelt_options(found, values)
            raise
        attachments = [*to_attachments(_attachments)]
        if contract.demands_mtom if self._http.mtom is None else self._http.mtom:
            body, binary = extract_values(body, [arguments, values])
            attachments += binary
        fields: MessageFields = {
            "action": found.actions.request,
            "sequence_key": _sequence_key,
            "message_id": _message_id,
            "headers": headers,
            "attachments": attachments,
        }
        if found.is_one_way:
            return await self.send(body, **fields)
        try:
            reply = await self.request(body, **fields, timeout=_timeout)
        except PeerFault as fault:
            declared = contract.fault(found, fault)
            declared.message_id, declared._tell = fault.message_id, fault._tell
            declared.action, declared.header_bytes = fault.action, fault.header_bytes
            if _reply_headers is not None:
                with contextlib.suppress(EnvelopeError):  # the fault says more
                    _reply_headers |= contract.header_values(found.fault_headers, fault.header_bytes)
            raise declared from None
        value = contract.reply_value(found, inlined_body(reply.body_bytes, reply.attachments))
        if _reply_headers is not None:
            blocks = inlined_headers(reply.header_bytes, reply.attachments)
            _reply_headers |= contract.header_values(found.reply_headers, blocks)
        # Without its MessageID, the program cannot ask for the reply again.
        if _message_id is None:
            reply.done()
        return value

    async def _described(self) -> Contract:
        if self._contract is not None:
            return self._contract
        if self._wsdl is None:
            raise ConfigurationError(
                "The source has no WSDL, so it knows no operations.",
                remedy="Create it with Source.from_wsdl(url, store), or send XML with source.request(…).",
            )
        if self._contract_lock is None:
            self._contract_lock = asyncio.Lock()
        async with self._contract_lock:
            if self._contract is None:
                self._contract = await asyncio.to_thread(load_contract, *self._wsdl)
        return self._contract

    if TYPE_CHECKING:

        def send(self, body: bytes, **fields: Unpack[MessageFields]) -> Any:
            """See :meth:`Source.send`."""

        async def request(self, body: bytes, *, timeout: float | None, **fields: Unpack[MessageFields]) -> Any:
            """See :meth:`Source.request`."""


def _check_given_once(operation: Operation, arguments: tuple[Any, ...], values: Container[str]) -> None:
    """Check that no field has a value by position and another one by name.

    Raises:
        EnvelopeError: one has; names it.
    """
    from holdfast.wsdl.contract import fields

    twice = [name for name, _ in zip(fields(operation.input), arguments, strict=False) if name in values]
    if twice:
        raise EnvelopeError(
            f"{operation.name} got two values for the field {twice[0]!r}: one by position and one by name",
            remedy="Give each field one value. Nothing was stored.",
        )


def _check_no_fields(operation: Operation, options: Mapping[str, object]) -> None:
    """Check that no option is given that is also the name of a field.

    Raises:
        EnvelopeError: One is.
    """
    from holdfast.wsdl.contract import fields

    defaults: Mapping[str, object] = OperationCalls.call.__kwdefaults__ or {}
    both = [name for name in fields(operation.input) if name in options and options[name] != defaults[name]]
    if both:
        raise EnvelopeError(
            f"{both[0]} is an option of call(), and also a field of {operation.name}",
            remedy="Give the values of the first fields by position, and leave the option out. Nothing was stored.",
        )


def _misspelt_options(operation: Operation, values: Iterable[str]) -> str:
    """Return a remedy for options that were given without their underscore; "" if there are none."""
    from holdfast.wsdl.contract import fields

    known = fields(operation.input)
    found = [f"_{name}" for name in values if name in _OPTIONS and name not in known]
    return f"Options of call() begin with an underscore: {', '.join(found)}." if found else ""


def load_contract(documents: Documents, port: str | None) -> Contract:
    """Read the operations of a WSDL. Blocks.

    Raises:
        ConfigurationError: zeep is not installed, or the WSDL cannot be used.
        TransportError: A document cannot be fetched.
    """
    from holdfast.wsdl import require_zeep

    require_zeep()
    from holdfast.wsdl.contract import Contract

    return Contract(documents, port)
