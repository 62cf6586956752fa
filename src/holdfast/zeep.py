"""``holdfast.zeep``: transports that make a zeep client reliable. ``zeep.Client(wsdl, transport=Transport("outbox"))``.

Owns the way from an envelope of zeep's to a Source and back. It is the only module above the endpoint that imports
zeep, so it needs the extra ``wsdl``; ``import holdfast`` does not load it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar, Unpack

from lxml import etree

from holdfast import sync
from holdfast.endpoint.arguments import check_class
from holdfast.endpoint.engine.engine import new_identifier
from holdfast.endpoint.envelopes.attachments import (
    Attachment,
    extract_values,
    inlined_body,
    inlined_headers,
    to_attachments,
)
from holdfast.endpoint.source import source as asynchronous
from holdfast.endpoint.source.block_hints import NoAsyncWith, NoWith
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.operation_calls import MessageFields
from holdfast.endpoint.source.replies import Reply
from holdfast.endpoint.source.sent import Sent
from holdfast.endpoint.source.wsdl import SourceOptions, check_options, documents_of
from holdfast.exceptions import ConfigurationError, DeliveryError, EnvelopeError, OperationFault, PeerFault
from holdfast.settings import check_seconds, check_texts
from holdfast.store import Store
from holdfast.store.address import check_location
from holdfast.wire.body import parse_element
from holdfast.wsdl import require_zeep

require_zeep()

import requests  # noqa: E402
import zeep.exceptions  # noqa: E402
import zeep.transports  # noqa: E402

from holdfast.wsdl.contract import Contract, Operation  # noqa: E402
from holdfast.wsdl.documents import Documents  # noqa: E402

__all__ = ["AsyncTransport", "Call", "Fault", "Transport"]

_ADDRESSING = ("http://www.w3.org/2005/08/addressing", "http://schemas.xmlsoap.org/ws/2004/08/addressing")
_SECURITY = "wssecurity-secext"
"""Part of the namespace of the Security header."""
_OWN_HEADERS = ("soapaction", "content-type")
"""The HTTP headers that zeep itself sets, in lower case. The source writes its own."""
_ENVELOPE = b'<e:Envelope xmlns:e="%b"><e:Header>%b</e:Header><e:Body>%b</e:Body></e:Envelope>'

_HTTP = "Holdfast makes the HTTP requests itself. Give {} as http=holdfast.SourceHTTP({})."
_OF_ZEEP = {
    "session": _HTTP.format("headers, certificates and proxies of the session", "headers=…, ssl_context=…, proxy=…"),
    "client": _HTTP.format("headers, certificates and proxies of the client", "headers=…, ssl_context=…, proxy=…"),
    "wsdl_client": _HTTP.format("headers, certificates and proxies of the client", "headers=…, ssl_context=…, proxy=…"),
    "cache": "Leave it out: each document of the WSDL is loaded once for each transport.",
    "timeout": "For replies, give reply_timeout; for single HTTP requests, http=holdfast.SourceHTTP(timeout=…).",
    "operation_timeout": "Give reply_timeout, the seconds to wait for a reply.",
    "proxy": _HTTP.format("it", "proxy=…"),
    "verify_ssl": _HTTP.format("the authorities to trust", "ssl_context=…"),
}
"""Argument of zeep's own transports -> what a program gives instead."""

_current: ContextVar[Call[Any] | None] = ContextVar("holdfast_zeep_call", default=None)


class Fault(zeep.exceptions.Fault):
    """A fault of the service, with the values of its detail if the WSDL declares it.

    Attributes:
        name: The name of the fault in the WSDL; "" if the operation does not declare it.
        value: The values of its detail: a dict of the fields, or the value of an element without fields; None if the
            operation does not declare the fault.
    """

    def __init__(self, fault: zeep.exceptions.Fault, declared: OperationFault | None) -> None:
        super().__init__(fault.message, fault.code, fault.actor, fault.detail, fault.subcodes)
        self.name = declared.name if declared is not None else ""
        self.value = declared.value if declared is not None else None


SentT = TypeVar("SentT", Sent, sync.Sent)
"""The stored message of a one-way operation, as the kind of the transport returns it."""


class Call(Generic[SentT]):
    """One call of an operation through a transport, made by :meth:`Transport.call`.

    Attributes:
        message_id: The wsa:MessageID of the request.
        sequence_key: The key of the outbox that stores the request.
        attachments: The files that travel with the request, besides its binary values.
        sent: The stored message of a one-way operation; None before the call, and for other operations.
        reply: The reply of another operation, with its headers and attachments; None before it.
    """

    def __init__(
        self,
        sequence_key: str = "",
        message_id: str | None = None,
        timeout: float | None = 60.0,
        attachments: Sequence[Attachment] = (),
    ) -> None:
        check_class("sequence_key", sequence_key, str, optional=False)
        check_class("message_id", message_id, str)
        check_seconds("timeout", timeout)
        self.sequence_key = sequence_key
        self.attachments = to_attachments(attachments)
        self.message_id = message_id if message_id is not None else new_identifier()
        self.timeout = timeout
        self.sent: SentT | None = None
        self.reply: Reply | None = None
        self._is_chosen = message_id is not None
        self._fault: PeerFault | None = None

    def done(self) -> None:
        """Confirm the reply or fault, so that the source deletes it. Leaving the call's block in order does so too.

        A fault outside a block, or of a call without a MessageID of the program's, is confirmed when it is raised.
        """
        for answer in (self.reply, self._fault):
            if answer is not None:
                answer.done()


class TransportOptions(SourceOptions, total=False):
    """The keyword arguments of :class:`Transport`, which documents them."""

    wsdl: str | Path | None
    port: str | None
    to: str | None
    reply_timeout: float | None
    allow_imports: Iterable[str]


class _Outgoing(NamedTuple):
    """A request of zeep's, taken apart."""

    operation: Operation
    body: bytes
    fields: MessageFields


class _Reliable(zeep.transports.Transport, Generic[SentT]):
    """What both transports have in common."""

    def __init__(
        self,
        store: str | Path | Store = "outbox",
        *,
        wsdl: str | Path | None = None,
        port: str | None = None,
        to: str | None = None,
        reply_timeout: float | None = 60.0,
        allow_imports: Iterable[str] = (),
        **options: Unpack[SourceOptions],
    ) -> None:
        super().__init__()
        for name in options:
            if name in _OF_ZEEP:
                raise ConfigurationError(f"{type(self).__name__} has no argument {name!r}.", remedy=_OF_ZEEP[name])
        check_options(type(self).__name__, options, ("wsdl", "port", "to", "reply_timeout", "allow_imports"))
        check_location(store)
        check_class("port", port, str)
        check_class("to", to, str)
        check_class("wsdl", wsdl, (str, Path))
        check_seconds("reply_timeout", reply_timeout)
        self._is_closed = False
        self._store, self._port, self._to, self._options = store, port, to, options
        self._reply_timeout = reply_timeout
        self._allow = check_texts("allow_imports", allow_imports)
        self._documents: Documents | None = None
        self._contract: Contract | None = None
        if wsdl is not None:
            self._documents = self._read(str(wsdl))

    def _read(self, location: str) -> Documents:
        return documents_of(location, self._options.get("http") or SourceHTTP(), self._allow)

    def load(self, url: str) -> bytes:
        """Return a document for zeep: the WSDL, or one that it imports.

        Raises:
            ConfigurationError: the document is in another place, has a document type, or exceeds a limit.
            TransportError: the document cannot be fetched.
        """
        check_class("url", url, str, optional=False)
        if self._documents is None:
            self._documents = self._read(url)
        return self._documents.load(url)

    @contextlib.contextmanager
    def call(
        self,
        *,
        sequence_key: str = "",
        message_id: str | None = None,
        timeout: float | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Iterator[Call[SentT]]:
        """Set the options of the call in the block, and learn its MessageID, acknowledgement and reply.

        Args:
            sequence_key: Messages with equal keys share a Sequence and its order.
            message_id: The wsa:MessageID. If the program may repeat a call after a crash, give the same one: the
                service receives the request once, and the call returns the stored reply if there is one.
            timeout: Seconds to wait for the reply; None: the transport's ``reply_timeout``.
            attachments: Files that travel with the request, as for :meth:`holdfast.Source.send`. Binary values need
                none: :attr:`holdfast.SourceHTTP.mtom` says how they travel.
        """
        call: Call[SentT] = Call(
            sequence_key, message_id, self._reply_timeout if timeout is None else timeout, attachments
        )
        token = _current.set(call)
        try:
            yield call
        finally:
            _current.reset(token)
        call.done()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigurationError(
                "The transport is closed.",
                remedy="Call the client before the transport's block ends, or create a new transport.",
            )

    def _location(self) -> str:
        if self._documents is None:
            raise ConfigurationError(
                "The transport has no WSDL, because the client was given a document that is loaded already.",
                remedy="Give the WSDL to the transport too: Transport(store, wsdl=…).",
            )
        return self._documents.first

    def _describe(self) -> Contract:
        if self._contract is None:
            self._location()
            assert self._documents is not None
            self._contract = Contract(self._documents, self._port)
        return self._contract

    def _begin(
        self, address: str, to: str | None, envelope: etree._Element, headers: dict[str, str]
    ) -> tuple[Call[SentT], _Outgoing]:
        """Return the present call and its request. A call outside :meth:`call` gets the transport's options."""
        if self._to is None and address != to:
            raise ConfigurationError(
                f"The client calls the port at {address}, but the transport sends to {to}.",
                remedy=f"If the address is right, give it to the transport too: Transport(store, to={address!r}). "
                "Otherwise choose the port of the client with port_name, and that of the transport with port.",
            )
        further = [name for name in headers if name.lower() not in _OWN_HEADERS]
        if further:
            raise ConfigurationError(
                f"The client sets the HTTP headers {', '.join(further)}, which the transport would not send: it stores "
                "messages, and HTTP headers belong to one transmission. Nothing was stored.",
                remedy="Leave them out of extra_http_headers and plugins, and give them to the transport: "
                "Transport(store, http=holdfast.SourceHTTP(headers={…})).",
            )
        call = _current.get() or Call(timeout=self._reply_timeout)
        return call, self._outgoing(envelope, headers, call)

    def _outgoing(self, envelope: etree._Element, headers: dict[str, str], call: Call[SentT]) -> _Outgoing:
        contract = self._describe()
        body, foreign, action = None, b"", headers.get("SOAPAction", "").strip('"')
        for part in envelope.iterchildren("{*}Header", "{*}Body"):
            for block in part.iterchildren("{*}*"):
                name = etree.QName(block)
                if etree.QName(part).localname == "Body":
                    body = block
                elif name.localname == "Security" and _SECURITY in (name.namespace or ""):
                    raise ConfigurationError(
                        "The client adds a Security header, which the messages of the protocol would not have: the "
                        "service would reject these. Nothing was stored.",
                        remedy="Leave out wsse=, and give its purpose to the transport: "
                        'Transport(store, processors=[holdfast.UsernameToken("alice", password)]).',
                    )
                elif name.namespace not in _ADDRESSING:
                    foreign += etree.tostring(block, with_tail=False, encoding="utf-8")
                elif name.localname == "Action":
                    action = block.text or action
        content = b"" if body is None else etree.tostring(body, with_tail=False, encoding="utf-8")
        operation, attachments = contract.operation_of(body, action), [*call.attachments]
        mtom = (self._options.get("http") or SourceHTTP()).mtom
        if contract.demands_mtom if mtom is None else mtom:
            content, binary = extract_values(content, contract.request_values(operation, content))
            attachments += binary
        fields: MessageFields = {
            "action": operation.actions.request,
            "sequence_key": call.sequence_key,
            "message_id": call.message_id,
            "headers": foreign,
            "attachments": attachments,
        }
        return _Outgoing(operation, content, fields)

    def _response(self, status: int, soap: str, headers: bytes = b"", body: bytes = b"") -> requests.Response:
        response = requests.Response()
        response.status_code = status
        response.encoding = "utf-8"
        response.headers["Content-Type"] = "text/xml; charset=utf-8"
        response._content = _ENVELOPE % (soap.encode(), headers, body) if soap else b""
        return response

    def _answer(self, reply: Reply, call: Call[SentT]) -> requests.Response:
        call.reply = reply
        if call is not _current.get():
            call.done()
        body = inlined_body(reply.body_bytes, reply.attachments)
        headers = inlined_headers(reply.header_bytes, reply.attachments)
        return self._response(200, self._describe().envelope, headers, body)

    def _fault(self, operation: Operation, fault: PeerFault, call: Call[SentT]) -> Fault | DeliveryError:
        # No reply: it stopped the source. The program must not take it for the service's answer to this call.
        if not fault.message_id:
            return DeliveryError(fault.message, remedy=fault.remedy)
        contract = self._describe()
        call._fault = fault
        if call is not _current.get() or not call._is_chosen:
            call.done()
        declared = contract.fault(operation, fault)
        return Fault(zeep_fault(contract, fault), declared if isinstance(declared, OperationFault) else None)


def zeep_fault(contract: Contract, fault: PeerFault) -> zeep.exceptions.Fault:
    root = etree.Element(f"{{{contract.envelope}}}Envelope")
    body = etree.SubElement(root, f"{{{contract.envelope}}}Body")
    try:
        body.append(parse_element(fault.element))
        contract.zeep_binding.process_error(root, None)
    except zeep.exceptions.Fault as found:
        return found
    except EnvelopeError:
        pass
    return zeep.exceptions.Fault(fault.message, fault.code)


def _check_caller(*, is_async: bool) -> None:
    """Check that the caller of ``post_xml`` is a coroutine, as in a ``zeep.AsyncClient``, or that it is none."""
    caller = sys._getframe(2)
    if bool(caller.f_code.co_flags & inspect.CO_COROUTINE) == is_async:
        return
    if is_async:
        raise ConfigurationError(
            "zeep.Client cannot await the calls of an AsyncTransport. Nothing was stored.",
            remedy="Use holdfast.zeep.Transport, or zeep.AsyncClient.",
        )
    raise ConfigurationError(
        "A Transport would block the event loop of a zeep.AsyncClient. Nothing was stored.",
        remedy="Use holdfast.zeep.AsyncTransport, or zeep.Client.",
    )


class Transport(NoAsyncWith, _Reliable[sync.Sent]):
    """Carries the calls of a ``zeep.Client`` reliably, with the versions and the address of the WSDL and its policy.

    A call of a one-way operation returns when the message is durable in the store. Another call returns the reply, and
    is repeated until the reply is here. A client that is created with the same store resumes its unfinished messages.
    A context manager: leaving the block closes the store. Any thread may call the client.

    Args:
        store: The store of the source, as for :class:`holdfast.Source`.
        wsdl: The WSDL's URL or file; None: the one that the client loads.
        port: The name of the wsdl:port, if several have a policy for reliable messaging.
        to: The address to use instead of the WSDL's.
        reply_timeout: Seconds to wait for a reply; None: no limit.
        allow_imports: URL prefixes of other places that the WSDL may import documents from.
        options: The other arguments of :class:`holdfast.Source`; each overrides the WSDL.

    Raises:
        ConfigurationError: the extra ``wsdl`` is not installed.
    """

    def __init__(self, store: str | Path | Store = "outbox", **options: Unpack[TransportOptions]) -> None:
        super().__init__(store, **options)
        self._source: sync.Source | None = None
        self._opening = threading.Lock()

    def load(self, url: str) -> bytes:
        """Return a document for zeep, and open the source after the first one; errors as for both."""
        data = super().load(url)
        self.open()
        return data

    @property
    def source(self) -> sync.Source:
        """The source, opened: its progress, Sequences, ``flush`` and ``resume``."""
        return self.open()

    def open(self) -> sync.Source:
        """Open the source and resume the messages in its store. Creating a client with the transport does so too.

        Raises:
            ConfigurationError: the transport knows no WSDL yet, or :meth:`holdfast.Source.from_wsdl` raises it.
            StoreError: the store cannot be opened.
        """
        with self._opening:
            self._check_open()
            if self._source is None:
                source = sync.Source.from_wsdl(
                    self._location(), self._store, port=self._port, to=self._to, **self._options
                )
                source.open()
                self._source = source
            return self._source

    def close(self, timeout: float = 10.0) -> None:
        """Close the transport and its source; see :meth:`holdfast.Source.close`. Safe to call twice."""
        self._is_closed = True
        source, self._source = self._source, None
        if source is not None:
            source.close(timeout)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(10.0 if kind is None else 0.0)

    def post_xml(self, address: str, envelope: etree._Element, headers: dict[str, str]) -> requests.Response:
        """Send an envelope of zeep's, for zeep.

        Raises:
            ConfigurationError: the client is asynchronous, calls another port, or adds a Security header or HTTP
                headers; or the transport is closed.
            Fault: the service answered with a fault.
            NotAcknowledged: the reply is not here in time; the request stays stored and is repeated.
            DeliveryError: sending has stopped; says why, whether the request is stored, and what to do.
        """
        _check_caller(is_async=False)
        source = self.open()
        call, out = self._begin(address, source.to, envelope, headers)
        if out.operation.is_one_way:
            call.sent = source.send(out.body, **out.fields)
            return self._response(202, "")
        try:
            reply = source.request(out.body, **out.fields, timeout=call.timeout)
        except PeerFault as fault:
            raise self._fault(out.operation, fault, call) from fault
        return self._answer(reply, call)


class AsyncTransport(NoWith, _Reliable[Sent]):
    """Carries the calls of a ``zeep.AsyncClient`` reliably. It takes the arguments of :class:`Transport`.

    The first call opens the source, or :meth:`open`, or entering the transport's ``async with`` block after the client
    is created.
    """

    def __init__(self, store: str | Path | Store = "outbox", **options: Unpack[TransportOptions]) -> None:
        super().__init__(store, **options)
        self._source: asynchronous.Source | None = None
        self._opening = asyncio.Lock()

    @property
    def source(self) -> asynchronous.Source:
        """The open source: its progress, Sequences, ``flush`` and ``resume``.

        Raises:
            ConfigurationError: it is not open.
        """
        if self._source is None:
            raise ConfigurationError("The source is not open.", remedy="Call await transport.open() first.")
        return self._source

    async def open(self) -> asynchronous.Source:
        """Open the source and resume the messages in its store; errors as for :meth:`Transport.open`."""
        self._check_open()
        if self._source is None:
            async with self._opening:
                if self._source is None:
                    source = await asynchronous.Source.from_wsdl(
                        self._location(), self._store, port=self._port, to=self._to, **self._options
                    )
                    await source.open()
                    self._source = source
        return self._source

    async def aclose(self, timeout: float = 10.0) -> None:
        """Close the transport and its source; see :meth:`holdfast.Source.close`. Safe to call twice."""
        self._is_closed = True
        source, self._source = self._source, None
        if source is not None:
            await source.close(timeout)

    async def __aenter__(self) -> Self:
        self._check_open()
        if self._documents is not None:
            await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.aclose(10.0 if kind is None else 0.0)

    def post_xml(
        self, address: str, envelope: etree._Element, headers: dict[str, str]
    ) -> Coroutine[Any, Any, requests.Response]:
        """Send an envelope of zeep's, for zeep; errors as for :meth:`Transport.post_xml`."""
        _check_caller(is_async=True)
        return self._post(address, envelope, headers)

    async def _post(self, address: str, envelope: etree._Element, headers: dict[str, str]) -> requests.Response:
        source = await self.open()
        call, out = self._begin(address, source.to, envelope, headers)
        if out.operation.is_one_way:
            call.sent = await source.send(out.body, **out.fields)
            return self._response(202, "")
        try:
            reply = await source.request(out.body, **out.fields, timeout=call.timeout)
        except PeerFault as fault:
            raise self._fault(out.operation, fault, call) from fault
        return self._answer(reply, call)
